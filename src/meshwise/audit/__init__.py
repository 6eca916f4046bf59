"""audit: a run -> a verdict. `audit` judges what was measured, `check` what a launch file would run.

ask.py       AuditAsk: figures and files, and the launch files beside them
figures.py   Figures: tokens per step, rates, TFLOP/s and MFU by formula, cost, derived from one Run
rules/       Figures and Claims -> Findings; finding.py Finding, and figures in sentences
train.py     the planner's step time and memory for a run, and a faster layout; serve.py speed and latency. Imported only when asked
report.py    Audit: figures, findings and predictions for all files, with a verdict in words
check/       launch files -> Verdict
doctor/      profiler traces -> why a run is slow
profile/     the folder of a `meshwise run`: predicted against measured by part of the step
"""
