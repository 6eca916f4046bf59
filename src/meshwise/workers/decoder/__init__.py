"""workers.decoder: prefill and decode of an HF config on one GPU, for measuring its speed. Needs torch and transformers.

__main__.py      `python -m meshwise.workers.decoder job.json`: one line of JSON per measured point
settings.py      Job and Point: the model and the settings to measure (no torch)
session.py       builds the model and measures each point
clock.py         timing of a call, CUDA graphs
graphs.py        the fused decoder as CUDA graphs
static_cache.py  HF's own layers with its static cache
fused.py         Llama-like decoders with fused weights; kernels.py: their Triton kernels
rows.py          results as rows of a measurement table (no torch)
"""
