"""contract.models: description.py (everything in which decoders differ), keys.py (keys of config.json that most families share), tensors.py
(parameters, and how HF's files store them) and registry.py (Family; lookup by model_type)."""
