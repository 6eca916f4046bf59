"""workers: the programs that run on GPU machines, on torch and the standard library alone.

    trainer/  trains a model, one process per device, started by torchrun
    decoder/  times prefill and decode of an HF model (also needs transformers)
    probe/    times a machine's devices and links
    local.py, store.py, secret.py, tool.py: what they share: ranks of one machine, their store, signatures, what tools print

They import nothing else of meshwise but its printing, so that a worker starts on any machine with torch. The other packages start these
programs as processes, and import only what has no torch: the trainer's contract, and settings and rows.
"""
