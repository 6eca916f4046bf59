"""The trainer: a thin program on PyTorch's distributed engine. It needs torch and the standard library, nothing else of meshwise."""
