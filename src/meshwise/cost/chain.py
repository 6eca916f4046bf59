"""Time of a recurrence that is walked step by step (TTT): the chain's latency, and the bytes of what runs beside it in parallel."""

import numpy as np

from meshwise.cost.compute import Device
from meshwise.layout import Floats
from meshwise.op import Op

STEP, STEP_BACK = 1.0e-6, 2.0e-6
"""Seconds of one step of a chain, whatever the batch, until chains outnumber the multiprocessors (H200: docs/ttt-kernels.md)."""
TILES, TILES_BACK = 12, 25
"""Times that a head's features of a token are read or written around the chain: tiles of docs/ttt-kernels.md, by kernel."""
STATES, STATES_BACK = 2, 4
"""Times that the state of a mini-batch is read or written."""
SHARE = 0.5
"""Of streaming bandwidth that the kernels around the chain reach (H200: docs/ttt-kernels.md)."""


def chain(d: Device, op: Op, seq: int, mbs: Floats, tp: Floats, heads: int) -> tuple[Floats, Floats]:
    """Forward and backward seconds of one layer: its steps in turn, each as long as the last, and the bytes beside them.

    A multiprocessor walks one chain of one head and sequence at its full pace, and two at half of it. Worked: 8 x 2048 tokens in
    mini-batches of 16 and 12 heads are 96 chains of 128 steps.
    """
    steps, chains = np.ceil(seq / op.serial), mbs * heads / tp
    turns = np.maximum(1.0, chains / d.sms)
    state = op.state / 2 / heads / op.serial
    moved = d.element * chains * seq / (d.bandwidth * SHARE)
    forward = steps * turns * STEP + moved * (TILES * op.k + STATES * state)
    return forward, steps * turns * STEP_BACK + moved * (TILES_BACK * op.k + STATES_BACK * state)
