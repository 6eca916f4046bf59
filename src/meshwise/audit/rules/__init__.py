"""audit.rules: checks of figures and statements. A rule is a function that yields Findings, listed in RULES of the same file.

one_run.py      figures of one run against each other
across_runs.py  runs of one document against each other
claims.py       statements in words against the figures, and against the meaning of abbreviations
"""
