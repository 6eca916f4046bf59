"""The loop on one GPU: a probe, runs to fit to, runs to test on. Rows go to $OUT; `loop_report.py` scores the predictions.

    python benchmarks/accuracy/loop_h200.py [probe] [fit] [test]        (all three where none is named; needs only torch)

Every run is a separate process of the trainer, so that none reuses the memory or the compiled code of another.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from meshwise.workers.trainer.contract.settings import Layout, Settings

ROOT = Path(__file__).parents[2]
OUT = Path(os.environ.get("OUT", "loop"))
LLAMA_125M = {
    "model_type": "llama", "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12,
    "num_key_value_heads": 12, "vocab_size": 50257, "tie_word_embeddings": True, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
}  # fmt: skip
PARAMS_125M = 1.0 * 12 * (4 * 768**2 + 3 * 768 * 2048 + 2 * 768) + 50257 * 768 + 768
"""Parameters of LLAMA_125M, which is not a preset: the count shows that its head is tied."""
STEPS = 14
LONGEST = 150
"""Seconds of one run, compiling included."""

Shape = tuple[int, int, int, str]
"""Sequences, their length, micro-batch, recompute."""
FIT: dict[str, list[Shape]] = {
    "llama-125m": [(16, 2048, 16, "none")],
    "llama-3.2-1b": [(8, 2048, 8, "none")],
    "ttt-linear-125m": [(8, 1024, 8, "none")],
}
TEST: dict[str, list[Shape]] = {
    "llama-125m": [(16, 1024, 16, "none"), (8, 2048, 8, "none"), (32, 512, 32, "none")],
    "llama-3.2-1b": [(4, 2048, 4, "none"), (8, 1024, 8, "none"), (2, 4096, 2, "none")],
    "llama-3-8b": [(2, 1024, 2, "full"), (2, 2048, 2, "full"), (1, 4096, 1, "full")],
    "ttt-linear-125m": [(16, 1024, 16, "none"), (8, 2048, 8, "none"), (32, 512, 32, "none")],
}
"""None of these is a shape of FIT."""


def config_of(name: str) -> dict[str, Any]:
    if name == "llama-125m":
        return LLAMA_125M
    values = json.loads((ROOT / f"src/meshwise/data/models/{name}.json").read_text(encoding="utf-8"))
    return {key: value for key, value in values.items() if key != "meshwise"}


def settings_of(name: str, shape: Shape, out: Path) -> Settings:
    batch, seq, mbs, recompute = shape
    known = {f.name for f in fields(Settings)}
    options = {name: value for name, value in {"compile": True, "graph": True}.items() if name in known}
    options |= json.loads(os.environ.get("LOOP_OPTIONS", "{}"))
    return Settings(
        name=name,
        model=config_of(name),
        layout=Layout(mbs=mbs, recompute=recompute),
        batch=batch,
        seq=seq,
        steps=STEPS,
        lr=3e-4,
        device=os.environ.get("LOOP_DEVICE", "cuda"),
        out=str(out),
        facts={"gpu": os.environ.get("LOOP_CHIP", "h200")} | ({"params": PARAMS_125M} if name == "llama-125m" else {}),
        **options,
    )


def probe(seconds: float) -> None:
    began = time.monotonic()
    device = os.environ.get("LOOP_DEVICE", "cuda")
    command = [sys.executable, "-m", "meshwise.workers.probe", str(OUT / "probe.jsonl"), f"{seconds:g}", device]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3 * seconds + 60, check=False)
    outcome = "done" if done.returncode == 0 else f"FAILED: {done.stderr.strip()[-400:]}"
    print(f"probe: {outcome}, {time.monotonic() - began:.1f} s", flush=True)


def run(part: str, name: str, shape: Shape) -> None:
    """Run the trainer once; append its row to PART.jsonl with the name of the model and the shape."""
    label = "x".join(map(str, shape[:3])) + ("-full" if shape[3] == "full" else "")
    folder = OUT / "runs" / f"{part}-{name}-{label}"
    folder.mkdir(parents=True, exist_ok=True)
    settings = settings_of(name, shape, folder)
    settings.write(folder / "config.json")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    began = time.monotonic()
    try:
        command += ["-m", "meshwise.workers.trainer", str(folder / "config.json")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, check=False)
        output, code = done.stdout + done.stderr, done.returncode
    except subprocess.TimeoutExpired:
        output, code = f"took over {LONGEST} s", 1
    took = time.monotonic() - began
    if code or not (folder / "measurement.jsonl").is_file():
        (folder / "log.txt").write_text(output, encoding="utf-8")
        reason = next((line for line in reversed(output.splitlines()) if "Error" in line), output.strip()[-200:])
        print(f"{part} {name:<16} {label:<16} FAILED after {took:.0f} s: {reason.strip()[:300]}", flush=True)
        return
    row = json.loads((folder / "measurement.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    row |= {"row_id": f"{part}-{name}-{label}", "layout": asdict(settings.layout), "gpu": settings.facts["gpu"], "date": ""}
    with (OUT / f"{part}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    seconds, memory = float(row["sec_per_iter"]), float(row["mem_gb"])
    rate = shape[0] * shape[1] / seconds
    print(f"{part} {name:<16} {label:<16} {seconds:9.5f} s {rate:>10,.0f} tok/s {memory:8.3f} GiB  ({took:.0f} s)", flush=True)


def main() -> None:
    parts = sys.argv[1:] or ["probe", "fit", "test"]
    only = os.environ.get("LOOP_ONLY", "")
    began, longest = time.monotonic(), float(os.environ.get("LOOP_SECONDS", "3000"))
    OUT.mkdir(parents=True, exist_ok=True)
    if "probe" in parts:
        probe(float(os.environ.get("LOOP_PROBE", "70")))
    for part, shapes in (("fit", FIT), ("test", TEST)):
        for name, model_shapes in shapes.items() if part in parts else ():
            for shape in model_shapes if name in (only or name).split(",") else ():
                if time.monotonic() - began < longest:
                    run(part, name, shape)
                else:
                    print(f"{part} {name} {shape}: no time left", flush=True)


if __name__ == "__main__":
    main()
