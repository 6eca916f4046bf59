"""The training loop: read a batch, run the step, report it, checkpoint."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from meshwise.output import say
from meshwise.workers.trainer import weights
from meshwise.workers.trainer.checkpoint import Checkpoints, ResumePoint
from meshwise.workers.trainer.contract.files.expected import config_json
from meshwise.workers.trainer.contract.models.registry import tied_embedding
from meshwise.workers.trainer.contract.process.kill_points import reach
from meshwise.workers.trainer.contract.rows import Step
from meshwise.workers.trainer.contract.settings import Settings
from meshwise.workers.trainer.data.batches import Batches
from meshwise.workers.trainer.evaluation import Evaluator
from meshwise.workers.trainer.finetune.adapter_files import save_adapter
from meshwise.workers.trainer.gradients import NamedParameters, trained_parameters
from meshwise.workers.trainer.optimizer import StepOptimizer, make_optimizer
from meshwise.workers.trainer.parallel import Ranks
from meshwise.workers.trainer.passes import Passes
from meshwise.workers.trainer.ranks.faults import SkippedSteps, TrainingError
from meshwise.workers.trainer.ranks.heartbeat import Heartbeat, guarded
from meshwise.workers.trainer.report.lines import peak_memory
from meshwise.workers.trainer.report.recorder import Recorder, memory_history
from meshwise.workers.trainer.step import LaunchedStep, Moment, Stepper


def train(settings: Settings) -> None:
    """Train as one of the layout's processes; torchrun's environment variables give its rank."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if settings.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with guarded(settings, device) as heart, memory_history(settings):
        _train(settings, device, heart)


def _train(settings: Settings, device: torch.device, heart: Heartbeat) -> None:
    ranks = Ranks.of(settings.layout, settings.device)
    passes = Passes(settings, ranks, device)
    parameters = trained_parameters(passes.models)
    optimizer = make_optimizer(settings, parameters)
    tied = tied_embedding(settings.model)
    kept = passes.balance.buffers()
    checkpoints = Checkpoints(settings, parameters, optimizer, tied, heart.progress, kept) if settings.checkpoint_every else None
    first, skipped, ahead = checkpoints.resume() if checkpoints else ResumePoint()
    reach("worker resumed")
    recorder = Recorder(settings, ranks, device, passes.phases, first)
    skips, done = SkippedSteps(settings, skipped), first
    stepper = Stepper(settings, ranks, passes, optimizer, parameters)
    results = DelayedResults(device, recorder, skips, heart)
    evaluator = Evaluator(settings, ranks, passes) if settings.eval_data else None
    heart.start_from(first)
    with Batches(settings, ranks, first, ahead) as batches:
        while heart.begin_step(done) and done < settings.steps:
            with passes.phases("data"):
                tokens, targets = next(batches)
            with recorder.step(done):
                results.add(stepper.launch(done, tokens, targets))
            done += 1
            if evaluator and (done == settings.steps or (settings.eval_every and done % settings.eval_every == 0)):
                results.read()
                recorder.evaluated(evaluator.run(done))
                results.restart()
            if checkpoints and (done % settings.checkpoint_every == 0 or done == settings.steps):
                results.read()
                checkpoints.save(done, skips.total)
    results.read()
    problems = [checkpoints.end(done, skips.total) if checkpoints and done else ""]
    reach("steps done")
    problems.append(_write_measurements(recorder))
    if settings.finetune.adapts and done == settings.steps:
        problems.append(_save_adapter(settings, ranks, passes, parameters, optimizer))
    if (settings.save or settings.finetune.merge) and done == settings.steps:
        problems.append(save_weights(settings, ranks, passes))
    _raise_problems(problems, done)
    if done < settings.steps:
        heart.report_stopped(done, saved=checkpoints is not None)


def _write_measurements(recorder: Recorder) -> str:
    """Write the measurements; return why that failed, empty on success."""
    try:
        recorder.end()
    except OSError as error:
        return f"the measurements could not be written in {recorder.folder}: {error.strerror}"
    return ""


def _raise_problems(problems: list[str], done: int) -> None:
    """End the run on all ranks if any rank could not write something."""
    by_rank: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(by_rank, problems)
    distinct = dict.fromkeys(problem for rank_problems in by_rank for problem in rank_problems if problem)
    if distinct:
        raise TrainingError("disk", "; ".join(distinct), step=done)


class DelayedResults:
    """Reads a step's results on a GPU only after the next step was launched, so that the GPU does not wait for the host."""

    def __init__(self, device: torch.device, recorder: Recorder, skips: SkippedSteps, heart: Heartbeat) -> None:
        self.device, self.recorder, self.skips, self.heart = device, recorder, skips, heart
        self.last = Moment.now(device)
        self.pending: LaunchedStep | None = None

    def add(self, launched: LaunchedStep) -> None:
        self.read()
        self.pending = launched
        if self.device.type == "cpu":
            self.read()

    def restart(self) -> None:
        """Time the next step from now on."""
        self.last = Moment.now(self.device)

    def read(self) -> None:
        """Print and record the step that was not read yet."""
        if self.pending is None:
            return
        done, self.pending = self.pending, None
        seconds = done.end.since(self.last)
        self.last = done.end
        loss, total, imbalance = done.numbers.tolist()
        times = (done.phases.seconds(), done.phases.cpu_seconds())
        step = Step(done.step, loss, total, seconds, peak_memory(self.device), *times, imbalance=imbalance)
        self.recorder.record(step)
        self.heart.recent.add(times[0])
        reach("step done")
        note = self.skips.check(done.step, loss, total)
        if note and dist.get_rank() == 0:
            say(note)


def _save_adapter(settings: Settings, ranks: Ranks, passes: Passes, parameters: NamedParameters, optimizer: StepOptimizer) -> str:
    """Write `adapter/` in the run's folder for PEFT, in float32; return why that failed, empty on success."""
    for _, parameter in parameters if settings.split_weights else ():
        parameter.data = optimizer.state(parameter)["weight"]
    base = settings.given or settings.name
    return save_adapter(passes.models, Path(settings.out, "adapter"), settings.model, settings.finetune, base, _leads(ranks))


def _leads(ranks: Ranks) -> bool:
    """Return whether this rank writes the weights of its pipeline stage."""
    return all(ranks.at(axis) == 0 for axis in ("dp_replicate", "dp_shard", "cp", "tp"))


def save_weights(settings: Settings, ranks: Ranks, passes: Passes) -> str:
    """Write `weights/` in the run's folder for transformers, one file per pipeline rank; return why that failed, empty on success."""
    dtype = next(passes.models[0].parameters()).dtype
    extra = {"config.json": config_json(settings.model, str(dtype).removeprefix("torch."))}
    tokenizer = Path(settings.out, weights.TOKENIZER)
    if settings.tokenizer and tokenizer.is_file():
        extra[weights.TOKENIZER] = tokenizer.read_text(encoding="utf-8")
    return weights.save(passes.models, Path(settings.out, "weights"), ranks.at("pp"), settings.layout.pp, _leads(ranks), extra)
