"""Run by each of two ranks: a sharded model against the whole one. Writes what it found as JSON, one file per rank."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from meshwise.workers.decoder.session import build
from meshwise.workers.decoder.settings import Job


def run(job: Job) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Logits of a prompt and of two steps, the tokens chosen, and the weights that this process holds."""
    timed: Any = build(job)
    tokens = torch.randint(64, (2, 9), generator=torch.Generator().manual_seed(1))
    cache, logits, chosen = timed._cache(12), [], []
    with torch.no_grad():
        logits.append(timed._read(tokens, cache))
        for at in range(9, 11):
            chosen.append(logits[-1].argmax(-1)[:, None])
            places = torch.full((2, 1), at)
            logits.append(timed.model(input_ids=chosen[-1], position_ids=places, past_key_values=cache).logits[:, -1])
    held = sum(getattr(weight, "to_local", lambda weight=weight: weight)().numel() for weight in timed.model.parameters())
    return torch.stack(logits), torch.cat(chosen), held


def main() -> None:
    job = Job.read(Path(sys.argv[1]))
    found: dict[str, object] = {}
    for kind in ("llama", "qwen3"):
        job = replace(job, model=job.model | {"model_type": kind})
        whole, alone, total = run(replace(job, tp=1))
        sharded, together, part = run(job)
        found[kind] = [bool((sharded - whole).abs().max() < 1e-5), torch.equal(alone, together), part < 0.6 * total]
    try:
        build(replace(job, model={"model_type": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 64}))
    except ValueError as error:
        found["gpt2"] = str(error)
    Path(sys.argv[1]).with_name(f"{os.environ['RANK']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
