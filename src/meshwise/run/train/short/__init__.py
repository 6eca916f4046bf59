"""train.short: short runs, each in a folder of its own and beside its prediction.

    sweep.py    the combinations of layouts and batches of `--sweep`, and how well the planner ranked them
    lengths.py  the sequence lengths of `--report`
    measure.py  run them, one after another
Imports train.launch and what starts workers. Imported by train.start, train.single, tune.loop and ui.views.run.
"""
