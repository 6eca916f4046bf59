"""`tune` over micro-batch, recompute, compile and precision of meshwise's trainer on one GPU, against an exhaustive sweep.

    python benchmarks/tune_on_gpu.py --out $OUT        # two models on an H200, under five minutes
    python benchmarks/tune_on_gpu.py --device cpu --on 1x1xcpu --try compile=no --model llama-debug:4x64:1..4

`tune` runs its loop for real: each of its runs is a process of `meshwise run`. The candidates that it leaves out are then measured as
well, by the same worker with the same settings, forked from one process that has imported torch, which takes as long as the steps. The
result is the time of the layout that `tune` ends with over the fastest of all.
"""

import argparse
import json
import multiprocessing
import os
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import meshwise
from meshwise.plan.fields import given
from meshwise.run.train import launch
from meshwise.run.train.ask import TrainRun
from meshwise.tune.ask import TuneAsk
from meshwise.tune.loop.training import Training
from meshwise.workers.trainer.report.rows import read_rows
from meshwise.workers.trainer.settings import Settings

MODELS = ("llama-125m:32x1024:8..16", "llama-3.2-1b:16x2048:4..8")
"""Model, batch, and micro-batches to try."""
OPTIONS = "compile=no,yes precision=bf16,fp8"


def worker(settings: Path) -> None:
    """Train with given settings in this process, which was forked."""
    from meshwise.workers.trainer.loop import train

    with (settings.parent / "output.txt").open("w") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
        train(Settings.read(settings))


def measure(settings: Settings, folder: Path) -> float | None:
    """Return the seconds of a step; None where the run fails."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = replace(settings, out=str(folder))
    settings.write(folder / "settings.json")
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0"}
    os.environ.update(rank | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(20000 + int(time.time()) % 20000)})
    child = multiprocessing.get_context("fork").Process(target=worker, args=(folder / "settings.json",))
    child.start()
    child.join(300)
    if child.is_alive():
        child.kill()
    rows = read_rows(folder / "measurement.jsonl")
    return float(rows[-1]["sec_per_iter"]) if rows else None


def compare(name: str, args: argparse.Namespace, until: float) -> dict[str, Any]:
    """Tune one model, measure every other candidate, those that are predicted to be fast first, and compare. No measurement begins after
    `until`; what is left then is listed."""
    model, batch, sizes = name.split(":")
    plan = meshwise.plan(model, on=args.on, batch=batch, framework="meshwise", allow=[f"mbs={sizes}"])
    folder = Path(args.folder, model)
    words = {"own": True, "runs": args.runs, "steps": args.steps, "options": args.options, "device": args.device}
    begun = time.monotonic()
    tuned = meshwise.tune(plan, folder=str(folder / "tune"), gain=0.0, **words)
    took = time.monotonic() - begun
    subject = Training(plan, given(TuneAsk, {"what": "plan", "folder": str(folder), **words}))
    times = {run.name: run.measured for run in tuned.runs}
    left: list[str] = []
    for row in subject.space.seconds.argsort().tolist():
        text = subject.space.words(row)
        if text in times:
            continue
        if time.monotonic() > until:
            left.append(text)
            continue
        options = subject.space.options(row)
        run = TrainRun(
            what=str(subject.plan_of(row).save(Path(args.folder, "plan.json"))),
            steps=args.steps,
            device=args.device,
            compile=options["compile"] == "yes" if "compile" in options else None,
            precision=options.get("precision", ""),
        )
        times[text] = measure(launch.prepare(run).settings, folder / f"sweep-{row:03d}")
        print(f"sweep  {text}: {times[text]}", flush=True)
    best = min((value, text) for text, value in times.items() if value is not None)
    found = tuned.best.seconds if tuned.best else float("nan")
    result = {
        "model": model,
        "batch": batch,
        "candidates": len(subject.space),
        "not_measured": left,
        "runs": [vars(run) for run in tuned.runs],
        "seconds": times,
        "tuned": tuned.best.name if tuned.best else "",
        "tuned_seconds": found,
        "best": best[1],
        "best_seconds": best[0],
        "regret": found / best[0] - 1,
        "gain_left": tuned.gain,
        "tune_took": took,
        "took": time.monotonic() - begun,
    }
    print(
        f"{model}: tuned {result['tuned']} {found:.5f} s, best of {len(times)} {best[1]} {best[0]:.5f} s, regret {result['regret']:.2%}"
    )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", nargs="*", default=list(MODELS), metavar="MODEL:BATCH:SIZES")
    parser.add_argument("--on", default="1x1xh200")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--try", dest="options", default=OPTIONS)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--limit", type=float, default=250.0, help="seconds after which no measurement begins")
    parser.add_argument("--folder", default="build/tune_on_gpu")
    parser.add_argument("--out", default="")
    args = parser.parse_args()
    Path(args.folder).mkdir(parents=True, exist_ok=True)
    if find_spec("scipy") is None:  # a bare machine with torch: everything but the calibration at the end works
        Training.calibrated = lambda self, folder: "no calibration: scipy is not installed"
    # imported before the first fork, so that no child has to; nothing here touches the GPU
    from meshwise.workers.trainer import loop as _  # noqa: F401

    results: list[dict[str, Any]] = []
    begun = time.monotonic()
    for number, name in enumerate(args.model, 1):
        results.append(compare(name, args, begun + args.limit * number / len(args.model)))
        if args.out:
            Path(args.out, "tune_on_gpu.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
