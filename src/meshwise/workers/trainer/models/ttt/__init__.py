"""Test-time training (arXiv:2407.04620): frame, learners, and their kernels."""
