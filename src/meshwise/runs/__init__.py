"""runs: what was run, on what, and what was seen. Whoever tells of a run makes a Run, whoever judges one takes it.

fields.py    FIELDS: every field of a run, with its quantity, unit and group, and the words that others use for it
run.py       Run: values by field, each said, defaulted, derived or unknown, and where it stands
numbers.py   numbers with units as people write them; words.py words for values
table.py     CSV files and JSON lines as Runs, and back
reading.py   Reading: the runs and the checkable statements of one file
derive.py    complete(run): devices, dp, batch, tokens, each with its arithmetic
model.py     the model that a run names, if its sizes agree; else one built from the sizes
train/ serve/   a Run as a case that the cost model can price, and its prediction
compare.py   a case beside the planner's best layout
"""
