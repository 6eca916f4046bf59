"""cost.serve: speed and memory of a served model under one layout, and what it does at a load. No numpy.

question.py    ServeQuestion: model, weights, cluster, engine, load     layouts.py    which cards, which split, how many replicas
rig.py         devices of a replica and the links between them          distance.py   how uncertain a prediction is
memory/        bytes on each device: tensors, cache, compute buffers    passes/       seconds of a pass by part, from bytes, FLOPs and hops
load/          requests, what an engine admits, throughput and latency
"""
