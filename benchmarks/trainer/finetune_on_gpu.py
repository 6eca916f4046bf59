"""Fine-tuning on one GPU in one command: `python benchmarks/trainer/finetune_on_gpu.py [CASE...]` on the GPU machine.

Every case is a process of its own with a timeout: the trainer's step, timed by `train.py`. Prints a line per case and a JSON of
all at the end, also if a case fails or the time is up; $OUT/finetune.json has it too. NAME:profile lists the longest kernels of a step.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import train

LIMIT = float(os.environ.get("LIMIT", "330"))
"""Seconds after which no case starts."""
EACH = float(os.environ.get("EACH", "110"))
"""Most seconds of a case."""


def adapters(method: str, rank: int = 16) -> dict[str, Any]:
    return {"finetune": {"method": method, "rank": rank, "alpha": 2.0 * rank, "targets": ["all-linear"]}}


FROZEN_EMBEDDING: dict[str, Any] = {"finetune": {"method": "freeze", "frozen_layers": 0}}
CASES: dict[str, tuple[str, int, int, dict[str, Any]]] = {
    "8b-lora": ("llama-3-8b", 4, 2048, adapters("lora")),
    "8b-lora-checkpointing": ("llama-3-8b", 4, 2048, adapters("lora") | {"recompute": "full"}),
    "8b-qlora-checkpointing": ("llama-3-8b", 2, 1024, adapters("qlora") | {"recompute": "full"}),
    "1b-full": ("llama-3.2-1b", 4, 1024, {}),
    "1b-lora": ("llama-3.2-1b", 8, 1536, adapters("lora")),
    "qwen3-1.7b-lora": ("qwen3-1.7b", 4, 1536, adapters("lora")),
    "qwen3-1.7b-frozen-embedding": ("qwen3-1.7b", 4, 1536, FROZEN_EMBEDDING),
    "bloom-560m-lora": ("bloom-560m", 8, 1024, adapters("lora")),
    "8b-dora": ("llama-3-8b", 4, 2048, adapters("dora")),
    "8b-qlora": ("llama-3-8b", 4, 2048, adapters("qlora")),
    "mistral-7b-lora": ("mistral-7b", 2, 4096, adapters("lora")),
    "mistral-7b-dora": ("mistral-7b", 2, 4096, adapters("dora")),
    "qwen3-14b-qlora": ("qwen3-14b", 2, 2048, adapters("qlora") | {"recompute": "full"}),
}
MUST = {
    "8b-lora": "must 16,000 tok/s, aim 18,000",
    "8b-lora-checkpointing": "must 12,500 tok/s in 20 GiB",
    "8b-qlora-checkpointing": "must stay below 24 GiB",
}


def measured(name: str, left: float) -> dict[str, Any]:
    """Return tokens/s and memory of a case, or why it has none."""
    label, _, profile = name.partition(":")
    model, batch, seq, options = CASES[label]
    given = [model, batch, seq, options | ({"profile": True} if profile else {})]
    command = [sys.executable, train.__file__, "--one", json.dumps(given)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=max(20.0, min(left, EACH)), check=False)
    except subprocess.TimeoutExpired:
        return {"failed": "it took longer than its time"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        (Path(os.environ.get("OUT", ".")) / f"{label}.log").write_text(done.stdout + done.stderr, encoding="utf-8")
        return {"failed": (done.stderr.strip().splitlines() or ["?"])[-1][:500]}
    row = json.loads(lines[-1].removeprefix("RESULT "))
    return {"model": model, "batch": batch, "seq": seq, **row, "tokens_per_s": round(batch * seq / row["seconds"])}


def main() -> None:
    began, rows = time.monotonic(), dict[str, Any]()
    out = Path(os.environ.get("OUT", "."))
    for name in sys.argv[1:] or CASES:
        left = LIMIT - (time.monotonic() - began)
        row: dict[str, Any] = measured(name, left) if left > 0 else {"failed": "no time left"}
        rows[name] = row
        (out / "finetune.json").write_text(json.dumps(rows), encoding="utf-8")
        if "failed" in row:
            print(f"{name:<28} failed: {row['failed']}", flush=True)
            continue
        print(
            f"{name:<28}{row['tokens_per_s']:>9,} tok/s  {row['seconds']:.4f} s  {row['memory']:>6.2f} GiB (at start "
            f"{row['memory_at_start']:.2f}, held {row['memory_held']:.2f})  first {row['first']:.0f} s  "
            f"{MUST.get(name.partition(':')[0], '')}  {row['loss']}",
            flush=True,
        )
        for part, milliseconds in row.get("parts", {}).items():
            print(f"    {milliseconds:>8.2f} ms  {part}")
    print(json.dumps({name: {key: row[key] for key in row if key != "parts"} for name, row in rows.items()}))


if __name__ == "__main__":
    main()
