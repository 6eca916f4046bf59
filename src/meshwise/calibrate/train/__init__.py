"""calibrate.train: measured training runs.

table.py     a CSV or JSONL file -> rows      reading.py    rows -> cases, with one assumption per source for what is not stated
cases.py     a row -> Case                    shapes.py     the model of a row
machine.py   its cluster, framework, precision  predict.py  cases -> seconds and bytes
score.py     errors, ranks, picks, baselines  fit.py        least squares, leaving groups out
joint.py     levels fitted to many sources    sources.py    whole sources left out of that fit
intervals.py prediction intervals             validate.py   score a table
make.py      a calibration from tables        probe.py      a probe of this machine -> chip and calibration
"""
