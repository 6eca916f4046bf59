"""Checkpoints that any layout can read: torch's distributed checkpoint (DCP), weights and optimizer by HF's names, no rank in them."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from pathlib import Path

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.state_dict_loader import load as read_state
from torch.distributed.checkpoint.state_dict_saver import save as write_state

from meshwise.trainer.gradients import Named
from meshwise.trainer.optimizer import MOMENTS, Updates

DONE = "complete"
"""A file that is written last: a folder without it is a checkpoint that was cut off."""


def _state(parameters: Named, updates: Updates, tied: str) -> dict[str, Tensor]:
    """Everything a run needs to go on, by name. A tied head of another stage is the embedding, and not stored twice."""
    return {
        f"{kind}.{tied if tied and name == 'lm_head.weight' else name}": part
        for name, parameter in parameters
        for kind, part in updates.state(parameter).items()
    }


def save(folder: Path, step: int, parameters: Named, updates: Updates, tied: str) -> None:
    """Write the state after `step` steps to `folder/step-N`, and only then say that it is there."""
    target = folder / f"step-{step}"
    write_state(_state(parameters, updates, tied), checkpoint_id=target)
    dist.barrier()
    if dist.get_rank() == 0:
        (target / DONE).write_text(f"{step}\n", encoding="utf-8")
    dist.barrier()


def latest(folder: Path) -> int:
    """Steps that the newest whole checkpoint has behind it; 0 where there is none."""
    return max((int(path.parent.name.removeprefix("step-")) for path in folder.glob(f"step-*/{DONE}")), default=0)


def load(folder: Path, step: int, parameters: Named, updates: Updates, tied: str) -> None:
    """Go on from `folder/step-N`, whatever layout wrote it."""
    state = _state(parameters, updates, tied)
    read_state(state, checkpoint_id=folder / f"step-{step}")
    for name, parameter in parameters:
        key = tied if tied and name == "lm_head.weight" else name
        updates.restore(parameter, {kind: state[f"{kind}.{key}"] for kind in ("weight", *MOMENTS)}, step)
