"""Megatron-LM: flags of pretrain_gpt.py."""
