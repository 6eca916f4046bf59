"""contract.finetune: method.py (the method, rank and targets of a run), targets.py (linear layers by HF's names) and adapter_config.py
(adapters in PEFT's format, without their values)."""
