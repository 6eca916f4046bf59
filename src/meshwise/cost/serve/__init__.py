"""cost.serve: speed and memory of a served model under one layout. No numpy.

question.py   ServeQuestion: model, weights, cluster, engine, task
layouts.py    which cards, which split, how many replicas        placement.py  tensors and cache on each device
cache.py      bytes of the KV cache, layer by layer              buffers.py    bytes per device: weights, cache, compute buffers
demand.py     work per device: bytes, FLOPs, hops                waves.py      SM utilization of the products
speed.py      seconds by part of a decode step and of a prompt
"""
