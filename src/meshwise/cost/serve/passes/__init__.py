"""cost.serve.passes: work and seconds of a pass of the engine over decoding sequences and tokens of prompts.

demand.py      work of a replica: bytes, FLOPs, hops                    task.py       work of one device, and a hop between two
tokens.py      FLOPs and kernels per token of each layer                waves.py      SM utilization of the products
links.py       all-reduces and transfers by kind of link                speed.py      seconds by part of a pass
"""
