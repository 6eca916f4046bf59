"""runs.train: training runs as cases.

case.py      Run -> Case: model, cluster, task and layout, and what was measured
machine.py   the cluster, the framework and the precision of a run
settle.py    the runs of one source: one assumption for what none of them states
predict.py   cases -> seconds and bytes, together where they share a question
planned.py   the Run that a layout of a plan describes
"""
