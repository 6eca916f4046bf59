"""contract.files: expected.py (the weights that files must hold), safetensors.py (heads of HF's files), order.py (the shuffled order of
samples, computed and not stored) and grammar.py (the embedded text)."""
