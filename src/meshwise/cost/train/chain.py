"""Time of a sequential recurrence (TTT): the latency of its chain of steps, and the bytes of the kernels that run in parallel with it."""

import numpy as np

from meshwise.cost.layout import Floats
from meshwise.cost.train.compute import SHORTEST_KERNEL, Device
from meshwise.models.op import Op

STEP, STEP_BACK = 1.43e-6, 2.69e-6
"""Seconds of one step of a chain, for any batch until chains outnumber the multiprocessors: 8 x 2048 on an H200 (docs/ttt-kernels.md)."""
TILES, TILES_BACK = 10, 19
"""Times that a head's features of a token are read or written outside the chain: the tiles of docs/ttt-kernels.md, minus the chain's."""
PRODUCTS = 3
"""Products of a state's size in one step of TTT-Linear, whose chain was timed. Other learners scale with their number of products:
TTT-MLP's 28 make its steps 13 and 25 us, where 10 and 28 were measured (docs/ttt-mlp-kernels.md)."""
STATES, STATES_BACK = 1, 3
"""Times that the state of a mini-batch is read or written outside the chain."""
SHARE, SHARE_BACK = 0.88, 0.46
"""Share of streaming bandwidth that the kernels outside the chain reach: 113 and 481 us of a layer at 8 x 2048 on an H200."""

AROUND, AROUND_BACK = 4, 8
"""Kernels that pack the inputs of the chain and sum the gradients of its small weights, each as short as a kernel can be. A profile of a
step of 16 x 128 tokens, where they matter, shows about this many (docs/ttt-kernels.md)."""


def chain(d: Device, op: Op, seq: int, mbs: Floats, tp: Floats, heads: int) -> tuple[Floats, Floats]:
    """Return forward and backward seconds of one layer: the sequential steps, each of equal length, plus the bytes moved outside them.

    A multiprocessor runs one chain (one head of one sequence) at full speed, and two at half speed each. Worked: 16 x 512 tokens in
    mini-batches of 16 and 12 heads are 192 chains of 32 steps, 1.45 on each of 132 multiprocessors: 32 x 1.45 x 1.43 = 67 us forward
    (measured: 63).
    """
    steps, chains = np.ceil(seq / op.serial), mbs * heads / tp
    turns = np.maximum(1.0, chains / d.sms)
    state = op.state / 2 / heads / op.serial
    moved = d.element * chains * seq / d.bandwidth
    work = op.m / heads * op.n / op.k / PRODUCTS
    # a learner with a wider hidden layer does not keep its states: the backward pass runs the chain forward once more
    again = STEP if op.n > op.k else 0.0
    forward = steps * turns * work * STEP + moved / SHARE * (TILES * op.k + STATES * state)
    backward = steps * turns * work * (STEP_BACK + again) + moved / SHARE_BACK * (TILES_BACK * op.k + STATES_BACK * state)
    return forward + AROUND * SHORTEST_KERNEL, backward + AROUND_BACK * SHORTEST_KERNEL
