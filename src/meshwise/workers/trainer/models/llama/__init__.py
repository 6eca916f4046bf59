"""Llama 1 to 3 (arXiv:2302.13971, arXiv:2407.21783): registry entry, model and sharding."""
