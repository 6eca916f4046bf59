"""Goodput: the share of a long run's wall time that is effective, given failures, checkpoints and stragglers.

The run is a renewal process. Failures arrive at random (exponentially) at a rate of `devices / mtbf`; each one sets the run back to its
last complete checkpoint and costs a restart; a share of them removes a node for a repair time, and the run stops while more nodes are
missing than there are spares. A number is a float or an array over numbers of devices.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from meshwise.cost.layout import Floats
from meshwise.cost.work import DAY_SECONDS, Reliability

Number = float | Floats

LLAMA3_STORAGE_RATE = 2e12 / 16_384
"""122 MB/s per device: 2 TB/s sustained by the storage, over 16,384 H100 (arXiv:2407.21783, 3.3.1). Assumed to grow with the cluster."""
HARDWARE_SHARE = 0.78  # share of unexpected interruptions attributed to hardware, which remove a node (arXiv:2407.21783, 3.3.4)
MIN_GOODPUT = 0.01  # goodput below which a run takes over a hundred times as long and counts as not progressing

LOSSES = {
    "checkpoints": "writing checkpoints", "lost_work": "work done again", "restarts": "restarts",
    "repair": "waiting for repair", "stragglers": "stragglers",
}  # fmt: skip
"""The losses of wall time, in words."""
PARTS = ("effective", *LOSSES)  # all shares of wall time; they add up to 1


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """The shares of wall time in PARTS, and the figures they are computed from."""

    interruptions_per_day: Floats
    between: Floats  # mean seconds between two interruptions while the run is up
    checkpoint_bytes: Floats
    save: Floats  # seconds until a checkpoint is complete
    pause: Floats  # seconds that a checkpoint pauses the steps
    interval: Floats  # seconds of work between two checkpoints
    down: Floats  # seconds of a restart, reading the checkpoint included
    spares: Floats
    effective: Floats
    checkpoints: Floats  # writing checkpoints that were completed
    lost_work: Floats  # work done again, and checkpoints that a failure left incomplete
    restarts: Floats
    repair: Floats  # waiting for a node while every spare is in use
    stragglers: Floats

    @property
    def shares(self) -> dict[str, Floats]:
        return {part: getattr(self, part) for part in PARTS}

    def at(self) -> dict[str, float]:
        """Return the figures of a single number of devices as plain floats."""
        return {f.name: float(getattr(self, f.name)) for f in fields(self)}


def goodput(
    r: Reliability, devices: Any, *, checkpoint_bytes: float, staging: float = np.inf, step: Number = 0.0, per_node: int = 8
) -> Goodput:
    """Return the shares of wall time on this many devices. `staging` is the bandwidth from a device into its host's memory, `step` the
    seconds of a step. With M between failures, D down, a cycle c of work and pause, and d from a snapshot until it is complete, a failure
    after time X keeps floor((X - d) / c) cycles: exp(-d/M) / (exp(c/M) - 1) on average, and M exp(D/M) passes from one failure to the next
    (the complete model of Daly 2006, which has d = 0). No failure occurs while waiting for repair, so that share multiplies exactly."""
    n = np.asarray(devices, dtype=float)
    between = r.mtbf / n
    bandwidth = LLAMA3_STORAGE_RATE * n if r.checkpoint_bandwidth is None else r.checkpoint_bandwidth + 0 * n
    save, slow = checkpoint_bytes / bandwidth, 1 + r.straggler * expected_maximum(n)
    pause = checkpoint_bytes / n / staging if r.async_checkpoint else save
    lag = save if r.async_checkpoint else 0 * save
    best = daly_interval(pause, between) if r.checkpoint_every is None else r.checkpoint_every + 0 * n
    # A checkpoint is taken between steps, and not before the previous one is written.
    interval = np.maximum(np.maximum(best, lag), step * slow)
    down = r.restart + save
    load = HARDWARE_SHARE * r.repair / between
    spares = worthwhile_spares(load, np.ceil(n / per_node)) if r.spares is None else r.spares + 0 * n
    waiting = repair_wait(load, spares)
    up = 1 - waiting
    running = up * np.exp(-down / between)
    cycle = interval + pause
    whole = running * _over_expm1(cycle / between) * np.exp(-lag / between)
    working = np.where(cycle > 0, interval / np.where(cycle > 0, cycle, 1), 1.0)
    return Goodput(
        interruptions_per_day=DAY_SECONDS / between * up, between=between, checkpoint_bytes=checkpoint_bytes + 0 * n, save=save,
        pause=pause, interval=interval, down=down, spares=spares, effective=whole * working / slow,
        checkpoints=whole * (1 - working), lost_work=running - whole, restarts=up - running, repair=waiting,
        stragglers=whole * working * (1 - 1 / slow),
    )  # fmt: skip


def _over_expm1(x: Number) -> Floats:
    """Return x / (exp(x) - 1), which is 1 at 0. Beyond 700 exp() overflows, and the share is practically 0."""
    bounded = np.clip(x, 1e-300, 700.0)
    return bounded / np.expm1(bounded)


def young_interval(pause: Number, between: Number) -> Floats:
    """Return the work between checkpoints that loses least to first order: sqrt(2 pause M) (Young 1974, doi:10.1145/361147.361115)."""
    return np.sqrt(2 * np.asarray(pause) * between)


def daly_interval(pause: Number, between: Number) -> Floats:
    """Return Young's interval to higher order, minus the pause; M where a pause takes over 2 M (Daly 2006,
    doi:10.1016/j.future.2004.11.016)."""
    ratio = np.minimum(np.asarray(pause) / (2 * np.asarray(between)), 1.0)
    near = young_interval(pause, between) * (1 + np.sqrt(ratio) / 3 + ratio / 9) - pause
    return np.where(ratio < 1, near, between)


def expected_maximum(n: Number) -> Floats:
    """Return how many standard deviations the slowest of n devices is behind the mean: the normal quantile of (n - 3/8) / (n + 1/4) (Blom
    1958). All devices of a synchronous step wait for each other, and their noise is assumed independent and normal: 3.9 for 16,384. The
    limit sqrt(2 ln n) is larger: 4.4 there."""
    from statistics import NormalDist

    quantile = np.vectorize(NormalDist().inv_cdf, otypes=[float])
    return quantile((np.asarray(n) - 0.375) / (np.asarray(n) + 0.25))


def repair_wait(load: Number, spares: Number) -> Floats:
    """Return the share of time with more nodes missing than there are spares; `load` is failures per repair time. Nodes fail only while
    the run is up, so it is Erlang's loss formula B(spares + 1, load), whatever the distribution of repair times (Erlang 1917): B(0) = 1,
    B(k) = load B(k - 1) / (k + load B(k - 1))."""
    load, spares = np.asarray(load, dtype=float), np.asarray(spares)
    wait = np.ones(np.broadcast(load, spares).shape)
    for k in range(1, int(np.max(spares)) + 2):
        wait = np.where(k <= spares + 1, load * wait / (k + load * wait), wait)
        if not np.any(wait * (k <= spares)):  # the rest practically never run out of spares
            break
    return wait


def worthwhile_spares(load: Number, nodes: Number) -> Floats:
    """Return the number of spare nodes, at most `nodes`, up to which another one saves more waiting than it costs to hold. It minimizes
    (nodes + spares) / (1 - B(spares + 1, load)). B is convex in the spares, so the search stops at the first that does not pay."""
    load, nodes = np.asarray(load, dtype=float), np.asarray(nodes, dtype=float)
    wait, spares, k = load / (1 + load), np.zeros(load.shape), 1
    cost, more = nodes * (1 + load), np.full(load.shape, True)
    while np.any(more := more & (spares < nodes)):
        k += 1
        up = k / (k + load * wait)
        more = more & ((nodes + k - 1) / up < cost)
        cost, wait, spares = np.where(more, (nodes + k - 1) / up, cost), np.where(more, 1 - up, wait), spares + more
    return spares
