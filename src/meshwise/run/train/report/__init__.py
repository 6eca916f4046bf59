"""train.report: the numbers of a run's report, and layouts to try next. ui.views.run draws them.

comparison.py  measured beside predicted, by part, over ranks and over earlier runs
advice.py      the forecast of a run, and faster layouts for the next one
memory.py      the predicted memory of each device
failure.py     the reason why a run failed; where memory ran out, the nearest layout that needs less
"""
