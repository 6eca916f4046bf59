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
    def compute(self, rows: Tensor, experts: Tensor, run: Compute) -> Tensor:
        """Return the outputs of the experts for arranged rows. The host waits once for the loads, which say how much each rank sends."""
        each = self.count // self.ranks
        sent = load_of(experts, self.count)
        received = _functional_collectives.all_to_all_single(sent, None, None, self.group)
        loads = torch.stack((sent, received)).view(2, self.ranks, each)
        to_ranks, from_ranks = loads.sum(-1).tolist()
        arrived = send(rows, from_ranks, to_ranks, self.group)
        # rows arrive by rank and then by expert: the experts of a rank want theirs together
        kinds = torch.arange(each, device=rows.device).repeat(self.ranks).repeat_interleave(loads[1].flatten())
        grouped = arrange(kinds, each)
        spread_rows = spread(arrived, grouped, 1)
        out = run(spread_rows, rows.new_ones(len(spread_rows), dtype=torch.float32), grouped.ends)
        return send(combine(out, grouped, 1), to_ranks, from_ranks, self.group)
