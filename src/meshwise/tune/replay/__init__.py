"""The loop of `tune` on a table of measured runs.

replay   regret by number of runs, over the groups of a table
groups   rows of a table that a planner chooses among
rivals   other ways to choose, for comparison: random order, a rule of thumb, the planner's order, optuna
"""
