"""runs.serve: served models as cases.

case.py      Run -> ServeCase: model, devices, engine and placement, and what was measured
names.py     models, formats, cards and engines by the names that people write
rates.py     what the rates and the load of a run mean: all requests or each, with prompts or without
predict.py   cases -> tokens per second, and latencies
doubts.py    cases -> why some cannot be what they state
"""
