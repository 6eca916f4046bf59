"""The loop: read, forward, backward, clip, step, say so."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import math
import os
from pathlib import Path

import torch
import torch.distributed as dist

from meshwise.trainer import checkpoint, weights
from meshwise.trainer.data import own_batch
from meshwise.trainer.gradients import named
from meshwise.trainer.optimizer import updates_of
from meshwise.trainer.parallel import Ranks, tied_name
from meshwise.trainer.passes import Passes
from meshwise.trainer.report import Step, keep, line, memory_peak
from meshwise.trainer.settings import Settings, Sizes
from meshwise.trainer.step import Launched, Moment, Stepper


def train(settings: Settings) -> None:
    """Train, with as many processes as the layout has devices; torchrun has told each which it is."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if settings.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", device_id=device if device.type == "cuda" else None)
    try:
        if dist.get_world_size() != settings.layout.devices:
            raise SystemExit(f"the layout has {settings.layout.devices} devices, and torchrun started {dist.get_world_size()}")
        _train(settings, device)
    finally:
        dist.destroy_process_group()


def _train(settings: Settings, device: torch.device) -> None:
    ranks = Ranks.of(settings.layout, settings.device)
    passes = Passes(settings, ranks, device)
    parameters = named(passes.models)
    updates = updates_of(settings, parameters)
    folder, tied = Path(settings.out, "checkpoints"), tied_name(settings)
    begun = checkpoint.latest(folder) if settings.checkpoint_every else 0
    if begun:
        checkpoint.load(folder, begun, parameters, updates, tied)
        _say(f"going on after step {begun} from {folder}")
    stepper = Stepper(settings, ranks, passes, updates, parameters)
    log = Log(settings, device)
    for step in range(begun, settings.steps):
        launched = stepper.launch(step, *own_batch(settings, ranks, step))
        # the numbers of the step before: asking for this one's would let the device wait for the host
        log.read()
        log.waiting = launched
        if settings.checkpoint_every and (step + 1) % settings.checkpoint_every == 0:
            log.read()
            checkpoint.save(folder, step + 1, parameters, updates, tied)
    log.read()
    if log.steps:
        memory = most_memory(device)
        if dist.get_rank() == 0:
            keep(settings, log.steps, memory)
    if settings.save:
        save_weights(settings, ranks, passes)


class Log:
    """Reads steps once they are done, one behind the device, and says them."""

    def __init__(self, settings: Settings, device: torch.device) -> None:
        self.settings, self.device, self.last = settings, device, Moment.now(device)
        self.waiting: Launched | None = None
        self.steps: list[Step] = []

    def read(self) -> None:
        if self.waiting is None:
            return
        done, self.waiting = self.waiting, None
        seconds = done.end.since(self.last)
        self.last = done.end
        loss, total = done.numbers.tolist()
        self.steps.append(Step(done.step, loss, total, memory=memory_peak(self.device), seconds=seconds))
        _say(line(self.settings, self.steps[-1]))
        if not math.isfinite(loss):
            raise SystemExit(f"the loss of step {done.step + 1} is {loss}: stopped; a lower --lr may do")


def _say(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


def most_memory(device: torch.device) -> float:
    """The most bytes that any rank held at once."""
    peak = torch.tensor(memory_peak(device), dtype=torch.float64, device=device)
    dist.all_reduce(peak, op=dist.ReduceOp.MAX)
    return float(peak)


def save_weights(settings: Settings, ranks: Ranks, passes: Passes) -> None:
    """The weights under `weights/` of the run's folder, as HF reads them: one file per rank of the pipeline."""
    lead = all(ranks.at(axis) == 0 for axis in ("dp_replicate", "dp_shard", "cp", "tp"))
    skip = "lm_head.weight" if Sizes.of(settings.model).tied else ""
    weights.save(passes.models, Path(settings.out, "weights"), ranks.at("pp"), settings.layout.pp, lead, skip)
