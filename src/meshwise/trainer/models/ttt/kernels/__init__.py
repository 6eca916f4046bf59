"""Triton kernels of the TTT layers. Importing this package imports nothing: triton is there with CUDA alone."""
