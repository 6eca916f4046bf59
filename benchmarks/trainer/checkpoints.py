"""Cost of checkpoints, and recovery from a killed worker: `python benchmarks/trainer/checkpoints.py [cpu|cuda] [seconds]`.

Trains a Llama of 125M parameters with a checkpoint every ten steps, prints the median and the longest steps,
then kills the worker of a second run and prints how the run recovered.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

SIZES = {
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
}
MODEL = {"model_type": "llama", "vocab_size": 32000, "initializer_range": 0.02} | SIZES
PROGRAM = "import sys; from meshwise.ui.cli.main import main; sys.argv[0] = 'meshwise'; main()"
EVERY = 10


def start(folder: Path, device: str, steps: int) -> "subprocess.Popen[bytes]":
    model = folder / "model.json"
    model.write_text(json.dumps(MODEL))
    batch = ["--batch", "8", "--seq", "2048" if device == "cuda" else "64"]
    arguments = ["run", str(model), "--device", device, *batch, "--steps", str(steps), "--checkpoint-every", str(EVERY)]
    command = [sys.executable, "-c", PROGRAM, *arguments, "--out", str(folder / "run")]
    with (folder / "log").open("w") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def rows(folder: Path) -> list[dict[str, float]]:
    path = folder / "run" / "steps.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def children(pid: int) -> list[int]:
    return [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]


def show(folder: Path, code: int) -> None:
    print(f"exit {code}", flush=True)
    print("\n".join(line[:200] for line in (folder / "log").read_text().splitlines() if not line.startswith("step ")), flush=True)


def main(device: str, limit: float) -> None:
    with TemporaryDirectory() as name:
        run = start(Path(name), device, 50)
        show(Path(name), run.wait(limit))
        seconds = [row["seconds"] for row in rows(Path(name))]
        longest = sorted((round(each, 3) for each in seconds[2:]), reverse=True)[:5]
        print(f"median step {statistics.median(seconds):.4f} s; the longest: {longest}")
    with TemporaryDirectory() as name:
        run, end = start(Path(name), device, 400), time.monotonic() + limit
        while len(rows(Path(name))) < 25 and time.monotonic() < end and run.poll() is None:
            time.sleep(0.05)
        if run.poll() is None:
            os.kill(children(children(run.pid)[0])[0], signal.SIGKILL)
        while len(rows(Path(name))) < 30 and time.monotonic() < end and run.poll() is None:
            time.sleep(0.05)
        run.send_signal(signal.SIGTERM)
        show(Path(name), run.wait(limit))
        steps = [int(row["step"]) for row in rows(Path(name))]
        print(f"{len(steps)} steps, each once: {steps == list(range(len(steps)))}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu", float(sys.argv[2]) if len(sys.argv) > 2 else 240.0)
