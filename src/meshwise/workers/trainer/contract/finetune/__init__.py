"""trainer.contract.finetune: what a fine-tuning run trains. No torch, so that launchers may import it.

method.py          FinetuneMethod: the method, rank and targets of a run
targets.py         linear layers by HF's names, and the parameters in them
adapter_config.py  adapters in PEFT's format: adapter_config.json, names and shapes
"""
