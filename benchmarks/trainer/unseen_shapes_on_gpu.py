"""Predicted against measured steps of models that no coefficient was fitted to: `unseen_shapes_on_gpu.py [report FOLDER | NAME...]`.

On a GPU machine: one probe of 30 seconds, then every shape in a process of its own; rows go to $OUT/shapes.jsonl and the probe to
$OUT/probe.jsonl as they come. `report FOLDER` predicts the rows of such a folder from its probe and prints the table, on any machine.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import train

SHAPES: dict[str, list[tuple[int, int]]] = {
    "qwen3-0.6b": [(8, 1024)],
    "pythia-160m": [(16, 1024)],
    "gemma-3-1b": [(2, 4096)],
    "granite-3.3-2b": [(4, 2048)],
    "starcoder2-3b": [(2, 2048)],
    "bloom-1b1": [(8, 1024)],
    "phi-3-mini": [(2, 2048)],
    "pythia-1.4b": [(8, 1024)],
    "qwen3-1.7b": [(2, 4096)],
    "gemma-3-270m": [(16, 1024)],
}
"""Sequences and their length. No run of these models is in a fit."""
MORE: dict[str, tuple[str, int, int, dict[str, Any]]] = {
    "olmoe-1b-7b": ("olmoe-1b-7b", 4, 2048, {}),
    "llama-3-8b, fp8": ("llama-3-8b", 6, 2048, {"precision": "fp8"}),
    "ttt-mlp-125m": ("ttt-mlp-125m", 16, 512, {}),
    "ttt-mlp-350m": ("ttt-mlp-350m", 8, 512, {}),
}
"""Predicted by themselves: experts, 8 bits and TTT-MLP, which issue 23 names."""
MUST = {"time": (0.05, 0.10), "memory": (0.03, 0.06)}
"""Mean and worst error of SHAPES."""
LONGEST = 60
"""Seconds of one shape, compiling included."""


def cases() -> dict[str, tuple[str, int, int, dict[str, Any]]]:
    found = {
        f"{name} {batch}x{seq}": (name, batch, seq, dict[str, Any]()) for name, shapes in SHAPES.items() for batch, seq in shapes
    }
    return found | MORE


def measure(out: Path, names: list[str]) -> None:
    """Run the probe if there is none, and the named shapes; all of them if none is named."""
    began = time.monotonic()
    if not (out / "probe.jsonl").is_file():
        command = [sys.executable, "-m", "meshwise.workers.probe", str(out / "probe.jsonl"), "30", "cuda"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        print(f"probe: {time.monotonic() - began:.0f} s, exit {done.returncode} {done.stderr[-300:]}", flush=True)
    every = cases()
    for name in names or every:
        model, batch, seq, options = every[name]
        command = [sys.executable, train.__file__, "--one", json.dumps([model, batch, seq, options])]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, check=False)
            lines, error = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")], done.stderr
        except subprocess.TimeoutExpired:
            lines, error = [], f"took over {LONGEST} s"
        row = {"name": name} | (json.loads(lines[-1].removeprefix("RESULT ")) if lines else {"failed": error[-1500:]})
        with (out / "shapes.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        said = f"{row['seconds']:.4f} s, {row['memory']:.2f} GiB" if lines else f"failed: {error.strip().splitlines()[-1][:200]}"
        print(f"{name:<24}{said}  ({time.monotonic() - began:.0f} s)", flush=True)


def predicted(name: str, batch: int, seq: int, options: dict[str, Any]) -> tuple[float, float]:
    """Return seconds and GiB that the planner predicts for a run on the machine of the installed probe."""
    from meshwise.models.find import find_model
    from meshwise.plan.train import own_run
    from meshwise.workers.trainer.contract.settings import Layout, Settings

    precision = options.get("precision", "bf16")
    layout = Layout(mbs=batch, recompute=options.get("recompute", "none"))
    values = train.config(name)
    settings = Settings(
        name=name, model=values, layout=layout, batch=batch, seq=seq, precision=precision, device="cuda", compile=True
    )
    choice = own_run.predict(settings, find_model(name), "1xhere")
    return choice.step, choice.peak / 2**30


def report(folder: Path) -> None:
    """Print predicted against measured of every shape, and the mean and worst errors of SHAPES."""
    os.environ["MESHWISE_HOME"] = tempfile.mkdtemp()
    installed = [sys.executable, "-m", "meshwise", "probe", "--read", str(folder / "probe.jsonl")]
    subprocess.run(installed, check=True, capture_output=True)
    every, errors = cases(), dict[str, list[float]](time=[], memory=[])
    print("| shape | s/step, predicted | measured | | GiB, predicted | measured | |\n| --- | --- | --- | --- | --- | --- | --- |")
    for line in (folder / "shapes.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if "failed" in row:
            print(f"| {row['name']} | failed: {row['failed'].strip().splitlines()[-1][:100]} |")
            continue
        seconds, memory = predicted(*every[row["name"]])
        found = {"time": seconds / row["seconds"] - 1, "memory": memory / row["memory"] - 1}
        for kind, error in found.items() if row["name"] not in MORE else ():
            errors[kind].append(abs(error))
        print(
            f"| {row['name']} | {seconds:.4f} | {row['seconds']:.4f} | {found['time']:+.1%} | {memory:.2f} | {row['memory']:.2f} | "
            f"{found['memory']:+.1%} |"
        )
    for kind, (mean, worst) in MUST.items():
        size = errors[kind] or [float("nan")]
        print(f"{kind}: mean {sum(size) / len(size):.1%} (must {mean:.0%}), worst {max(size):.1%} (must {worst:.0%})")


def main() -> None:
    if sys.argv[1:2] == ["report"]:
        report(Path(sys.argv[2]))
    else:
        measure(Path(os.environ.get("OUT", ".")), sys.argv[1:])


if __name__ == "__main__":
    main()
