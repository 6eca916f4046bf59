"""Time of a recurrence that is walked step by step (TTT): the chain's latency, and the bytes of what runs beside it in parallel."""

import numpy as np

from meshwise.cost.layout import Floats
from meshwise.cost.train.compute import SHORTEST_KERNEL, Device
from meshwise.models.op import Op

STEP, STEP_BACK = 1.43e-6, 2.69e-6
"""Seconds of one step of a chain, whatever the batch, until chains outnumber the multiprocessors: 8 x 2048 on an H200
(docs/ttt-kernels.md)."""
TILES, TILES_BACK = 10, 19
"""Times that a head's features of a token are read or written beside the chain: the tiles of docs/ttt-kernels.md, less the chains'."""
PRODUCTS = 3
"""Of a state's size in a step of the chain that was timed, TTT-Linear's. Other learners take as much longer as they have more work:
TTT-MLP's 28 make its steps 13 and 25 us, where 10 and 28 were measured (docs/ttt-mlp-kernels.md)."""
STATES, STATES_BACK = 1, 3
"""Times that the state of a mini-batch is read or written there."""
SHARE, SHARE_BACK = 0.88, 0.46
"""Of streaming bandwidth that the kernels beside the chain reach: 113 and 481 us of a layer at 8 x 2048 on an H200."""

AROUND, AROUND_BACK = 4, 8
"""Kernels that pack what the chain takes and add up the gradients of its small weights, each as short as a kernel can be: about as many are
in the profile of a step of 16 x 128 tokens (docs/ttt-kernels.md), where they count."""


def chain(d: Device, op: Op, seq: int, mbs: Floats, tp: Floats, heads: int) -> tuple[Floats, Floats]:
    """Forward and backward seconds of one layer: its steps in turn, each as long as the last, and the bytes beside them.

    A multiprocessor walks one chain of one head and sequence at its full pace, and two at half of it. Worked: 16 x 512 tokens in
    mini-batches of 16 and 12 heads are 192 chains of 32 steps, 1.45 on each of 132 multiprocessors: 32 x 1.45 x 1.43 = 67 us forward
    (measured: 63).
    """
    steps, chains = np.ceil(seq / op.serial), mbs * heads / tp
    turns = np.maximum(1.0, chains / d.sms)
    state = op.state / 2 / heads / op.serial
    moved = d.element * chains * seq / d.bandwidth
    work = op.m / heads * op.n / op.k / PRODUCTS
    # the states of a learner that is wider inside are not kept: the way back walks the chain forward once more
    again = STEP if op.n > op.k else 0.0
    forward = steps * turns * work * STEP + moved / SHARE * (TILES * op.k + STATES * state)
    backward = steps * turns * work * (STEP_BACK + again) + moved / SHARE_BACK * (TILES_BACK * op.k + STATES_BACK * state)
    return forward + AROUND * SHORTEST_KERNEL, backward + AROUND_BACK * SHORTEST_KERNEL
