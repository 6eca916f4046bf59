"""Test-time training (arXiv:2407.04620): a small model per head that learns while it reads.

    model.py              Llama's structure with a learner instead of attention
    learner.py            projections and learning rates that every learner has
    linear.py mlp.py      the two learners, TTT-Linear and TTT-MLP, in plain PyTorch
    decode.py             one token at a time; fast_decode.py: by kernels; predictor.py: chooses
    dispatch.py           whether the kernels support a layer
    kernels/              Triton kernels of both learners

Words: a sequence is read in mini-batches of tokens. `rate` is the learning rate of each token, `place` the learning-rate factor of each
position in a mini-batch.
"""
