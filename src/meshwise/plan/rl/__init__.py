"""plan.rl: training on answers that the model generates itself (PPO, GRPO, ...): roles, phases, and how devices are split between them.

plan.py     RolloutPlan: every split of the devices, the fastest first; make(ask)
splits.py   Split: the ways to share devices that a program has, each with the seconds of its phases
lengths.py  Answers: how many tokens the answers of a step have, from a mean and the longest or from a file
rollout.py  seconds and bytes of the engines that generate the answers, from the cost model of serving
roles.py    seconds and bytes of training: policy, reference, critic, reward model, teacher
"""
