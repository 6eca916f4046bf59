"""Transfers between the devices of a served model: latencies, bytes on a link, all-reduces by the kind of link and the message size."""

from math import log2

from meshwise.catalogue.calibrations import ServeCalibration
from meshwise.catalogue.chips import Link
from meshwise.cost.serve.passes.demand import Demand

PEER_ACCESS_RATE = 100e9
"""Bandwidth from which a link lets devices read each other's memory (NVLink, Infinity Fabric); slower links are PCIe."""
FAST_LATENCY, SLOW_LATENCY = 1e-6, 8e-6
RING, ONE_SHOT = 2.5e-5, 1e6
"""Over NVLink, short messages are summed by one kernel that reads all devices; longer ones by a ring, whose start costs this more."""
HOST_STEP_SECONDS = 1.7e-5
"""One step of a ring between devices without peer access (GeForce on PCIe): a copy to host memory, a signal, a copy from it."""
NETWORK_LATENCY_SECONDS = 3e-5
"""One way through two network cards, a switch and their drivers, where the link does not state its latency."""
SOCKET_STEP_SECONDS = 1.5e-4
"""One step of a ring over TCP sockets: the network, and the copies and wake-ups of the programs at both ends."""
MAX_RDMA_LATENCY_SECONDS = 1e-5  # latency below which a network bypasses the kernel


def latency(link: Link | None, remote: bool) -> float:
    """Return the latency that a link states, or the usual one for its kind."""
    if link is None:
        return NETWORK_LATENCY_SECONDS if remote else SLOW_LATENCY
    if link.latency is not None:
        return link.latency
    return NETWORK_LATENCY_SECONDS if remote else FAST_LATENCY if link.bandwidth >= PEER_ACCESS_RATE else SLOW_LATENCY


def moved(size: float, link: Link | None, s: ServeCalibration) -> float:
    """Return seconds that `size` bytes take on a link; 0 where there is none."""
    return size / (link.bandwidth * s.link) if link else 0.0


def all_to_all(d: Demand, tokens: float, s: ServeCalibration) -> float:
    """Return seconds in which devices exchange their shares of the tokens of a pass with the experts of a layer, there and back."""
    link, n = d.reduce_link, d.tp
    parts = min(1.0, (n - 1) / (link.peers - 1)) if link and link.peers > 1 else 1.0
    step = latency(link, d.reduce_remote) if d.peer_access or (link and link.bandwidth >= PEER_ACCESS_RATE) else HOST_STEP_SECONDS
    return (
        2 * (s.reduce + step * (1 if link and link.bandwidth >= PEER_ACCESS_RATE else n - 1))
        + moved(tokens / n * d.dispatch_bytes, link, s) / parts
    )


def all_reduce(d: Demand, tokens: float, s: ServeCalibration) -> float:
    """Return seconds of an all-reduce of `tokens` activations over the devices of a tensor-parallel group. Over NVLink: 2 log2 n steps of
    latency and 2 (n - 1) / n of the bytes. Over PCIe and networks: a ring of 2 (n - 1) steps that moves 1/n of the bytes in each; through
    host memory, every byte crosses PCIe twice. Worked: 32 tokens of 8,192 elements over 4 RTX 4090: 6 steps of 17 us and 131 kB at 8 GB/s
    each: 0.2 ms, 32 ms in a step of 80 layers."""
    n, link = d.tp, d.reduce_link
    size = tokens * d.reduce_bytes
    if n < 2:
        return 0.0
    if link is not None and not d.reduce_remote and link.bandwidth >= PEER_ACCESS_RATE:
        parts = min(1.0, (n - 1) / (link.peers - 1)) if link.peers > 1 else 1.0
        ring = RING * size / (size + ONE_SHOT)
        return s.reduce + ring + 2 * log2(n) * latency(link, False) + 2 * (n - 1) / n * moved(size, link, s) / parts
    if d.reduce_remote:
        known = link.latency if link else None
        step = known if known is not None and known < MAX_RDMA_LATENCY_SECONDS else SOCKET_STEP_SECONDS
        return s.reduce + 2 * (n - 1) * (step + moved(size / n, link, s))
    through_host = 1.0 if d.peer_access else 2.0
    step = latency(link, False) if d.peer_access else HOST_STEP_SECONDS
    return s.reduce + 2 * (n - 1) * (step + through_host * moved(size / n, link, s))
