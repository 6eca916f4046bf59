"""cost.serve.memory: bytes of a served model on each device.

placement.py   tensors and cache on each device                         cache.py      bytes of the KV cache, layer by layer
buffers.py     bytes per device: weights, cache, compute buffers        blocks.py     vLLM's pool of cache blocks, by kind of layer
"""
