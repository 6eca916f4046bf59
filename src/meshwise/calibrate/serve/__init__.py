"""calibrate.serve: fits and scores of served models.

score.py      errors of speed, memory and fit    fit.py       least squares, leaving groups out
intervals.py  spreads and their coverage         validate.py  score a table
make.py       a calibration from tables
"""
