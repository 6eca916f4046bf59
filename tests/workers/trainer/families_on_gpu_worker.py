"""Run on a GPU: trains every family for a few steps, launched and captured, and compares logits with float32 on the CPU. Prints JSON.

One process for all: starting one takes longer than a family does.
"""

import json
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from meshwise.workers.trainer.contract.models.registry import sizes_of
from meshwise.workers.trainer.contract.settings import Layout, Settings
from meshwise.workers.trainer.gradients import named_parameters
from meshwise.workers.trainer.models.base import Fusable, Span, build
from meshwise.workers.trainer.models.decoder.experts import ExpertStack
from meshwise.workers.trainer.optimizer import make_optimizer
from meshwise.workers.trainer.parallel import Ranks
from meshwise.workers.trainer.passes import Passes
from meshwise.workers.trainer.step import Stepper
from meshwise.workers.trainer.weights import init_random

TILED = "olmoe, whole tiles"
STEPS, BATCH, SEQ = 8, 4, 256
SHORT = ("llama", TILED)
"""Families that are trained with moments of 16 bits too."""
EIGHT = ("llama", "qwen3", "bloom", "gemma2")
"""Families that are trained in 8 bits too."""


def losses(settings: Settings) -> list[float]:
    """Return the losses of the first steps of a run."""
    return [loss for loss, _ in losses_and_norms(settings)]


def losses_and_norms(settings: Settings, asked: bool = True) -> list[tuple[float, float]]:
    """Return losses and gradient norms of the first steps; if not `asked`, kernels do not add up squares of experts' gradients."""
    torch._dynamo.reset()
    ranks = Ranks.of(settings.layout, "cuda")
    passes = Passes(settings, ranks, torch.device("cuda"))
    for stack in (part for model in passes.models for part in model.modules() if isinstance(part, ExpertStack)):
        stack.squares = stack.squares if asked else None
    parameters = named_parameters(passes.models)
    stepper = Stepper(settings, ranks, passes, make_optimizer(settings, parameters), parameters)
    dice = torch.Generator().manual_seed(0)
    data = [torch.randint(0, 256, (2, BATCH, SEQ), generator=dice).pin_memory() for _ in range(2)]
    launched = [stepper.launch(step, data[step % 2][0], data[step % 2][1]) for step in range(STEPS)]
    torch.cuda.synchronize()
    assert bool(stepper.squares) == (asked and settings.name == TILED)
    return [(float(step.numbers[0]), float(step.numbers[1])) for step in launched]


def distance(config: dict[str, Any]) -> float:
    """Return how far the logits of the fused 16-bit model on the GPU are from those of the plain float32 model on the CPU."""
    torch._dynamo.reset()
    layers = sizes_of(config).layers
    plain = build(config, Span(0, layers, layers))
    init_random([plain], 1, 0.05)
    fast = build(config, Span(0, layers, layers))
    fast.load_state_dict(plain.state_dict())
    fast = fast.cuda()
    for part in (part for part in fast.modules() if isinstance(part, Fusable)):
        part.fuse()
    for parameter in fast.parameters():  # in place, so that fused weights stay stacked or are copied for the product
        parameter.data = parameter.data.bfloat16()
    tokens = torch.randint(0, 256, (2, SEQ), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        theirs, ours = plain(tokens), fast(tokens.cuda()).cpu().float()
    return float((ours - theirs).norm() / theirs.norm())


def main() -> None:
    cases: dict[str, dict[str, Any]] = json.loads(Path(sys.argv[1]).read_text())
    dist.init_process_group("nccl", init_method=f"file://{sys.argv[2]}.rendezvous", rank=0, world_size=1)
    found: dict[str, Any] = {}
    for name, model in cases.items():
        settings = Settings(
            name=name, model=model, layout=Layout(mbs=BATCH), batch=BATCH, seq=SEQ, steps=STEPS, device="cuda", lr=1e-3
        )
        try:
            found[name] = {
                "launched": losses(replace(settings, graph=False)),
                "captured": losses(replace(settings, compile=True)),
                "distance": distance(model),
            }
            if name == TILED:
                found[name]["norms"] = [norm for _, norm in losses_and_norms(replace(settings, compile=True))]
                found[name]["norms of read gradients"] = [
                    norm for _, norm in losses_and_norms(replace(settings, compile=True), asked=False)
                ]
            if name in SHORT:
                found[name]["short"] = losses(replace(settings, compile=True, moments="bf16"))
            if name in EIGHT:
                for precision in ("fp8", "fp8-row"):
                    found[name][precision] = losses(replace(settings, compile=True, precision=precision))
        except Exception:
            found[name] = {"failed": traceback.format_exc(limit=-6)}
        Path(sys.argv[2]).write_text(json.dumps(found))
        torch.cuda.empty_cache()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
