"""The loop: read, forward, backward, clip, step, say so."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import math
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.optim import AdamW

from meshwise.trainer import checkpoint, weights
from meshwise.trainer.data import own_batch
from meshwise.trainer.gradients import Named, clip, named, norm, settle
from meshwise.trainer.parallel import Ranks, tied_name
from meshwise.trainer.passes import Passes
from meshwise.trainer.report import memory_peak
from meshwise.trainer.rows import Step
from meshwise.trainer.settings import Settings, Sizes
from meshwise.trainer.watch import Watch, memory_history

BETAS = (0.9, 0.95)
DECAY = 0.1
"""Of matrices; norms and biases have none (GPT-3's recipe, arXiv:2005.14165, appendix B)."""


def train(settings: Settings) -> None:
    """Train, with as many processes as the layout has devices; torchrun has told each which it is."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if settings.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", device_id=device if device.type == "cuda" else None)
    try:
        if dist.get_world_size() != settings.layout.devices:
            raise SystemExit(f"the layout has {settings.layout.devices} devices, and torchrun started {dist.get_world_size()}")
        with memory_history(settings):
            _train(settings, device)
    finally:
        dist.destroy_process_group()


def _train(settings: Settings, device: torch.device) -> None:
    ranks = Ranks.of(settings.layout, settings.device)
    passes = Passes(settings, ranks, device)
    parameters = named(passes.models)
    optimizer = optimizer_of(settings, parameters)
    folder, tied = Path(settings.out, "checkpoints"), tied_name(settings)
    begun = checkpoint.latest(folder) if settings.checkpoint_every else 0
    if begun:
        checkpoint.load(folder, begun, parameters, optimizer, tied)
        _say(f"going on after step {begun} from {folder}")
    watch = Watch(settings, ranks, device, passes.phases, begun)
    for step in range(begun, settings.steps):
        with watch.step(step):
            seen = _step(settings, ranks, passes, optimizer, parameters, step)
        watch.saw(seen)
        if not math.isfinite(seen.loss):
            raise SystemExit(f"the loss of step {step + 1} is {seen.loss}: stopped; a lower --lr may do")
        if settings.checkpoint_every and (step + 1) % settings.checkpoint_every == 0:
            checkpoint.save(folder, step + 1, parameters, optimizer, tied)
    watch.end()
    if settings.save:
        save_weights(settings, ranks, passes)


def _say(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


def _step(settings: Settings, ranks: Ranks, passes: Passes, optimizer: AdamW, parameters: Named, step: int) -> Step:
    began = time.perf_counter()
    phases = passes.phases
    with phases("data"):
        tokens, targets = (part.to(passes.device) for part in own_batch(settings, ranks, step))
    loss = passes.run(tokens, targets)
    with phases("reduce"):
        settle(settings, ranks, parameters)
        total = norm(settings, ranks, parameters)
        clip(parameters, total, settings.clip)
    for group in optimizer.param_groups:
        group["lr"] = rate(settings, step)
    with phases("optimizer"):
        optimizer.step()
        optimizer.zero_grad()
    peak = torch.tensor(memory_peak(passes.device), dtype=torch.float64, device=passes.device)
    dist.all_reduce(peak, op=dist.ReduceOp.MAX)
    # reading the numbers waits for the device, so the clock stops after the work and not after its launch
    loss, total, memory, seconds = float(loss), float(total), float(peak), time.perf_counter() - began
    parts = phases.end()
    return Step(step, loss, total, seconds, memory, parts.seconds(), parts.cpu_seconds())


def optimizer_of(settings: Settings, parameters: Named) -> AdamW:
    matrices = [parameter for _, parameter in parameters if parameter.dim() > 1]
    others = [parameter for _, parameter in parameters if parameter.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    return AdamW(groups, lr=settings.lr, betas=BETAS, fused=settings.device == "cuda")


def rate(settings: Settings, step: int) -> float:
    """Learning rate: up in `warmup` steps, then half a cosine down to a tenth (arXiv:2005.14165, appendix B)."""
    if step < settings.warmup:
        return settings.lr * (step + 1) / settings.warmup
    done = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
    return settings.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))


def save_weights(settings: Settings, ranks: Ranks, passes: Passes) -> None:
    """The weights under `weights/` of the run's folder, as HF reads them: one file per rank of the pipeline."""
    lead = all(ranks.at(axis) == 0 for axis in ("dp_replicate", "dp_shard", "cp", "tp"))
    skip = "lm_head.weight" if Sizes.of(settings.model).tied else ""
    weights.save(passes.models, Path(settings.out, "weights"), ranks.at("pp"), settings.layout.pp, lead, skip)
