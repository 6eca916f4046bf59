"""plan.rl: training on answers that the model generates itself (PPO, GRPO): roles, phases, and how devices are split between them.

plan.py     RolloutPlan: every split of the devices, the fastest first; make(ask)
rollout.py  seconds and bytes of the engine that generates the answers, from the cost model of serving
roles.py    seconds and bytes of training: policy, reference, and with PPO a value and a reward model
"""
