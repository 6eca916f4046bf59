"""audit.predictions: the planner's figures for audited runs, compared with the measured ones.

    train.py    step time and memory of training runs, and a faster layout where the planner finds one
    serve.py    tokens per second of served models
Imports calibrate, plan, cost, models, catalogue, and from audit: rules, figures, finding. Imported by audit.report, and only when the
planner is asked: numpy and the search take most of the time of an audit.
"""
