"""workers.probe: times this machine's devices and links. Needs torch and the standard library only.

    __main__.py  `python -m meshwise.workers.probe rows.jsonl 60 [cuda|cpu]`, alone or under torchrun
    kernels.py   one device: matrix products, memory, launches, attention, blocks, optimizer, host link
    links.py     several devices: collectives and point-to-point messages
    clock.py     medians of repeated timings
    rows.py      measurements as rows of JSON

Imports nothing else of meshwise. Started by run.probe; calibrate.train.probe fits its rows.
"""
