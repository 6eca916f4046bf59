"""`tune` over micro-batch, recompute, compile and precision of meshwise's trainer on one GPU, against an exhaustive sweep.

    python benchmarks/tune/tune_on_gpu.py --out tune.json        # two models on an H200
    python benchmarks/tune/tune_on_gpu.py --device cpu --on 1x1xcpu --try compile=no,yes --model llama-debug:4x64:1..4

Where a GPU cannot be had for the ten minutes that this takes, `tune_sweep.py` measures all candidates in one process.

`tune` runs its loop for real: its launch command hands a run to a server (`forked_runs.py`) and waits for the run's files. Before anything
is measured, every compiled candidate runs two steps with two blocks, all of them side by side, which fills the compiler's cache: measured
runs then take seconds, and each of them has the GPU to itself. `tune` runs for all models first; then the candidates that it left out are
measured by the same server, those that are predicted to be fast first. The result is the time of the candidate that `tune` ends with over
the fastest of all. It is written after every measurement, so that a session that is cut short keeps what it has.
"""

import argparse
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import meshwise
from forked_runs import COMPILER, Forked, run_all, seconds_of, server
from meshwise.catalogue import here
from meshwise.plan.fields import given
from meshwise.tune.ask import TuneAsk
from meshwise.tune.loop.course import tune
from meshwise.tune.loop.launch import LOG
from meshwise.tune.loop.result import Tuned
from meshwise.workers.trainer.contract.settings import Settings

MODELS = ("llama-125m:32x1024:8..16", "llama-3.2-1b:8x2048:4..8")
"""Model, batch, and micro-batches to try."""
OPTIONS = "compile=no,yes precision=bf16,fp8"
BLOCKS, VOCABULARY, FEW_STEPS = 2, 32768, 2
"""Of the models that fill the compiler's cache, all of which must fit side by side: every block has the same code, and nothing else is
compiled."""


@dataclass
class Comparison:
    """One model: its tuning, and the times of its candidates."""

    name: str
    folder: Path
    subject: Forked
    ask: TuneAsk
    tuned: Tuned | None = None
    times: dict[str, float | None] = field(default_factory=dict[str, float | None])
    took: dict[str, float] = field(default_factory=dict[str, float])
    """Wall seconds that a measurement of each candidate took."""

    @staticmethod
    def of(name: str, args: argparse.Namespace) -> "Comparison":
        model, batch, sizes = name.split(":")
        plan = meshwise.plan(model, on=args.on, batch=batch, framework="meshwise", allow=[f"mbs={sizes}"])
        folder = Path(args.folder, name.replace(":", "_")).absolute()
        words = {"own": True, "runs": args.runs, "steps": args.steps, "options": args.options, "device": args.device, "gain": 0.0}
        ask = given(TuneAsk, {"what": "plan", "folder": str(folder / "tune"), **words})
        return Comparison(name, folder, Forked(plan, ask), ask)

    def compiled(self) -> Iterator[Path]:
        """Yield folders with a small run of each candidate that is compiled: few blocks, few steps."""
        for row in range(len(self.subject.space)):
            if self.subject.space.options(row).get("compile") != "yes":
                continue
            folder = self.folder / f"compile-{row:03d}"
            self.subject.prepare(row, 1, folder)
            full = Settings.read(folder / "settings.json")
            small = {**full.model, "num_hidden_layers": BLOCKS, "vocab_size": min(VOCABULARY, full.model["vocab_size"])}
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
        text, begun = self.subject.space.words(row), time.monotonic()
        self.times[text] = seconds_of(self.subject, row, self.folder / f"sweep-{row:03d}")
        self.took[text] = time.monotonic() - begun
        print(f"sweep  {self.name} {text}: {self.times[text]}, {self.took[text]:.1f} s", flush=True)

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


def compile_all(comparisons: Sequence[Comparison]) -> None:
    """Fill the compiler's cache with what all compiled candidates need."""
    begun = time.monotonic()
    folders = [folder for comparison in comparisons for folder in comparison.compiled()]
    if not folders:
        return
    failed = run_all(folders)
    forget_choices()
    print(f"compiled {len(folders)} candidates in {time.monotonic() - begun:.1f} s, {len(failed)} failed", flush=True)
    for folder in failed[:2]:
        print((folder / LOG).read_text()[-1500:], flush=True)


def forget_choices() -> None:
    """Delete the compiler's choices between kernels, made by time while others used the GPU: measured runs choose again."""
    for path in Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).rglob("*.best_config"):
        path.unlink()


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


def prepare_compiler(folder: Path) -> None:
    """Have all processes share one cache of compiled code, and look for GPUs once."""
    here.gpus = cache(here.gpus)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "compiled")
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # candidates are compiled side by side, and then come from the cache
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # looking for a GPU must not open it before the server forks


def arguments(about: str) -> argparse.ArgumentParser:
    """Return the arguments of a benchmark over the candidates of some models."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--model", action="append", default=None, metavar="MODEL:BATCH:SIZES")
    parser.add_argument("--on", default="1x1xh200")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--try", dest="options", default=OPTIONS)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--limit", type=float, default=260.0, help="seconds after which no measurement begins")
    parser.add_argument("--folder", default="build/tune_on_gpu")
    parser.add_argument("--out", default="", help="file of the result")
    return parser


def main() -> None:
    args = arguments(__doc__ or "").parse_args()
    begun, folder = time.monotonic(), Path(args.folder).absolute()
    prepare_compiler(folder)
    with server(folder, COMPILER):
        comparisons = [Comparison.of(name, args) for name in args.model or MODELS]
        compile_all(comparisons)
        compare(comparisons, args, begun + args.limit)
    print(f"{time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
