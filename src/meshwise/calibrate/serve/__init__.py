"""calibrate.serve: measured served models.

cases.py     a row of a table -> ServeCase      predict.py    cases -> tokens per second
names.py     models, formats, engines by name   rates.py      what a row's rates and load mean
score.py     errors of speed, memory and fit    fit.py        least squares, leaving groups out
intervals.py spreads and their coverage         validate.py   score a table
make.py      a calibration from tables
"""
