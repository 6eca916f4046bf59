"""calibrate.train: fits and scores of training runs.

score.py      errors, ranks, picks, baselines    fit.py       least squares, leaving groups out
intervals.py  prediction intervals               validate.py  score a table
make.py       a calibration from tables          probe.py     a probe of this machine -> chip and calibration
modes.py      groups of slow runs with one cause, whatever the model
"""
