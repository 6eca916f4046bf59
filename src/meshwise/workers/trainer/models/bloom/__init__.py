"""BLOOM (arXiv:2211.05100)."""
