"""Time of a sequential recurrence (TTT): the latency of its chain of steps, and the parallel kernels before, after and beside it."""

from dataclasses import dataclass

import numpy as np

from meshwise.cost.layout import Floats
from meshwise.cost.train.compute import MIN_KERNEL_SECONDS, Device
from meshwise.models.op import Op

STEP, STEP_BACK = 1.43e-6, 2.69e-6
"""Seconds of one step of TTT-Linear's chain, for any batch until chains outnumber the multiprocessors: 8 x 2048 on an H200
(docs/reports/ttt-kernels.md)."""
TILES, TILES_BACK = 10, 19
"""Times that a head's features of a token are read or written outside the chain: tiles of docs/reports/ttt-kernels.md, minus its own."""
STATES, STATES_BACK = 1, 3  # times that the state of a mini-batch is read or written outside the chain
SHARE, SHARE_BACK = 0.88, 0.46
"""Share of streaming bandwidth that the kernels outside the chain reach: 113 and 481 us of a layer at 8 x 2048 on an H200."""

AROUND, AROUND_BACK = 4, 8
"""Kernels that pack the inputs of the chain and sum the gradients of its small weights, each as short as a kernel can be. A profile of a
step of 16 x 128 tokens, where they matter, shows about this many (docs/reports/ttt-kernels.md)."""


@dataclass(frozen=True)
class Pass:
    """A chain of TTT-MLP's kernels and the kernel that reads what each of its steps leaves, in one direction."""

    step: float  # seconds of one step of a chain, which has a multiprocessor to itself
    after: float  # seconds of a multiprocessor for each step in the kernel that follows: one program per step, several at a time

    def seconds(self, sms: int, steps: Floats, sequences: Floats, heads: Floats) -> Floats:
        """Return the seconds of all chains, one per sequence and head, and of what follows them. Whole sequences whose chains fit on the
        chip make a wave. The kernel after a wave runs beside the next wave, on the multiprocessors that its chains leave idle, and the
        rest of it at the end. Worked: 16 sequences of 12 heads on 132 multiprocessors are a wave of 11 sequences and one of 5: the second
        leaves 72 idle."""
        fitting = np.maximum(1.0, np.floor(sms / heads))
        waves = np.where(heads > sms, 1.0, np.ceil(sequences / fitting))
        full = np.where(heads > sms, 0.0, fitting * heads)
        last = sequences * heads - (waves - 1) * full
        turns = np.ceil(last / sms)
        chain = steps * self.step
        beside = (waves - 1) * full * steps * self.after
        idle = np.maximum(0.0, waves - 2) * (sms - full) * chain + (waves > 1) * (turns * sms - last) * chain
        rest = np.maximum(0.0, beside - idle) + last * steps * self.after
        return (waves - 1 + turns) * chain + rest / sms


MLP_FORWARD = Pass(step=6.14e-6, after=5.32e-6)
MLP_AGAIN = Pass(step=6.14e-6, after=9.71e-6)
MLP_BACKWARD = Pass(step=12.6e-6, after=2.0e-6)
"""TTT-MLP with heads of 64 features, from the profile of a step of the 125M model at 16 x 512 on an H200 (docs/reports/ttt-mlp-kernels.md).
The backward pass runs the forward chain again instead of keeping its states."""
TIMED_WEIGHTS = 4 * 64 * 64  # weights of one layer of the learner that was timed


def chain(d: Device, op: Op, seq: int, mbs: Floats, tp: Floats, heads: int) -> tuple[Floats, Floats]:
    """Return forward and backward seconds of one layer."""
    forward, backward = (_mlp if op.n > op.k else _linear)(d, op, np.ceil(seq / op.serial), mbs, heads / tp)
    return forward + AROUND * MIN_KERNEL_SECONDS, backward + AROUND_BACK * MIN_KERNEL_SECONDS


def _linear(d: Device, op: Op, steps: Floats, mbs: Floats, heads: Floats) -> tuple[Floats, Floats]:
    """Return the seconds of TTT-Linear: the sequential steps, each of equal length, plus the bytes moved outside them. A multiprocessor
    runs one chain (one head of one sequence) at full speed, and two at half speed each. Worked: 16 x 512 tokens in mini-batches of 16 and
    12 heads are 192 chains of 32 steps, 1.45 on each of 132 multiprocessors: 32 x 1.45 x 1.43 = 67 us forward (measured: 63)."""
    chains = mbs * heads
    turns = np.maximum(1.0, chains / d.sms)
    # weights and as many sums of a decoder count as state
    state = op.state / 2 / (op.m / 3) / op.serial
    moved = d.element * chains * steps * op.serial / d.bandwidth
    forward = steps * turns * STEP + moved / SHARE * (TILES * op.k + STATES * state)
    return forward, steps * turns * STEP_BACK + moved / SHARE_BACK * (TILES_BACK * op.k + STATES_BACK * state)


def _mlp(d: Device, op: Op, steps: Floats, mbs: Floats, heads: Floats) -> tuple[Floats, Floats]:
    """Return the seconds of TTT-MLP. Kernels of other widths would take as much longer as their products have more FLOPs."""
    wider = op.n * op.k / TIMED_WEIGHTS
    forward, again, backward = (p.seconds(d.sms, steps, mbs, heads) * wider for p in (MLP_FORWARD, MLP_AGAIN, MLP_BACKWARD))
    sums = 2 * 4 * 2 * op.n * op.k * mbs * heads / d.bandwidth  # gradients of the first weights, one copy per sequence
    return forward, again + backward + sums


def scratch_bytes(op: Op, heads: int) -> float:
    """Return bytes per token that the kernels of one layer's backward pass leave for each other, in 16 and 32 bits. TTT-MLP, for each
    mini-batch and head: the weights at its start, 8 tiles of the inner width, 3 of the head's and the keys' gradients. TTT-Linear: 6
    tiles of the head's width and the gradient of the weights. Worked: TTT-MLP with 64 features in mini-batches of 16: 65,536 + 1,280 +
    65,536 + 6,144 + 4,096 + 896 = 143,488 bytes, 8,968 per token and head."""
    batch = op.serial
    if op.n <= op.k:
        return heads * (6 * 2 * op.k + 2 * op.n * op.k / batch)
    weights = 2 * 2 * op.n * op.k + 4 * (op.n + op.k)
    tiles = 8 * 2 * op.n * batch + 3 * 2 * op.k * batch + 4 * op.k * batch
    return heads * (weights + tiles + 4 * (6 * batch + 2 * op.k)) / batch
