"""The loop: read, forward, backward, clip, step, say so."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import math
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.optim import AdamW

from meshwise.trainer import weights
from meshwise.trainer.checkpoint import Checkpoints
from meshwise.trainer.data import own_batch
from meshwise.trainer.faults import Skips, finite
from meshwise.trainer.gradients import Named, clip, named, norm, settle
from meshwise.trainer.heartbeat import Heartbeat, guarded
from meshwise.trainer.parallel import Ranks, tied_name
from meshwise.trainer.passes import Passes
from meshwise.trainer.report import Step, go_on, keep, line, memory_peak, note
from meshwise.trainer.settings import Settings, Sizes

BETAS = (0.9, 0.95)
DECAY = 0.1
"""Of matrices; norms and biases have none (GPT-3's recipe, arXiv:2005.14165, appendix B)."""


def train(settings: Settings) -> None:
    """Train, with as many processes as the layout has devices; torchrun has told each which it is."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if settings.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with guarded(settings, device) as heart:
        _train(settings, device, heart)


def _train(settings: Settings, device: torch.device, heart: Heartbeat) -> None:
    ranks = Ranks.of(settings.layout, settings.device)
    passes = Passes(settings, ranks, device)
    parameters = named(passes.models)
    optimizer = optimizer_of(settings, parameters)
    steps: list[Step] = []
    kept = Checkpoints(settings, parameters, optimizer, tied_name(settings), heart.moves) if settings.checkpoint_every else None
    begun, skipped = kept.resume() if kept else (0, 0)
    if begun:
        _say(f"going on after step {begun} from {Path(settings.out, 'checkpoints')}")
    if dist.get_rank() == 0:
        go_on(settings, begun)
    skips, done = Skips(settings, skipped), begun
    heart.began(begun)
    while heart.begin(done) and done < settings.steps:
        steps.append(_step(settings, ranks, passes, optimizer, parameters, done))
        done += 1
        _say(line(settings, steps[-1]))
        if dist.get_rank() == 0:
            note(settings, steps[-1])
        _say(skips.saw(done - 1, steps[-1].loss, steps[-1].grad_norm))
        if kept and (done % settings.checkpoint_every == 0 or done == settings.steps):
            kept.save(done, skips.total)
    if kept:
        kept.end(done, skips.total)
    if dist.get_rank() == 0 and steps:
        keep(settings, steps)
    if done < settings.steps:
        heart.stopped(done, saved=kept is not None)
        return
    if settings.save:
        save_weights(settings, ranks, passes)


def _say(text: str) -> None:
    if text and dist.get_rank() == 0:
        print(text, flush=True)


def _step(settings: Settings, ranks: Ranks, passes: Passes, optimizer: AdamW, parameters: Named, step: int) -> Step:
    began = time.perf_counter()
    tokens, targets = (part.to(passes.device) for part in own_batch(settings, ranks, step))
    loss = passes.run(tokens, targets)
    settle(settings, ranks, parameters)
    total = norm(settings, ranks, parameters)
    clip(parameters, total, settings.clip)
    for group in optimizer.param_groups:
        group["lr"] = rate(settings, step)
    if bool(finite(loss, total)):
        optimizer.step()
    optimizer.zero_grad()
    peak = torch.tensor(memory_peak(passes.device), dtype=torch.float64, device=passes.device)
    dist.all_reduce(peak, op=dist.ReduceOp.MAX)
    # reading the numbers waits for the device, so the clock stops after the work and not after its launch
    return Step(step, float(loss), float(total), memory=float(peak), seconds=time.perf_counter() - began)


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
