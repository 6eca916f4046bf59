"""BLOOM (arXiv:2211.05100): registry entry, model and sharding."""
