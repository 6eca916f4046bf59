"""trainer.models: the architectures the trainer builds.

    description.py  Description: everything in which decoders differ (no torch)
    keys.py         reads the keys of config.json that most families share (no torch)
    tensors.py      names and shapes of parameters, and how HF's files store them (no torch)
    registry.py     Family and Sizes; lookup by model_type (no torch)
    families/       one module per family: its description and storage (no torch)
    conversion.py   parameters out of HF's stored tensors, and back
    base.py         head and tied embedding, protocols; build(), styles and predictor by config
    decoder/        the model that all descriptions share
    ttt/            TTT layers and their kernels

A new family is a new module of families/. Imports ops; imported by the trainer and, without torch, by the launcher.
"""
