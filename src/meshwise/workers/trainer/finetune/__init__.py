"""trainer.finetune: fine-tuning, where most weights are frozen.

    linear.py    AdaptedLinear: a frozen linear layer, in 16 bits or nf4, with a LoRA or DoRA adapter
    attach.py    replaces layers of a model, marks what trains, initializes adapters
    sharding.py  how tensor parallelism cuts an adapted layer
    adapter_files.py   adapters in PEFT's format: their values, in and out

Imports contract, ops, models and hf. Imported by the trainer.
"""
