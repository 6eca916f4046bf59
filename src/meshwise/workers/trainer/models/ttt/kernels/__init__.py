"""Kernels of the TTT learners, in Triton and its lower level Gluon; they compute the same functions as the plain PyTorch in linear.py and
mlp.py one folder up.

linear.py           TTT-Linear's inner loop as torch operators, with the launch settings of its kernels
linear_tiles.py     helpers that its kernels share; linear_forward.py linear_backward.py linear_decode.py
mlp.py              TTT-MLP's inner loop as torch operators
mlp_tiles.py        helpers that its kernels share; mlp_chain.py mlp_back_chain.py mlp_readers.py
product.py          one weight times one vector per sequence, with norm, gate and residual, for decoding
"""
