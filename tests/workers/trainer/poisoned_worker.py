"""Run by each rank: the trainer, where one rank's share of a gradient turns into NaN in the third step."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from meshwise.workers.trainer import loop
from meshwise.workers.trainer.contract.settings import Settings
from meshwise.workers.trainer.passes import Passes

calls = 0
run = Passes.run


def poisoned(self: Passes, tokens: Tensor, targets: Tensor) -> Tensor:
    global calls
    loss = run(self, tokens, targets)
    calls += 1
    if calls == 3 and dist.get_rank() == 1:
        grad = next(p.grad for model in self.models for p in model.parameters() if p.grad is not None)
        (grad.to_local() if isinstance(grad, DTensor) else grad).fill_(torch.nan)
    return loss


Passes.run = poisoned
loop.train(Settings.read(Path(sys.argv[1])))
