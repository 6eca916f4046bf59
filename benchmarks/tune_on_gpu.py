"""`tune` over micro-batch, recompute, compile and precision of meshwise's trainer on one GPU, against an exhaustive sweep.

    python benchmarks/tune_on_gpu.py --out tune.json        # two models on an H200
    python benchmarks/tune_on_gpu.py --device cpu --on 1x1xcpu --try compile=no,yes --model llama-debug:4x64:1..4

`tune` runs its loop for real: its launch command hands a run to a server, as `sbatch` does, and waits for the run's files. The server has
imported torch and forks a worker for each run, since starting Python and torch takes longer than the steps. Before anything is measured,
every compiled candidate runs two steps with two blocks, all of them side by side, which fills the compiler's cache: measured runs then take
seconds, and each of them has the machine to itself. `tune` runs for all models first; then the candidates that it left out are measured by
the same server, those that are predicted to be fast first. The result is the time of the candidate that `tune` ends with over the fastest
of all. It is written after every measurement, so that a session that is cut short keeps what it has.
"""

import argparse
import json
import multiprocessing
import os
import shlex
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import meshwise
from meshwise.plan.fields import given
from meshwise.run.train import launch
from meshwise.tune.ask import TuneAsk
from meshwise.tune.loop.course import tune
from meshwise.tune.loop.launch import LOG, Job
from meshwise.tune.loop.result import Tuned
from meshwise.tune.loop.training import Training
from meshwise.workers.trainer.ranks.parent import die_with
from meshwise.workers.trainer.settings import Settings

MODELS = ("llama-125m:32x1024:8..16", "llama-3.2-1b:8x2048:4..8")
"""Model, batch, and micro-batches to try."""
OPTIONS = "compile=no,yes precision=bf16,fp8"
LONGEST = 90.0
"""Seconds of a run, at most."""
IMPORTED = ("torch._dynamo", "torch._inductor.compile_fx", "torch._inductor.codegen.triton", "meshwise.workers.trainer.loop")
"""Modules that the server imports, so that no worker has to."""
BLOCKS, FEW_STEPS = 2, 2
"""Of the model that fills the compiler's cache: every block has the same code."""


def train_in(folder: Path) -> None:
    """Train with the settings in a folder, in this process."""
    from meshwise.workers.trainer.loop import train

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ.update({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0"})
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
    with (folder / LOG).open("w") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
        train(Settings.read(folder / "settings.json"))


def serve(queue: Path) -> None:
    """Run the folders that are written into a pipe, each in a process of its own: those of one line side by side, line after line."""
    for name in IMPORTED:
        import_module(name)
    die_with(os.getppid())
    # a process that has opened a GPU cannot hand it on
    opened = any(os.readlink(f"/proc/self/fd/{name}").startswith("/dev/nvidia") for name in _open_files())
    print(f"the server {'starts' if opened else 'forks'} a process for each run", flush=True)
    context = multiprocessing.get_context("spawn" if opened else "fork")
    while True:
        with queue.open() as lines:
            asked = [[Path(folder) for folder in line.split("\t")] for line in lines.read().splitlines()]
        for folders in asked:
            children = [context.Process(target=train_in, args=(folder,)) for folder in folders]
            for folder, child in zip(folders, children, strict=True):
                (folder / "started").touch()
                child.start()
            until = time.monotonic() + LONGEST
            for folder, child in zip(folders, children, strict=True):
                child.join(max(0.0, until - time.monotonic()))
                if child.is_alive():
                    child.kill()
                    child.join()
                (folder / "ended").write_text(f"{abs(child.exitcode or 0)}\n")


def _open_files() -> list[str]:
    return [name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")]


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


@dataclass
class Comparison:
    """One model: its tuning, and the times of its candidates."""

    name: str
    folder: Path
    subject: Queued
    ask: TuneAsk
    tuned: Tuned | None = None
    times: dict[str, float | None] = field(default_factory=dict[str, float | None])
    took: dict[str, float] = field(default_factory=dict[str, float])
    """Wall seconds of a run of each candidate, from its start to its end."""

    @staticmethod
    def of(name: str, args: argparse.Namespace) -> "Comparison":
        model, batch, sizes = name.split(":")
        plan = meshwise.plan(model, on=args.on, batch=batch, framework="meshwise", allow=[f"mbs={sizes}"])
        folder = Path(args.folder, model).absolute()
        words = {"own": True, "runs": args.runs, "steps": args.steps, "options": args.options, "device": args.device, "gain": 0.0}
        ask = given(TuneAsk, {"what": "plan", "folder": str(folder / "tune"), **words})
        return Comparison(name, folder, Queued(plan, ask), ask)

    def compiled(self) -> Iterator[Path]:
        """Yield folders with a small run of each candidate that is compiled: few blocks, few steps."""
        for row in range(len(self.subject.space)):
            if self.subject.space.options(row).get("compile") != "yes":
                continue
            folder = self.folder / f"compile-{row:03d}"
            self.subject.prepare(row, 1, folder)
            full = Settings.read(folder / "settings.json")
            small = {**full.model, "num_hidden_layers": BLOCKS}
            replace(full, model=small, steps=FEW_STEPS, out=str(folder / "out")).write(folder / "settings.json")
            yield folder

    def tune(self) -> None:
        self.tuned = tune(self.subject, self.ask, say=print, answer=input)
        self.times |= {run.name: run.measured for run in self.tuned.runs}

    def left(self) -> list[int]:
        """Return the candidates that were not measured, those that are predicted to be fast first."""
        space = self.subject.space
        return [row for row in space.seconds.argsort().tolist() if space.words(row) not in self.times]

    def measure(self, row: int) -> None:
        """Measure one candidate; None where its run fails."""
        folder, text = self.folder / f"sweep-{row:03d}", self.subject.space.words(row)
        job = self.subject.prepare(row, 1, folder)
        job.start()
        while (end := job.look(LONGEST)) is None:
            time.sleep(0.05)
        self.times[text], self.took[text] = self.subject.read(row, folder, end).seconds, end.seconds
        print(f"sweep  {self.name} {text}: {self.times[text]}, {end.seconds:.1f} s", flush=True)

    def result(self) -> dict[str, Any]:
        timed = {text: value for text, value in self.times.items() if value is not None}
        tuned, best = self.tuned, min(timed, key=timed.__getitem__, default="")
        found = tuned.best.seconds if tuned and tuned.best else float("nan")
        return {
            "name": self.name,
            "candidates": len(self.subject.space),
            "not_measured": [self.subject.space.words(row) for row in self.left()],
            "runs": [vars(run) for run in tuned.runs] if tuned else [],
            "predicted": {self.subject.space.words(row): float(s) for row, s in enumerate(self.subject.space.seconds)},
            "seconds": self.times,
            "took": self.took,
            "tuned": tuned.best.name if tuned and tuned.best else "",
            "tuned_seconds": found,
            "best": best,
            "best_seconds": timed.get(best),
            "regret": found / timed[best] - 1 if best else None,
            "gain_left": tuned.gain if tuned else None,
        }


def compile_all(comparisons: Sequence[Comparison], queue: Path) -> None:
    """Fill the compiler's cache with what all compiled candidates need."""
    begun = time.monotonic()
    folders = [folder for comparison in comparisons for folder in comparison.compiled()]
    if not folders:
        return
    queue.write_text("\t".join(map(str, folders)) + "\n")
    while not all((folder / "ended").exists() for folder in folders):
        time.sleep(0.1)
    for path in Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).rglob("*.best_config"):
        path.unlink()  # chosen by time while others used the GPU: measured runs choose again
    failed = [folder for folder in folders if (folder / "ended").read_text().strip() != "0"]
    print(f"compiled {len(folders)} candidates in {time.monotonic() - begun:.1f} s, {len(failed)} failed", flush=True)
    for folder in failed[:2]:
        print((folder / LOG).read_text()[-1500:], flush=True)


def compare(comparisons: Sequence[Comparison], args: argparse.Namespace, until: float) -> None:
    """Tune every model, then measure every other candidate of all models in turn. No measurement begins after `until`."""

    def save() -> None:
        if args.out:
            Path(args.out).write_text(json.dumps([each.result() for each in comparisons], indent=1) + "\n", encoding="utf-8")

    for comparison in comparisons:
        comparison.tune()
        save()
    while time.monotonic() < until and any(comparison.left() for comparison in comparisons):
        for comparison in comparisons:
            for row in comparison.left()[:1]:
                comparison.measure(row)
                save()
    for each in map(Comparison.result, comparisons):
        timed = sum(value is not None for value in each["seconds"].values())
        print(
            f"{each['name']}: tuned {each['tuned']} {each['tuned_seconds']:.5f} s; fastest of {timed} timed and {each['candidates']} "
            f"candidates {each['best']} {each['best_seconds']:.5f} s; {each['regret']:.2%} lost; not measured: {len(each['not_measured'])}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", nargs="*", default=list(MODELS), metavar="MODEL:BATCH:SIZES")
    parser.add_argument("--on", default="1x1xh200")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--try", dest="options", default=OPTIONS)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--limit", type=float, default=260.0, help="seconds after which no measurement begins")
    parser.add_argument("--folder", default="build/tune_on_gpu")
    parser.add_argument("--out", default="", help="file of the result")
    args = parser.parse_args()
    begun, folder = time.monotonic(), Path(args.folder).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "compiled")
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # candidates are compiled side by side, and then come from the cache
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # looking for a GPU must not open it before the server forks
    if find_spec("scipy") is None:  # a bare machine with torch: everything but the calibration at the end works
        Queued.calibrated = lambda self, folder: "no calibration: scipy is not installed"
    Queued.queue = folder / "queue"
    Queued.queue.unlink(missing_ok=True)
    os.mkfifo(Queued.queue)
    server = multiprocessing.get_context("fork").Process(target=serve, args=(Queued.queue,), daemon=False)
    server.start()
    try:
        comparisons = [Comparison.of(name, args) for name in args.model]
        compile_all(comparisons, Queued.queue)
        compare(comparisons, args, begun + args.limit)
    finally:
        server.kill()
    print(f"{time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
