"""trainer.hf: files of weights in HF's safetensors format, checked by their headers alone. No torch.

    safetensors.py  find the files and read the table of tensors at the head of each
    expected.py     the tensors a model must have, and whether given files hold them

Imports trainer.models (registry, tensors). Imported by trainer.weights, the training loop and the launcher.
"""
