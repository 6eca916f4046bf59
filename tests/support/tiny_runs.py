"""Tiny models, and runs of them, that the trainer's tests share."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshwise.workers.trainer.contract.rows import Step
from meshwise.workers.trainer.contract.settings import Layout, Settings
from support.nursery import Nursery

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.1,
}
TIED = LLAMA | {"tie_word_embeddings": True}
DEEPSEEK: dict[str, Any] = LLAMA | {
    "model_type": "deepseek_v3",
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "num_key_value_heads": 4,
    "aux_loss_alpha": 0.1,
}
WHOLE = Settings(name="tiny", model=TIED, layout=Layout(), batch=8, seq=16, steps=6, precision="fp32", checkpoint_every=3)
MANY_HEADS: dict[str, Any] = {key: value for key, value in LLAMA.items() if key != "initializer_range"} | {
    "num_attention_heads": 8
}
PLAIN = Settings(name="tiny", model=MANY_HEADS, layout=Layout(), batch=8, seq=16)


def trained(nursery: Nursery, settings: Settings, out: Path) -> str:
    """Run these settings; return its output."""
    out.mkdir(exist_ok=True)
    settings = replace(settings, out=str(out))
    settings.write(out / "config.json")
    return nursery.run("-m", "meshwise.workers.trainer", str(out / "config.json"), processes=settings.layout.devices)


def losses(nursery: Nursery, settings: Settings, out: Path, says: str = "") -> dict[int, float]:
    """Run these settings; return the loss of each step."""
    assert says in trained(nursery, settings, out)
    rows = [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()]
    return {row["step"]: row["loss"] for row in rows}


def steps(*seconds: float) -> list[Step]:
    """Steps that took these seconds, with a falling loss."""
    return [Step(i, 5.0 - i, 1.0, each, 2.0**30, {"forward": each / 4}) for i, each in enumerate(seconds)]
