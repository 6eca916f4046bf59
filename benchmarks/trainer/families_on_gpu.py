"""The trainer's families on one GPU in one command: `python benchmarks/trainer/families_on_gpu.py [CASE...]` on the GPU machine.

Every case is one of `train.py`, in a process of its own. Prints a line per case and a JSON of all at the end, also if a case fails
or the time is up; $OUT/families.json has it too. Cases come in the order of their weight, so that the last ones are missed first.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import train

LIMIT = float(os.environ.get("LIMIT", "530"))
"""Seconds after which no case starts."""
MUST: dict[str, float] = {"1b": 72_000, "125m": 490_000, "ttt-16x128": 285_000, "qwen3-1.7b": 50_000, "olmoe-1b-7b": 50_000}
"""Tokens/s that issue 23 asks for."""
PAIRS = {"qwen3-0.6b": 0.95, "gemma-2-2b": 0.95, "bloom-560m": 0.85}
"""Least share of the peak by 6N of a family, relative to the Llama of the same FLOPs (case name with -llama)."""
ORDER = (
    "1b", "qwen3-1.7b", "bloom-560m", "bloom-560m-llama", "gemma-2-2b", "gemma-2-2b-llama", "qwen3-0.6b", "qwen3-0.6b-llama",
    "olmoe-1b-7b", "8b", "8b-fp8", "125m", "ttt-16x128", "gemma-3-1b", "gpt2",
)  # fmt: skip


def measured(name: str, left: float) -> dict[str, Any]:
    """Return tokens/s, 6N over the peak and memory of a case, or why it has none."""
    label, _, extra = name.partition(":")
    model, batch, seq, options = train.CASES[label]
    options = options | json.loads(extra or "{}")
    found = Path(os.environ.get("OUT", ".")) / "flex.json"
    if found.is_file() and label.startswith("gemma"):
        options["tiles"] = json.loads(found.read_text(encoding="utf-8"))["tiles"]
    batch, seq = options.pop("batch", batch), options.pop("seq", seq)
    command = [sys.executable, train.__file__, "--one", json.dumps([model, batch, seq, options])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=max(60.0, left), check=False)
    except subprocess.TimeoutExpired:
        return {"failed": "it took longer than the time that was left"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        (Path(os.environ.get("OUT", ".")) / f"{label}.log").write_text(done.stdout + done.stderr, encoding="utf-8")
        return {"failed": (done.stderr.strip().splitlines() or ["?"])[-1][:500]}
    row = json.loads(lines[-1].removeprefix("RESULT "))
    rate = batch * seq / row["seconds"]
    active = row.get("active", row["params"])
    return row | {"tokens_per_s": round(rate), "mfu": round(6 * active * rate / train.PEAK, 4), "memory": round(row["memory"], 1)}


def main() -> None:
    began, rows = time.monotonic(), dict[str, Any]()
    names = sys.argv[1:] or [name for name in ORDER if name in train.CASES]
    for name in names:
        left = LIMIT - (time.monotonic() - began)
        rows[name] = measured(name, left) if left > 0 else {"failed": "no time left"}
        row = rows[name]
        if "failed" in row:
            print(f"{name:<18} failed: {row['failed']}", flush=True)
            continue
        must = f"must {MUST[name]:,.0f}" if name in MUST else ""
        print(
            f"{name:<18}{row['tokens_per_s']:>10,} tok/s  6N {row['mfu']:.1%}  {row['memory']:>6} GiB  first {row['first']:.0f} s  "
            f"{must}  {row.get('loss', '')}",
            flush=True,
        )
        for part, milliseconds in row.get("parts", {}).items():
            print(f"    {milliseconds:>8.2f} ms  {part}")
    for name, least in PAIRS.items():
        pair = [rows.get(one, {}).get("tokens_per_s") for one in (name, f"{name}-llama")]
        if all(pair):
            share = rows[name]["mfu"] / rows[f"{name}-llama"]["mfu"]
            print(f"{name}: {share:.1%} of the 6N rate of its Llama, must {least:.0%}")
            rows[name]["of_llama"] = round(share, 4)
    text = json.dumps(rows)
    (Path(os.environ.get("OUT", ".")) / "families.json").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
