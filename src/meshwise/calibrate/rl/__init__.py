"""calibrate.rl: steps of training on generated answers that others measured: read, predicted, scored, and fitted.

table.py     Case: a measured step and the question that corresponds to it; read(path)
validate.py  RlValidation: predictions of a table, each by coefficients that no step of its program was fitted to
fit.py       the coefficients of data/rl, with whole programs left out
"""
