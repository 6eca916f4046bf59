"""Run by each rank: gradients of several layouts against one process, the worst relative difference of each as JSON.

    layouts_worker.py CASES.json SEEN.json [cpu|cuda]

One rank alone builds the groups of all axes and communicates with itself, so that one GPU runs every collective of NCCL. In 16 bits its
routers choose the experts of the reference, since another choice is another function, and count the tokens that would have others.
"""

import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.tensor import DTensor

from meshwise.workers.trainer.contract.models.description import EMBEDDING
from meshwise.workers.trainer.contract.models.registry import sizes_of
from meshwise.workers.trainer.contract.settings import Layout, Settings, broken_rules
from meshwise.workers.trainer.data.samples import batch_of, local_batch
from meshwise.workers.trainer.gradients import gradient_norm, named_parameters, reduce_gradients
from meshwise.workers.trainer.models.base import Span, build
from meshwise.workers.trainer.models.decoder.experts import Router
from meshwise.workers.trainer.parallel import AXES, Ranks
from meshwise.workers.trainer.passes import Passes
from meshwise.workers.trainer.weights import init_random

warnings.simplefilter("error", FutureWarning)  # a user would see it once for every rank

WHOLE = ("router.weight", "q_a_proj.weight", "kv_a_proj.weight")
"""Weights that tensor parallelism does not cut."""
DEVICE = torch.device(sys.argv[3] if len(sys.argv) > 3 else "cpu")
meshes: dict[tuple[int | bool, ...], Ranks] = {}
whole: dict[str, tuple[dict[str, torch.Tensor], float, float]] = {}
chosen: dict[str, dict[str, torch.Tensor]] = {}
"""Experts of each token in the reference, by model and router."""


class Sharded(Settings):
    """Settings with weights in float32, as runs on several devices have them."""

    @property
    def split_weights(self) -> bool:
        return False


def ranks_of(layout: Layout) -> Ranks:
    """Return the ranks of a layout. Layouts with the same axes share a mesh: each has about ten groups, with their own threads."""
    axes = (*(getattr(layout, axis) for axis in AXES), layout.ep, layout.schedule == "zbv")
    if axes not in meshes:
        meshes[axes] = Ranks.of(layout, DEVICE.type, always=dist.get_world_size() == 1)
    ranks = replace(meshes[axes], layout=layout)
    vars(ranks).update({"expert_mesh": vars(meshes[axes])["expert_mesh"]} if "expert_mesh" in vars(meshes[axes]) else {})
    return ranks


def gradients(settings: Settings, ranks: Ranks, passes: Passes) -> tuple[dict[str, torch.Tensor], float, float]:
    """Return the whole gradients of this rank's weights by name, after clipping, with the loss and the norm before it."""
    tokens, targets = local_batch(settings, ranks, 0)
    loss = passes.run(tokens.to(DEVICE), targets.to(DEVICE))
    parameters = named_parameters(passes.models)
    reduce_gradients(settings, ranks, parameters)
    total = gradient_norm(settings, ranks, parameters)
    share = min(1.0, settings.clip / (float(total) + 1e-6))
    found = {}
    for name, parameter in parameters:
        assert parameter.grad is not None, name
        assert parameter.dtype == parameter.grad.dtype == torch.float32, name
        grad = parameter.grad
        found[name] = share * (grad.full_tensor() if isinstance(grad, DTensor) else grad)
    return found, float(loss), float(total)


def reference(settings: Settings) -> tuple[dict[str, torch.Tensor], float, float]:
    """Return the gradients by plain PyTorch: one model, one batch, torch's own clipping. They depend on the model alone."""
    key = json.dumps(settings.model)
    if key in whole:
        return whole[key]
    layers = sizes_of(settings.model).layers
    model = build(settings.model, Span(0, layers, layers)).to(DEVICE)
    init_random([model], settings.seed, settings.model["initializer_range"])
    chosen[key] = {}
    for name, router in routers(model):

        def keep(_: Any, __: Any, routed: Any, name: str = name) -> None:
            chosen[key][name] = routed.experts

        router.register_forward_hook(keep)
    tokens, targets = (part.to(DEVICE) for part in batch_of(settings, 0))
    loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
    loss.backward()
    total = torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
    whole[key] = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}, float(loss), float(total)
    return whole[key]


def routers(model: torch.nn.Module) -> list[tuple[str, Router]]:
    return [(name, part) for name, part in model.named_modules() if isinstance(part, Router)]


@contextmanager
def same_choices(settings: Settings, passes: Passes) -> Iterator[list[int]]:
    """Make the routers of one rank choose the reference's experts; the list gets the tokens of each call that would have others."""
    others: list[int] = []
    for name, router in routers(passes.models[0]):
        parts = chosen[json.dumps(settings.model)][name].tensor_split(settings.microbatches)
        calls = iter((*parts[: passes.schedule is not None], *parts))  # torch runs a stage once more to learn its shapes

        def allowed(scores: torch.Tensor, calls: Iterator[torch.Tensor] = calls, k: int = router.e.chosen) -> torch.Tensor:
            given = torch.zeros_like(scores).scatter(1, next(calls), 1.0)
            own = torch.zeros_like(scores).scatter(1, scores.topk(k).indices, 1.0)
            others.append(int((given != own).any(1).sum()))
            return given

        router._allowed = allowed  # pyright: ignore[reportPrivateUsage]
    yield others


def watched(settings: Settings, passes: Passes) -> list[torch.dtype]:
    """Return a list that gets the types of activations from other ranks: inputs of later stages, and of blocks under tensor parallelism."""
    seen: list[torch.dtype] = []
    models: list[Any] = passes.models
    for model in models:
        parts: list[Any] = [model] if model.model.embed_tokens is None else []
        for part in parts + (model.blocks() if settings.layout.tp > 1 else []):
            part.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].dtype), prepend=part is model)
    return seen


def cut_in(settings: Settings, passes: Passes) -> bool:
    """Return whether the weights that the layout should shard are sharded, and not silently replicated."""
    a = settings.layout
    return all(
        isinstance(p, DTensor) and p.to_local().numel() < p.numel()
        for name, p in named_parameters(passes.models)
        if p.dim() >= 2 and (a.dp_shard * a.cp > 1 or (a.tp > 1 and not name.endswith(WHOLE)))
    )


def worst(mine: dict[str, torch.Tensor], true: dict[str, torch.Tensor]) -> float:
    """Return the largest difference, relative to the norm of that weight's gradient.

    Some gradients are zero but for rounding, as softmax ignores a bias of the keys: they count relative to a thousandth of the largest.
    """
    least = max(float(grad.norm()) for grad in true.values()) / 1000
    expected = {name: true.get(name, true[EMBEDDING]) for name in mine}  # a tied head on another stage
    return max(float((grad - expected[n]).norm()) / max(float(expected[n].norm()), least) for n, grad in mine.items())


def main() -> None:
    cases = json.loads(Path(sys.argv[1]).read_text())
    dist.init_process_group("nccl" if DEVICE.type == "cuda" else "gloo")
    every: dict[str, Any] = {}
    for name, case in cases.items():
        settings = Sharded(**(case | {"layout": Layout(**case["layout"])}))
        assert not broken_rules(settings), broken_rules(settings)
        ranks = ranks_of(settings.layout)
        passes = Passes(settings, ranks, DEVICE)
        cut, sent = cut_in(settings, passes), watched(settings, passes)
        true, loss_1, total_1 = reference(settings)
        fixed = settings.half and dist.get_world_size() == 1
        with same_choices(settings, passes) if fixed else nullcontext([]) as others:
            mine, loss, total = gradients(settings, ranks, passes)
        found = torch.tensor([worst(mine, true), abs(loss / loss_1 - 1), abs(total / total_1 - 1), float(not cut)], device=DEVICE)
        found = torch.cat([found, torch.tensor([float(settings.half and torch.float32 in sent)], device=DEVICE)])
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        seen = [None] * dist.get_world_size()
        dist.all_gather_object(seen, sorted(mine))
        every[name] = {
            "gradients": float(found[0]),
            "loss": float(found[1]),
            "norm": float(found[2]),
            "uncut": bool(found[3]),
            "wide": bool(found[4]),
            "others": sum(others) / (len(others) * settings.batch * settings.seq / settings.microbatches) if others else 0.0,
            "missing": sorted(set(true) - {weight for names in seen for weight in names or ()}),
        }
    if dist.get_rank() == 0:
        Path(sys.argv[2]).write_text(json.dumps(every))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
