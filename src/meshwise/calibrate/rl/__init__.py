"""calibrate.rl: steps of training on generated answers that others measured: read, predicted and scored.

table.py     Case: a measured step and the question that corresponds to it; read(path)
validate.py  RlValidation: predictions of a table, each by coefficients that no step of its program was fitted to
"""
