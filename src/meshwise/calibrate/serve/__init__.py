"""calibrate.serve: measured served models.

cases.py     a row of a table -> ServeCase      predict.py    cases -> tokens per second
score.py     errors of speed, memory and fit    fit.py        least squares, leaving groups out
intervals.py spreads and their coverage         validate.py   score a table
make.py      a calibration from tables
"""
