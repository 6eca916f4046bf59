"""The validation loss: the same samples of a text that is not trained on, at several steps of a run."""

# pyright: reportUnknownMemberType=false
from dataclasses import dataclass, replace

import torch

from meshwise.workers.trainer.contract.settings import Settings
from meshwise.workers.trainer.data.samples import local_batch
from meshwise.workers.trainer.parallel import Ranks
from meshwise.workers.trainer.passes import Passes

MAX_BATCHES = 16  # batches of the validation text that are read, so that a long text costs little


@dataclass(frozen=True)
class Evaluation:
    """A validation loss after `step` steps, over `tokens` tokens."""

    step: int
    loss: float
    tokens: int


class Evaluator:
    """Computes the validation loss with the layout of the run; all ranks take part."""

    def __init__(self, settings: Settings, ranks: Ranks, passes: Passes) -> None:
        self.settings = replace(settings, data=settings.eval_data, text=settings.eval_text, seed=0)
        self.ranks, self.passes = ranks, passes
        samples = sum(file.windows(settings.seq) for file in settings.eval_data)
        self.batches = min(MAX_BATCHES, samples // settings.batch)

    @torch.no_grad()
    def run(self, step: int) -> Evaluation:
        """Return the mean loss of the first batches of the validation text, which are the same every time."""
        total = torch.zeros((), device=self.passes.device)
        for number in range(self.batches):
            parts = (part.to(self.passes.device) for part in local_batch(self.settings, self.ranks, number))
            total += self.passes.evaluate(*parts)
        tokens = self.batches * self.settings.batch * self.settings.seq
        return Evaluation(step, float(total) / self.batches, tokens)
