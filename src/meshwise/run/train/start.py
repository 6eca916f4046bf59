"""Start a TrainRun: one run, a sweep, a job of Slurm, or a dry run. Each is imported when it is asked for."""

from typing import TYPE_CHECKING

from meshwise.output import ignore_broken_pipe
from meshwise.run.callbacks import Progress, Say
from meshwise.run.train import launch
from meshwise.run.train.ask import TrainRun

if TYPE_CHECKING:
    from meshwise.run.train.dry_run import DryRun
    from meshwise.run.train.results import Draw, SweepResult, TrainResult
    from meshwise.run.train.submit import Submitted


def start(
    run: TrainRun, *, say: Say, draw: "Draw", progress: Progress | None = None
) -> "TrainResult | SweepResult | DryRun | Submitted | None":
    """Train, sweep, submit to Slurm, or make a dry run; `draw` makes the report. None if there was nothing for this node to measure."""
    say = ignore_broken_pipe(say)
    if run.sweep is not None:
        from meshwise.run.train.short.measure import sweep

        return sweep(run, run.sweep, say, draw)
    if run.launcher and not run.dry_run:
        from meshwise.run.train import submit

        return submit.submit(run, say)
    ready = launch.prepare(run)
    if run.dry_run:
        from meshwise.run.train import dry_run

        return dry_run.describe(run, ready)
    from meshwise.run.train import single

    return single.train(run, ready, say, progress, draw)
