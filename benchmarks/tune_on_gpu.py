"""`tune` over micro-batch, recompute, compile and precision of meshwise's trainer on one GPU, against an exhaustive sweep.

    python benchmarks/tune_on_gpu.py --out $OUT --known earlier/tune_on_gpu.json        # two models on an H200
    python benchmarks/tune_on_gpu.py --device cpu --on 1x1xcpu --try compile=no --model llama-debug:4x64:1..4

`tune` runs its loop for real: its launch command hands a run to a server, as `sbatch` does, and waits for the run's files. The server has
imported torch and forks a worker for each run, since starting Python and torch twice takes longer than the steps. The candidates that
`tune` leaves out are then measured by the same server. The result is the time of the layout that `tune` ends with over the fastest of all.
Times in --known, the result of an earlier session that was cut short, are not measured again by the sweep.
"""

import argparse
import json
import multiprocessing
import os
import shlex
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import meshwise
from meshwise.plan.fields import given
from meshwise.run.train import launch
from meshwise.tune.ask import TuneAsk
from meshwise.tune.loop.course import tune
from meshwise.tune.loop.launch import LOG, Job
from meshwise.tune.loop.training import Training
from meshwise.workers.trainer.ranks.parent import die_with
from meshwise.workers.trainer.settings import Settings

MODELS = ("llama-125m:32x1024:8..16", "llama-3.2-1b:16x2048:4..8")
"""Model, batch, and micro-batches to try."""
OPTIONS = "compile=no,yes precision=bf16,fp8"
LONGEST = 120.0
"""Seconds of a run, at most."""

Times = dict[str, dict[str, float | None]]
"""Seconds by candidate, for each model with its batch."""


def train_in(folder: Path) -> None:
    """Train with the settings in a folder, in this process, which was forked."""
    from meshwise.workers.trainer.loop import train

    os.environ.update({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0"})
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(20000 + os.getpid() % 20000)})
    with (folder / LOG).open("w") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
        train(Settings.read(folder / "settings.json"))


def serve(queue: Path) -> None:
    """Run the folders that are written into a pipe, one after another, each in a process of its own."""
    from meshwise.workers.trainer import loop as _  # noqa: F401  # so that no child has to import torch; nothing here touches the GPU

    die_with(os.getppid())
    while True:
        with queue.open() as lines:
            folders = [Path(line.strip()) for line in lines if line.strip()]
        for folder in folders:
            (folder / "started").touch()
            child = multiprocessing.get_context("fork").Process(target=train_in, args=(folder,))
            child.start()
            child.join(LONGEST)
            if child.is_alive():
                child.kill()
                child.join()
            (folder / "ended").write_text(f"{abs(child.exitcode or 0)}\n")


class Queued(Training):
    """The trainer's candidates, run by the server instead of processes of `meshwise run`."""

    queue = Path("queue")

    def prepare(self, row: int, number: int, folder: Path) -> Job:
        super().prepare(row, number, folder)
        (folder / "out").mkdir(exist_ok=True)
        launch.prepare(self.own_run(row, folder)).settings.write(folder / "settings.json")
        return self.job(row, number, folder)

    def job(self, row: int, number: int, folder: Path) -> Job:
        return Job(folder, f"echo {shlex.quote(str(folder))} > {shlex.quote(str(self.queue))}")


def measure(subject: Queued, row: int, folder: Path) -> float | None:
    """Return the seconds of a step of one candidate; None where its run fails."""
    job = subject.prepare(row, 1, folder)
    job.start()
    while (end := job.look(LONGEST)) is None:
        time.sleep(0.1)
    return subject.read(row, folder, end).seconds


def compare(name: str, args: argparse.Namespace, until: float, known: Times) -> dict[str, Any]:
    """Tune one model, measure every other candidate, those that are predicted to be fast first, and compare. No measurement begins after
    `until`; what is left then is listed."""
    model, batch, sizes = name.split(":")
    plan = meshwise.plan(model, on=args.on, batch=batch, framework="meshwise", allow=[f"mbs={sizes}"])
    folder = Path(args.folder, model).absolute()
    words = {"own": True, "runs": args.runs, "steps": args.steps, "options": args.options, "device": args.device, "gain": 0.0}
    asked = given(TuneAsk, {"what": "plan", "folder": str(folder / "tune"), **words})
    begun = time.monotonic()
    tuned = tune(Queued(plan, asked), asked, say=print, answer=input)
    took = time.monotonic() - begun
    subject = Queued(plan, asked)
    times: dict[str, float | None] = {**known.get(name, {}), **{run.name: run.measured for run in tuned.runs}}
    left: list[str] = []
    for row in subject.space.seconds.argsort().tolist():
        text = subject.space.words(row)
        if text in times:
            continue
        if time.monotonic() > until:
            left.append(text)
            continue
        times[text] = measure(subject, row, folder / f"sweep-{row:03d}")
        print(f"sweep  {text}: {times[text]}", flush=True)
    best = min((value, text) for text, value in times.items() if value is not None)
    found = tuned.best.seconds if tuned.best else float("nan")
    result = {
        "name": name,
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
    parser.add_argument("--known", default="", help="result of an earlier session")
    parser.add_argument("--out", default="")
    args = parser.parse_args()
    Path(args.folder).mkdir(parents=True, exist_ok=True)
    if find_spec("scipy") is None:  # a bare machine with torch: everything but the calibration at the end works
        Queued.calibrated = lambda self, folder: "no calibration: scipy is not installed"
    Queued.queue = Path(args.folder).absolute() / "queue"
    Queued.queue.unlink(missing_ok=True)
    os.mkfifo(Queued.queue)
    server = multiprocessing.get_context("fork").Process(target=serve, args=(Queued.queue,), daemon=False)
    server.start()
    earlier: list[dict[str, Any]] = json.loads(Path(args.known).read_text(encoding="utf-8")) if args.known else []
    known: Times = {entry.get("name", ""): entry["seconds"] for entry in earlier}
    results: list[dict[str, Any]] = []
    begun = time.monotonic()
    try:
        for number, name in enumerate(args.model, 1):
            results.append(compare(name, args, begun + args.limit * number / len(args.model), known))
            if args.out:
                Path(args.out, "tune_on_gpu.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    finally:
        server.kill()


if __name__ == "__main__":
    main()
