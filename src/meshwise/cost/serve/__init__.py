"""cost.serve: speed and memory of a served model under one layout, and what it does at a load. No numpy.

question.py    ServeQuestion: model, weights, cluster, engine, load     layouts.py    which cards, which split, how many replicas
placement.py   tensors and cache on each device                         cache.py      bytes of the KV cache, layer by layer
buffers.py     bytes per device: weights, cache, compute buffers        admission.py  what an engine admits at once
rig.py         devices of a replica and the links between them          queue.py      when queued prompts end
blocks.py      vLLM's pool of cache blocks, by kind of layer            pools.py      copies for prompts apart from copies for outputs
demand.py      work per device: bytes, FLOPs, hops                      waves.py      SM utilization of the products
links.py       all-reduces and transfers by kind of link                speed.py      seconds by part of a pass
tokens.py      FLOPs and kernels per token of each layer
load.py        lengths, users or a rate, limits, percentiles, targets   estimate.py   throughput and latency at a load, by formula
simulation.py  continuous batching event by event: their referee        distance.py   how uncertain a prediction is
"""
