"""trainer.models: the architectures the trainer builds, one folder each.

    registry.py  Family and Sizes; lookup by model_type (no torch)
    tensors.py   helpers for the names and shapes of HF's weights (no torch)
    base.py      head and tied embedding, protocols; build(), styles and predictor by config
    bloom/ gpt2/ llama/ ttt/
        family.py    FAMILY: sizes, unsupported configs, expected tensors (no torch)
        model.py     the nn.Modules, with HF's parameter names
        sharding.py  how tensor and sequence parallelism cut them; a recurrent family has predictor.py instead

A new family is a new folder whose family.py defines FAMILY. Imports ops; imported by the trainer and, without torch, by the launcher.
"""
