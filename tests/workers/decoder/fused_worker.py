"""Run with TRITON_INTERPRET=1: the fused layers of the transformers engine against HF's own."""

import torch
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen3Config

from meshwise.workers.decoder import fused

for kind in (Qwen2Config, Qwen3Config):
    torch.manual_seed(0)
    config = kind(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=64,
        head_dim=16,  # pyright: ignore[reportCallIssue]
    )
    assert fused.supports(config)
    model = AutoModelForCausalLM.from_config(config).eval().float()
    for weight in model.parameters():
        weight.data += torch.randn_like(weight) * 0.05
    tokens = torch.randint(0, 64, (2, 68))
    with torch.no_grad():
        expected = model(tokens).logits
    own = fused.convert(model, 128)
    cache = [(torch.zeros(2, 1, 80, 16), torch.zeros(2, 1, 80, 16))]
    seen = [fused.prefill(own, tokens[:, :66], torch.arange(66).repeat(2), cache) - expected[:, 65]]
    for at, splits in ((66, 1), (67, 4)):
        seen.append(fused.decode(own, tokens[:, at], torch.full((2,), at), cache, splits) - expected[:, at])
    own.tiles = dict.fromkeys(("qkv", "out", "gate_up", "down", "head"), (8, 32, 4))
    first = [(keys[:1], values[:1]) for keys, values in cache]
    seen.append(fused.decode(own, tokens[:1, 67], torch.tensor([67]), first, 4) - expected[:1, 67])
    print(kind.__name__, max(float(one.abs().max()) for one in seen) < 1e-5)
