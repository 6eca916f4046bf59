"""Triton kernels of TTT layers: the same functions as the plain learners."""
