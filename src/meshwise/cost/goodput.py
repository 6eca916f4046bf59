"""Goodput: how much of a long run's wall time is useful once devices fail, checkpoints are written and the slowest one is waited for.

The run is a renewal process. Failures come at random (exponentially) at `devices / mtbf`; each one throws the run back to its last
whole checkpoint and costs a restart; a share of them takes a node away for a repair time, and the run stands still whenever
more nodes are away than there are spares. A number is a float or an array over numbers of devices.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from meshwise.cost.layout import Floats
from meshwise.cost.reliability import DAY, Reliability

Number = float | Floats

LLAMA3_STORAGE = 2e12 / 16_384
"""122 MB/s a device: 2 TB/s that the storage sustains, over 16,384 H100 (arXiv:2407.21783, 3.3.1). Assumed: it grows with a cluster."""
HARDWARE = 0.78
"""Share of unexpected interruptions put down to hardware, which take a node away (arXiv:2407.21783, 3.3.4)."""
HOPELESS = 0.01
"""A run with a smaller useful share takes over a hundred times as long: it does not get anywhere."""

LOSSES = {
    "checkpoints": "writing checkpoints",
    "lost_work": "work done again",
    "restarts": "restarts",
    "repair": "waiting for repair",
    "stragglers": "stragglers",
}
"""What wall time is lost to, in words."""
PARTS = ("effective", *LOSSES)
"""What wall time goes into; the shares add up to 1."""


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """What becomes of wall time: the shares named in PARTS, and the figures behind them."""

    interruptions_per_day: Floats
    between: Floats
    """Seconds between two interruptions while the run is up."""
    checkpoint_bytes: Floats
    save: Floats
    """Seconds until a checkpoint is whole."""
    pause: Floats
    """Seconds that steps stand still for it."""
    interval: Floats
    """Seconds of work between two checkpoints."""
    down: Floats
    """Seconds of a restart, the checkpoint's reading included."""
    spares: Floats
    effective: Floats
    checkpoints: Floats
    """Writing checkpoints that were whole in the end."""
    lost_work: Floats
    """Work done again, and checkpoints that were not whole when a failure came."""
    restarts: Floats
    repair: Floats
    """Waiting for a node, with every spare in use."""
    stragglers: Floats

    @property
    def shares(self) -> dict[str, Floats]:
        return {part: getattr(self, part) for part in PARTS}

    def at(self) -> dict[str, float]:
        """The figures of one number of devices as plain numbers."""
        return {f.name: float(getattr(self, f.name)) for f in fields(self)}


def goodput(
    r: Reliability,
    devices: Any,
    *,
    checkpoint_bytes: float,
    staging: float = np.inf,
    step: Number = 0.0,
    per_node: int = 8,
) -> Goodput:
    """Shares of wall time on so many devices. `staging` is the bandwidth from a device into its host's memory, `step` a step's seconds.

    With M between failures, D down, a cycle c of work and pause, and d from a snapshot until it is whole, a failure after time X leaves
    floor((X - d) / c) cycles behind: exp(-d/M) / (exp(c/M) - 1) on average, and M exp(D/M) passes from one failure to the next
    (the complete model of Daly 2006, which has d = 0). Waiting for repair stops the clock of failures, so its share multiplies exactly.
    """
    n = np.asarray(devices, dtype=float)
    between = r.mtbf / n
    bandwidth = LLAMA3_STORAGE * n if r.checkpoint_bandwidth is None else r.checkpoint_bandwidth + 0 * n
    save, slow = checkpoint_bytes / bandwidth, 1 + r.straggler * expected_maximum(n)
    pause = checkpoint_bytes / n / staging if r.async_checkpoint else save
    behind = save if r.async_checkpoint else 0 * save
    best = daly_interval(pause, between) if r.checkpoint_every is None else r.checkpoint_every + 0 * n
    # A checkpoint is taken between steps, and not before the one before it is written.
    interval = np.maximum(np.maximum(best, behind), step * slow)
    down = r.restart + save
    load = HARDWARE * r.repair / between
    spares = worthwhile_spares(load, np.ceil(n / per_node)) if r.spares is None else r.spares + 0 * n
    waiting = repair_wait(load, spares)
    up = 1 - waiting
    running = up * np.exp(-down / between)
    cycle = interval + pause
    whole = running * _over_expm1(cycle / between) * np.exp(-behind / between)
    working = np.where(cycle > 0, interval / np.where(cycle > 0, cycle, 1), 1.0)
    return Goodput(
        interruptions_per_day=DAY / between * up,
        between=between,
        checkpoint_bytes=checkpoint_bytes + 0 * n,
        save=save,
        pause=pause,
        interval=interval,
        down=down,
        spares=spares,
        effective=whole * working / slow,
        checkpoints=whole * (1 - working),
        lost_work=running - whole,
        restarts=up - running,
        repair=waiting,
        stragglers=whole * working * (1 - 1 / slow),
    )


def _over_expm1(x: Number) -> Floats:
    """x / (exp(x) - 1), which is 1 at 0; beyond 700 exp() has no float, and the share is nothing."""
    bounded = np.clip(x, 1e-300, 700.0)
    return bounded / np.expm1(bounded)


def young_interval(pause: Number, between: Number) -> Floats:
    """Work between checkpoints that loses least to first order: sqrt(2 pause M) (Young 1974, doi:10.1145/361147.361115)."""
    return np.sqrt(2 * np.asarray(pause) * between)


def daly_interval(pause: Number, between: Number) -> Floats:
    """Young's interval to higher order, less the pause; M where a pause takes over 2 M (Daly 2006, doi:10.1016/j.future.2004.11.016)."""
    ratio = np.minimum(np.asarray(pause) / (2 * np.asarray(between)), 1.0)
    near = young_interval(pause, between) * (1 + np.sqrt(ratio) / 3 + ratio / 9) - pause
    return np.where(ratio < 1, near, between)


def expected_maximum(n: Number) -> Floats:
    """Standard deviations that the slowest of n devices is behind the mean: the normal quantile of (n - 3/8) / (n + 1/4) (Blom 1958).

    All devices of a synchronous step wait for one another, and their noise is taken to be independent and normal: 3.9 for 16,384.
    sqrt(2 ln n) is what it tends to, from above: 4.4 there.
    """
    from statistics import NormalDist

    quantile = np.vectorize(NormalDist().inv_cdf, otypes=[float])
    return quantile((np.asarray(n) - 0.375) / (np.asarray(n) + 0.25))


def repair_wait(load: Number, spares: Number) -> Floats:
    """Share of time with more nodes away than there are spares; `load` is failures per repair time.

    Nodes fail only while the run is up, so it is Erlang's loss formula B(spares + 1, load), whatever the distribution of repair
    times (Erlang 1917): B(0) = 1, B(k) = load B(k - 1) / (k + load B(k - 1)).
    """
    load, spares = np.asarray(load, dtype=float), np.asarray(spares)
    wait = np.ones(np.broadcast(load, spares).shape)
    for k in range(1, int(np.max(spares)) + 2):
        wait = np.where(k <= spares + 1, load * wait / (k + load * wait), wait)
        if not np.any(wait * (k <= spares)):  # the rest are as good as never out of spares
            break
    return wait


def worthwhile_spares(load: Number, nodes: Number) -> Floats:
    """Spare nodes, no more than the nodes themselves, up to which another one saves more waiting than it costs to hold.

    The least (nodes + spares) / (1 - B(spares + 1, load)): B is convex in the spares, so the first that does not pay is the end.
    """
    load, nodes = np.asarray(load, dtype=float), np.asarray(nodes, dtype=float)
    wait, spares, k = load / (1 + load), np.zeros(load.shape), 1
    cost, more = nodes * (1 + load), np.full(load.shape, True)
    while np.any(more := more & (spares < nodes)):
        k += 1
        up = k / (k + load * wait)
        more = more & ((nodes + k - 1) / up < cost)
        cost, wait, spares = np.where(more, (nodes + k - 1) / up, cost), np.where(more, 1 - up, wait), spares + more
    return spares
