"""`tune` with meshwise's trainer on CPU processes: eight layouts of a tiny model on a machine that no calibration has seen, four runs.

    python benchmarks/tune/tune_loop.py --repeats 3
    taskset -c 0,1 python benchmarks/tune/tune_loop.py --clock wall --out tune_loop.json      # on cores that nobody else uses

Runs are those of `tune --own`, but that a server forks the ranks (`forked_runs.py`). Each repeat tunes in a folder of its own. Then every
layout is measured as often as --sweeps says, one after another; the result is the median time of the layout that `tune` chose over that of
the fastest, from the same sweeps. It is written after every measurement. Where others use the same cores, a step takes up
to four times as long, by chance: with --clock cpu, the default, the time of a step is the CPU seconds of the rank that records it, which
do not grow while it waits.
"""

import argparse
import json
import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import meshwise
from forked_runs import Forked, seconds_of, server
from meshwise.plan.fields import given
from meshwise.tune.ask import TuneAsk
from meshwise.tune.loop.course import tune
from meshwise.tune.loop.launch import End
from meshwise.tune.loop.reading import Outcome
from meshwise.tune.loop.result import Tuned
from meshwise.workers.trainer.contract.rows import measured_steps, read_steps

QUESTION = {"on": "1x2xcpu", "batch": "2x512", "framework": "meshwise", "fix": ["dp_replicate=1,pp=1,cp=1"]}


class OnCpuClock(Forked):
    """The trainer, with the median CPU seconds of its steps as their time."""

    def read(self, row: int, folder: Path, end: End) -> Outcome:
        found = super().read(row, folder, end)
        steps = measured_steps(read_steps(folder / "out" / "steps.jsonl"))
        if found.seconds is None or not steps:
            return found
        return replace(found, seconds=statistics.median(sum(step.cpu.values()) for step in steps))


def compared(times: dict[str, list[float]], tuned: list[Tuned], clock: str) -> dict[str, Any]:
    """Return by how much the layouts that `tune` chose, and that it ran first, are slower than the fastest, by medians of sweeps."""
    medians = {name: statistics.median(values) for name, values in times.items() if values}
    least = min(medians.values())
    chosen = [result.best.name if result.best else "" for result in tuned]
    return {
        "clock": clock,
        "seconds": times,
        "chosen": chosen,
        "regrets": [medians.get(name, math.nan) / least - 1 for name in chosen],
        "first": [medians.get(result.runs[0].name, math.nan) / least - 1 for result in tuned],
        "runs": [[vars(run) for run in result.runs] for result in tuned],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sweeps", type=int, default=3)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--model", default="llama-debug")
    parser.add_argument("--clock", choices=("cpu", "wall"), default="cpu")
    parser.add_argument("--folder", default="build/tune_loop")
    parser.add_argument("--out", default="", help="file of the result, written after every measurement")
    args = parser.parse_args()
    folder = Path(args.folder).absolute()
    plan = meshwise.plan(args.model, **QUESTION)
    words = {"what": "plan", "own": True, "device": "cpu", "steps": args.steps, "runs": args.runs, "gain": 0.0}
    timed = OnCpuClock if args.clock == "cpu" else Forked

    def tuned_in(name: str) -> Tuned:
        asked = given(TuneAsk, words | {"folder": str(folder / name)})
        return tune(timed(plan, asked), asked, say=print, answer=input)

    subject = timed(plan, given(TuneAsk, words | {"folder": str(folder)}))
    times: dict[str, list[float]] = {subject.space.words(row): [] for row in range(len(subject.space))}
    result: dict[str, Any] = {}
    with server(folder):
        tuned = [tuned_in(f"tune-{repeat}") for repeat in range(args.repeats)]
        for sweep in range(args.sweeps):
            for row, values in enumerate(times.values()):
                seconds = seconds_of(subject, row, folder / f"sweep-{sweep}-{row}")
                values += [seconds] if seconds else []
                result = compared(times, tuned, args.clock)
                if args.out:
                    Path(args.out).write_text(json.dumps(result) + "\n", encoding="utf-8")
    for name, values in sorted(
        ((name, each) for name, each in times.items() if each), key=lambda pair: statistics.median(pair[1])
    ):
        print(f"{statistics.median(values):.4f} s  {min(values):.4f} to {max(values):.4f}  {name}")
    for number, (name, regret, first) in enumerate(zip(result["chosen"], result["regrets"], result["first"], strict=True)):
        print(f"repeat {number}: {name}, {regret:.1%} slower than the fastest (the planner's first: {first:.1%})")


if __name__ == "__main__":
    main()
