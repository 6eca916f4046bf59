"""Every candidate of `tune_on_gpu.py`, timed in one process, and the regret of `tune` within these times.

    python benchmarks/tune/tune_sweep.py compile --folder /tmp/tune        # fill the compiler's cache: all compiled candidates side by side
    python benchmarks/tune/tune_sweep.py measure --folder /tmp/tune --out sweep.json --limit 150
    python benchmarks/tune/tune_sweep.py replay sweep.json                 # no GPU: the loop of `tune` on the measured times

A run of its own takes 10 s to start on a GPU machine. Here, one process takes the settings of each candidate, as `tune --own` writes them,
and steps with the trainer's own Stepper: three steps launched kernel by kernel, one captured, the others replayed and timed. Models take
turns, and candidates that are predicted to be fast come first; the result is written after every candidate.
"""

import argparse
import gc
import json
import os
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forked_runs import COMPILER, free_port, server
from meshwise.tune.belief.choice import gain_left, next_runs
from meshwise.tune.belief.observation import Observation
from meshwise.tune.belief.posterior import Posterior
from meshwise.tune.belief.space import Space
from meshwise.workers.trainer.contract.settings import Settings
from tune_on_gpu import MODELS, Comparison, arguments, compile_all, forget_choices, prepare_compiler

TIMED_FROM = 4
"""Steps before the first that is timed."""


@dataclass(frozen=True)
class Timed:
    """A candidate that was measured: seconds of a step, bytes, and what the measurement took; or why it failed."""

    seconds: float | None
    memory: float | None
    took: float
    steps: tuple[float, ...] = ()
    fault: str = ""


def measure(settings: Settings, steps: int) -> tuple[list[float], float]:
    """Return the seconds of each timed step, and the most bytes that were held."""
    import torch

    from meshwise.workers.trainer.gradients import trained_parameters
    from meshwise.workers.trainer.optimizer import make_optimizer
    from meshwise.workers.trainer.parallel import Ranks
    from meshwise.workers.trainer.passes import Passes
    from meshwise.workers.trainer.report.lines import peak_memory
    from meshwise.workers.trainer.step import Stepper

    device = torch.device(settings.device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    ranks = Ranks.of(settings.layout, settings.device)
    passes = Passes(settings, ranks, device)
    parameters = trained_parameters(passes.models)
    stepper = Stepper(settings, ranks, passes, make_optimizer(settings, parameters), parameters)
    dice = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 256, (2, settings.batch, settings.seq), generator=dice)
    tokens = tokens.pin_memory() if device.type == "cuda" else tokens
    launched = [stepper.launch(step, tokens[0], tokens[1]) for step in range(steps)]
    times = [launched[step].end.since(launched[step - 1].end) for step in range(TIMED_FROM, steps)]
    return times, peak_memory(device)


def timed(settings: Settings, steps: int) -> Timed:
    """Measure one candidate, and free what it held."""
    import torch._dynamo

    begun = time.monotonic()
    try:
        times, memory = measure(settings, steps)
        found = Timed(statistics.median(times), memory, time.monotonic() - begun, tuple(times))
    except RuntimeError as error:  # out of memory among them
        found = Timed(None, None, time.monotonic() - begun, fault=str(error)[:300])
    gc.collect()
    torch._dynamo.reset()
    if settings.device == "cuda":
        torch.cuda.empty_cache()
    return found


def sweep(args: argparse.Namespace) -> None:
    """Measure every candidate of all models. None begins after --limit."""
    import torch.distributed as dist

    begun = time.monotonic()
    prepare_compiler(Path(args.folder).absolute())
    forget_choices()
    comparisons = [Comparison.of(name, args) for name in args.model or MODELS]
    dist.init_process_group(
        "nccl" if args.device == "cuda" else "gloo", init_method=f"tcp://127.0.0.1:{free_port()}", rank=0, world_size=1
    )
    found: dict[str, dict[str, Timed]] = {comparison.name: {} for comparison in comparisons}
    orders = [comparison.subject.space.seconds.argsort().tolist() for comparison in comparisons]
    for place in range(max(map(len, orders))):
        for comparison, order in zip(comparisons, orders, strict=True):
            if place >= len(order) or time.monotonic() - begun > args.limit:
                continue
            row = order[place]
            folder, name = comparison.folder / f"one-{row:03d}", comparison.subject.space.words(row)
            comparison.subject.prepare(row, 1, folder)
            one = timed(Settings.read(folder / "settings.json"), args.steps)
            found[comparison.name][name] = one
            shown = f"{1e3 * one.seconds:.2f} ms" if one.seconds else one.fault
            print(f"{time.monotonic() - begun:5.0f} s  {comparison.name} {name}: {shown} in {one.took:.1f} s", flush=True)
            results = {model: {name: vars(each) for name, each in times.items()} for model, times in found.items()}
            Path(args.out).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    dist.destroy_process_group()


def tuned(space: Space, known: dict[str, Any], runs: int) -> tuple[list[int], float]:
    """Return the candidates that `tune` runs, in order, and the expected gain of one more."""
    seen: list[Observation] = []
    for _ in range(runs):
        row = next_runs(space, Posterior.of(space, seen), seen)[0].row
        one = known.get(space.words(row), {"seconds": None, "memory": None})
        failure = "" if one["seconds"] else "oom"
        seen.append(Observation(row, one["seconds"], one["memory"], failure))
    return [one.candidate for one in seen], gain_left(Posterior.of(space, seen))


def replay(args: argparse.Namespace) -> None:
    """Print the time that `tune` loses after each run, by the times of a sweep."""
    results = json.loads(Path(args.sweep).read_text(encoding="utf-8"))
    for name, known in results.items():
        space = Comparison.of(name, args).subject.space
        times = {text: one["seconds"] for text, one in known.items() if one["seconds"]}
        least = min(times.values())
        order, gain = tuned(space, known, args.runs)
        print(
            f"{name}: {len(times)} of {len(space)} candidates measured, {1e3 * least:.2f} to {1e3 * max(times.values()):.2f} ms"
        )
        best = float("inf")
        for number, row in enumerate(order, 1):
            text = space.words(row)
            seconds = times.get(text, float("inf"))
            best = min(best, seconds)
            print(
                f"  run {number}: {text}: {1e3 * seconds:.2f} ms ({1e3 * space.seconds[row]:.2f} predicted); {best / least - 1:.2%} lost"
            )
        print(f"  one more run is expected to save {gain:.2%}; not measured: {len(space) - len(times)}")
        for text, seconds in sorted(times.items(), key=lambda pair: pair[1]):
            print(f"    {1e3 * seconds:8.2f} ms  +{seconds / least - 1:6.1%}  {text}")


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("what", choices=("compile", "measure", "replay"))
    parser.add_argument("sweep", nargs="?", default="", help="with replay: the result of measure")
    args = parser.parse_args()
    if args.what == "replay":
        replay(args)
    elif args.what == "measure":
        sweep(args)
    else:
        prepare_compiler(Path(args.folder).absolute())
        with server(Path(args.folder).absolute(), COMPILER):
            compile_all([Comparison.of(name, args) for name in args.model or MODELS])
    sys.stdout.flush()
    os._exit(0)  # without waiting for CUDA


if __name__ == "__main__":
    main()
