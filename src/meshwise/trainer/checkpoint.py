"""Checkpoints that any layout can read: torch's distributed checkpoint (DCP), weights and optimizer by HF's names, no rank in them."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.state_dict_loader import load as read_state
from torch.distributed.checkpoint.state_dict_saver import save as write_state
from torch.distributed.tensor import DTensor
from torch.optim import AdamW

from meshwise.trainer.gradients import Named

DONE = "complete"
"""A file that is written last: a folder without it is a checkpoint that was cut off."""
MOMENTS = ("exp_avg", "exp_avg_sq")


def _state(parameters: Named, optimizer: AdamW, tied: str) -> dict[str, Any]:
    """Everything a run needs to go on, by name. A tied head of another stage is the embedding, and not stored twice."""
    found: dict[str, Any] = {}
    for name, parameter in parameters:
        key = tied if tied and name == "lm_head.weight" else name
        moments = optimizer.state[parameter]
        for kind in MOMENTS:
            moments.setdefault(kind, torch.zeros_like(parameter))
        found |= {f"weight.{key}": parameter.detach(), **{f"{kind}.{key}": cast(Tensor, moments[kind]) for kind in MOMENTS}}
    return found


def save(folder: Path, step: int, parameters: Named, optimizer: AdamW, tied: str) -> None:
    """Write the state after `step` steps to `folder/step-N`, and only then say that it is there."""
    target = folder / f"step-{step}"
    write_state(_state(parameters, optimizer, tied), checkpoint_id=target)
    dist.barrier()
    if dist.get_rank() == 0:
        (target / DONE).write_text(f"{step}\n", encoding="utf-8")
    dist.barrier()


def latest(folder: Path) -> int:
    """Steps that the newest whole checkpoint has behind it; 0 where there is none."""
    return max((int(path.parent.name.removeprefix("step-")) for path in folder.glob(f"step-*/{DONE}")), default=0)


def load(folder: Path, step: int, parameters: Named, optimizer: AdamW, tied: str) -> None:
    """Go on from `folder/step-N`, whatever layout wrote it."""
    read_state(_state(parameters, optimizer, tied), checkpoint_id=folder / f"step-{step}")
    for _, parameter in parameters:
        # AdamW counts steps for each weight; all have seen as many
        optimizer.state[parameter]["step"] = torch.tensor(float(step), device=_home(optimizer, parameter))


def _home(optimizer: AdamW, parameter: Tensor) -> torch.device:
    """Where AdamW keeps its count: beside the weights if it is fused, else on the CPU."""
    local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
    return local.device if optimizer.defaults["fused"] else torch.device("cpu")
