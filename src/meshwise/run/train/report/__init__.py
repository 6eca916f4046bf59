"""train.report: the report of a run, and layouts to try next.

comparison.py  measured beside predicted, by part, over ranks and over earlier runs
sections.py    the report as data, printed as text or written as Markdown
advice.py      the forecast of a run, and faster layouts for the next one
failure.py     the reason why a run failed; where memory ran out, the nearest layout that needs less
"""
