"""trainer.data: the samples of each step. samples.py reads the tokens of a step's batch, from token files or the embedded text; batches.py
is a thread that reads ahead."""
