"""cost: the seconds and bytes of a layout. Pure formulas: a number is a float or an array over layouts; no file is read.

    axes.py         the axes of a training layout, one row each       layout.py       Layouts: one array per axis
    parts.py        the parts of a step and the kinds of memory       work.py         Train, Serve: the task
    goodput.py      effective share of a long run's wall time         modes.py        the seconds of a step in a mode of slow runs
    interval.py     prediction intervals of a training step           power.py        watts from what devices do, and limits
    precision.py    bf16 to nvfp4: rates, bytes and casts of products finetune.py     Finetune: full, lora, dora, qlora, freeze
    train/          Question x Layouts -> Cost                        serve/          ServeQuestion x ServeLayout -> Speed, Footprints

train and serve do not import each other; serve does without numpy, so that serving plans start fast.
"""
