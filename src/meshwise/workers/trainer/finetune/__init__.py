"""trainer.tuning: fine-tuning, where most weights are frozen.

    method.py    Tune: the method, rank and targets of a run (no torch)
    targets.py   linear layers by HF's names, and the parameters in them (no torch)
    linear.py    AdaptedLinear: a frozen linear layer, in 16 bits or nf4, with a LoRA or DoRA adapter
    attach.py    replaces layers of a model, marks what trains, initializes adapters
    sharding.py  how tensor parallelism cuts an adapted layer
    adapter_config.py  adapters in PEFT's format: adapter_config.json, names and shapes (no torch)
    adapter_files.py   adapters in PEFT's format: their values, in and out

Imports ops, models and hf. Imported by the trainer and, without torch, by the launcher.
"""
