"""calibrate: tables of measurements -> errors of predictions -> fitted coefficients.

    dispatch.py  validate(), calibrate(): for training runs or for served models, depending on the columns of a table
    result.py    Validation, Result: the answers, and the .toml file of a calibration
    score.py     statistics that both kinds share        tables.py  find and read tables
    probe_rows.py  the keys, types and ranges of the rows of a probe
    train/       training runs, and probes               serve/     served models

train and serve have the same files and do not import each other.
Imports plan, cost, models, catalogue. Imported by run, audit, api, ui. scipy is imported only where something is fitted.
"""
