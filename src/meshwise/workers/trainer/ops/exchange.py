"""Expert parallelism: rows travel to the ranks of their experts and back, by two all-to-alls in each direction of a pass."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, _functional_collectives

from meshwise.workers.trainer.ops.experts import Arrangement, arrange, combine, load_of, spread, uncompiled

send: Callable[[Tensor, list[int], list[int], ProcessGroup], Tensor] = _functional_collectives.all_to_all_single_autograd
Compute = Callable[[Tensor, Tensor, Tensor], Tensor]
"""The experts of a rank, on rows that are grouped by expert: rows, their shares, and the ends of the groups."""


class Exchange:
    """Rows of `count` experts on `ranks` ranks, each of which has as many experts as the others."""

    def __init__(self, count: int, ranks: int, group: ProcessGroup) -> None:
        self.count, self.ranks, self.group = count, ranks, group

    def arrange(self, experts: Tensor) -> Arrangement:
        """Arrange choices by expert, and so by rank, without padding: only what is needed travels."""
        order = experts.argsort(stable=True)
        places = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        return Arrangement(places, order, load_of(experts, self.count).cumsum(0).to(torch.int32))

    @uncompiled
    def compute(
        self, parts: list[Tensor], experts: list[Tensor], run: Compute, meanwhile: Callable[[], Tensor] | None
    ) -> tuple[list[Tensor], Tensor | None]:
        """Return the outputs of the experts for parts of arranged rows, and what `meanwhile` returns. All parts are sent at once.
        `meanwhile` runs while the first travels; while the experts compute one part, the next arrives and the one before returns. In the
        backward pass a part waits for its own rows. The host waits once for the loads, which say how much each rank sends."""
        each = self.count // self.ranks
        sent = torch.stack([load_of(choices, self.count).view(self.ranks, each) for choices in experts], 1)
        received = _functional_collectives.all_to_all_single(sent, None, None, self.group)
        loads = torch.stack((sent, received))  # to and from, rank, part, expert
        to_ranks, from_ranks = loads.sum(-1).transpose(1, 2).tolist()
        arrived = [send(rows, from_ranks[i], to_ranks[i], self.group) for i, rows in enumerate(parts)]
        beside = meanwhile() if meanwhile else None
        returned: list[Tensor] = []
        for i, rows in enumerate(arrived):
            returned.append(send(self._computed(rows, loads[1, :, i], run), to_ranks[i], from_ranks[i], self.group))
        return returned, beside

    def _computed(self, arrived: Tensor, loads: Tensor, run: Compute) -> Tensor:
        """Return the outputs for rows that arrived by rank and then by expert: the experts of a rank want theirs together."""
        each = loads.shape[1]
        kinds = torch.arange(each, device=arrived.device).repeat(self.ranks).repeat_interleave(loads.flatten())
        grouped = arrange(kinds, each)
        rows = spread(arrived, grouped, 1)
        return combine(run(rows, rows.new_ones(len(rows), dtype=torch.float32), grouped.ends), grouped, 1)
