"""Run by each rank: gradients of adapters in several layouts against one process, the worst relative difference of each as JSON."""

import json
import sys
import zlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from meshwise.workers.trainer.contract.finetune.method import FinetuneMethod
from meshwise.workers.trainer.contract.models.registry import sizes_of, tied_embedding
from meshwise.workers.trainer.contract.settings import Layout, Settings, broken_rules
from meshwise.workers.trainer.data.samples import batch_of, local_batch
from meshwise.workers.trainer.finetune.attach import attach, fill_parameter, start_adapters
from meshwise.workers.trainer.gradients import gradient_norm, reduce_gradients, trained_parameters
from meshwise.workers.trainer.models.base import Span, build
from meshwise.workers.trainer.ops.loss import IGNORED_TARGET
from meshwise.workers.trainer.parallel import Ranks
from meshwise.workers.trainer.passes import Passes
from meshwise.workers.trainer.weights import init_random


def drawn(name: str, shape: torch.Size) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode()))) * 0.1


@torch.no_grad()
def stir(models: list[Any]) -> None:
    """Give adapters values with which every gradient differs from zero."""
    for name, parameter in trained_parameters(models):
        if name.endswith("lora_b"):
            fill_parameter(parameter, drawn(name, parameter.shape))


def hide(tokens: torch.Tensor, targets: torch.Tensor, settings: Settings) -> torch.Tensor:
    """Leave a part of the targets without a loss: other shares of them on other ranks."""
    return targets.masked_fill(tokens % 3 == 0, IGNORED_TARGET) if settings.answers else targets


def reference(settings: Settings) -> tuple[dict[str, torch.Tensor], float]:
    layers = sizes_of(settings.model).layers
    model: Any = build(settings.model, Span(0, layers, layers))
    attach(model, settings.finetune, half=False)
    tied = tied_embedding(settings.model)
    init_random([model], settings.seed, settings.model["initializer_range"], tied)
    if settings.finetune.adapts:
        start_adapters([model], settings.finetune, settings.seed)
        stir([model])
    tokens, targets = batch_of(settings, 0)
    labels = hide(tokens, targets, settings)
    loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten(), ignore_index=IGNORED_TARGET)
    loss.backward()
    grads = {name: parameter.grad for name, parameter in trained_parameters([model])}
    return {name: grad for name, grad in grads.items() if grad is not None}, float(loss.detach())


def compare(settings: Settings) -> dict[str, Any]:
    expected, loss = reference(settings)
    ranks = Ranks.of(settings.layout, "cpu")
    passes = Passes(settings, ranks, torch.device("cpu"))
    if settings.finetune.adapts:
        stir(passes.models)
    tokens, targets = local_batch(settings, ranks, 0)
    found = float(passes.run(tokens, hide(tokens, targets, settings)))
    parameters = trained_parameters(passes.models)
    reduce_gradients(settings, ranks, parameters)
    norm = float(gradient_norm(settings, ranks, parameters))
    worst = 0.0
    for name, parameter in parameters:
        grad: Any = parameter.grad
        assert grad is not None, name
        whole = grad.full_tensor() if isinstance(grad, DTensor) else grad
        worst = max(worst, float((whole - expected[name]).norm() / expected[name].norm()))
    right = float(torch.stack([grad.norm() for grad in expected.values()]).norm())
    frozen = sum(p.grad is not None for model in passes.models for p in model.parameters() if not p.requires_grad)
    return {
        "gradients": worst,
        "loss": abs(found - loss) / loss,
        "norm": abs(norm - right) / right,
        "frozen": frozen,
        "count": len(parameters),
    }


def main(given: str, out: str) -> None:
    dist.init_process_group("gloo")
    cases = json.loads(Path(given).read_text())
    rows: dict[str, Any] = {}
    for name, case in cases.items():
        case["finetune"]["targets"] = tuple(case["finetune"].get("targets", ()))
        settings = Settings(**case | {"layout": Layout(**case["layout"]), "finetune": FinetuneMethod(**case["finetune"])})
        assert broken_rules(settings) == [], name
        every: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(every, compare(settings))
        rows[name] = {key: max(row[key] for row in every) for key in every[0]}
    if dist.get_rank() == 0:
        Path(out).write_text(json.dumps(rows))
    dist.destroy_process_group()


main(sys.argv[1], sys.argv[2])
