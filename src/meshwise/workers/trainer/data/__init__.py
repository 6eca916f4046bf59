"""trainer.data: the samples of each step.

    grammar.py  the embedded text: sentences of a small grammar (no torch)
    order.py    the shuffled order of samples, computed and not stored (no torch)
    samples.py  the tokens of a step's batch, from token files or the embedded text
    batches.py  a thread that reads batches ahead

Imports trainer.settings and trainer.parallel. Imported by the training loop; grammar.py also by run.text.
"""
