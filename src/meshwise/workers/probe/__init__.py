"""workers.probe: times this machine's devices and links. Needs torch and the standard library only.

    __main__.py  `python -m meshwise.workers.probe rows.jsonl 60 [cuda|cpu]`, alone or under torchrun
    kernels.py   one device: matrix products, memory, launches, attention, blocks, optimizer, host link
    links.py     several devices: collectives and point-to-point messages
    clock.py     medians of repeated timings
    rows.py      measurements as rows of JSON
    health.py    `python -m meshwise.workers.probe.health FOLDER 60`: one rank of `meshwise preflight`, from
                 figures.py (what ranks are compared by), counters.py (of a GPU), meeting.py (ranks that come) and pairs.py (their links)
    compare.py   neighbours compared: which rates are slow; without torch

Imports nothing else of meshwise. Started by run.probe and run.preflight; calibrate.train.probe fits its rows.
"""
