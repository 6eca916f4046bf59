"""TTT-Linear (arXiv:2407.04620)."""
