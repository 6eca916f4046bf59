"""calibrate: cases of measured runs -> errors of predictions -> fitted coefficients.

dispatch.py    validate(), calibrate(): for training runs or for served models, depending on the columns of a table
result.py      Validation, Result: the answers, and the .toml file of a calibration
score.py       statistics that both kinds share
probe_rows.py  the keys, types and ranges of the rows of a probe
least_squares.py  least squares between bounds
train/ serve/  the same files for training runs (and probes) and for served models; they do not import each other
rl/            steps of training on generated answers
"""
