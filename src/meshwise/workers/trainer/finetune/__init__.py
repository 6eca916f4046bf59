"""trainer.finetune: fine-tuning, where most weights are frozen.

attach.py         replaces layers of a model, marks what trains, initializes adapters
sharding.py       how tensor parallelism cuts an adapted layer
adapter_files.py  adapters in PEFT's format: their values, in and out
"""
