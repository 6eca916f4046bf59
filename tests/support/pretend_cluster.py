"""A cluster that is not there: `torchrun`, as exported scripts call it, prints the log of torchtitan for the layout in plan.json.

The hidden truth: steps take 1.3 times the prediction, 3 times with a pipeline; micro-batches of 8 and more run out of memory. The
file `faults` beside the program makes it misbehave: one word for each run, in order.
"""

import json
import os
import stat
import sys
import time
from pathlib import Path

STEPS = 8


def install(folder: Path, faults: str = "") -> Path:
    """Write the program `torchrun` into a folder, and return the folder, for PATH."""
    program = folder / "torchrun"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -S {__file__} "{folder}" "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    (folder / "faults").write_text(faults)
    return folder


def seconds(layout: dict[str, int | str], predicted: float) -> float:
    """Return the hidden time of a step."""
    return predicted * (3.0 if int(layout["pp"]) > 1 else 1.3) * (1 + 0.01 * (int(layout["mbs"]) % 3))


def main(folder: Path) -> int:
    plan = json.loads(Path("plan.json").read_text())
    best, ask = plan["choices"][0], plan["ask"]
    with (folder / "started").open("a") as file:
        file.write(f"{Path.cwd().name}\n")
    number = int(Path.cwd().name.rpartition("-")[2])
    faults = (folder / "faults").read_text().split()
    fault = faults[number - 1] if number <= len(faults) else "none"
    if fault == "crash":
        print("RuntimeError: NCCL error in: ncclCommInitRank, unhandled system error", file=sys.stderr)
        return 1
    if fault == "sleep":
        time.sleep(600)
    if fault == "noise":
        print("hello, world\nnothing to read here")
        return 0
    if fault == "none" and int(best["layout"]["mbs"]) >= 8:
        print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", file=sys.stderr)
        return 1
    step = seconds(best["layout"], best["seconds"])
    step *= 1e-6 if fault == "impossible" else 1
    devices = best["devices"] // 2 if fault == "fewer" else best["devices"]
    rate = ask["batch"] * ask["seq"] / step / devices
    layout = best["layout"]
    axes = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
    sizes = [layout[axis] // (2 if fault == "fewer" and axis == "dp_shard" else 1) for axis in axes]
    print(f"[titan] INFO - Building 5-D device mesh with {list(axes)}, {sizes}")
    print(
        f"[titan] INFO - Trainer: local batch size 1, global batch size {ask['batch']}, sequence length {ask['seq']}, total steps 8"
    )
    for number in range(1, STEPS + 1):
        gib = best["memory"] / 2**30
        print(
            f"step: {number:2}  loss: 11.{90 - number}  memory: {gib:.2f}GiB(50.00%)  tps: {rate:,.0f}  tflops: 1.00  mfu: 1.00%"
        )
    return 0


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main(Path(sys.argv[1])))
