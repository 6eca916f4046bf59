"""programs.rl: programs that train on generated answers, both ways: a RolloutPlan as their files, and their files as a question.

facts.py     the facts of a plan in our words, and the question that facts of a file ask
verl.py      key=value words of a command, or YAML         nemo_rl.py   NeMo RL's YAML
openrlhf.py  flags of openrlhf.cli.train_ppo_ray           trl.py       the YAML of `trl grpo` and `trl rloo`
"""
