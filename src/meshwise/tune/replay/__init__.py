"""The loop of `tune` on a table of measured runs.

replay.py   regret by number of runs, over the groups of a table
groups.py   rows of a table that a planner chooses among
rivals.py   other ways to choose, for comparison: random order, a rule of thumb, the planner's order, optuna
"""
