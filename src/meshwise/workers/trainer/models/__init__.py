"""trainer.models: the architectures the trainer builds.

families/      one module per family: its description and storage (no torch)
conversion.py  parameters out of HF's stored tensors, and back
base.py        head and tied embedding, protocols; build(), styles and predictor by config
linear.py      AdaptedLinear: a frozen linear layer, in 16 bits or nf4, with a LoRA or DoRA adapter
decoder/       the model that all descriptions share
ttt/           TTT layers and their kernels
"""
