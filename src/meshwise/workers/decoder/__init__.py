"""Prefill and decode of an HF config on one GPU, for measuring it. Needs torch and transformers; imports nothing else of meshwise."""
