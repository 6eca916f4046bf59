"""Families: one file per kind of model. A third party's file is used in the same way, through the entry-point group `meshwise.families`.

    dense.py             attention and one feed-forward per layer: Llama, Qwen, Gemma, GPT-2, BLOOM, ...
    moe.py               mixtures of experts: Mixtral, Qwen MoE, gpt-oss, Llama 4
    mla.py               multi-head latent attention: DeepSeek V2, V3, R1
    ssm.py               Mamba-2 and its hybrids; linear_attention.py  Qwen3-Next; ttt.py  TTT-Linear and TTT-MLP
    blocks.py            shared parts: attention, feed-forward, experts, assemble(); no family itself

A family is a module with
    model_types          the HF model types that it reads
    read(config)         a checked config.json -> Body
and, if llama.cpp runs its models,
    gguf                 tuple of Architecture: llama.cpp's names for them, and how its converter stores them
    tensor_names         llama.cpp's names for the weights of the family's own Ops
Imports architecture, config, op. Imported by model.py (through entry points) and tensors.py.
"""
