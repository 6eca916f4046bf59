"""audit: check reported results: derive figures from them, find contradictions, and compare them with predictions.

    logs/           files -> Runs and Claims; logs/formats/ one module per format
    figures.py      Figures: tokens per step, rates, TFLOP/s and MFU by formula, cost, derived from one Run
    rules/          Figures and Claims -> Findings; finding.py Finding, and figures in sentences
    predictions/    the planner's step time, memory and speed for a run, and a faster layout; imported only when asked
    launch_files.py what the launch files beside a log say about its run
    report.py       Audit: figures, findings and predictions for all files, with a verdict in words
    profile/        the folder of a `meshwise run`: predicted against measured by part of the step
Imports export, calibrate, plan, cost, models, catalogue. Imported by api and ui. No printing, no processes.
"""
