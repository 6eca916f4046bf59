"""train: training programs, one file each, with `PROGRAM` (see programs.program).

limits.py adapters.py recipe.py   what several share
megatron_rules.py torchtitan_rules.py torchtune_builders.py   the words of one program and its relatives
"""
