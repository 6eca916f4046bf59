"""Faults in communication of one rank."""

from collections.abc import Iterator

from meshwise.audit.doctor.fault import Fault, milliseconds
from meshwise.audit.doctor.profile import Evidence, Message

MIN_SHARE = 0.03
SMALL_BYTES = 1 << 19
MIN_SMALL = 8
HIDDEN_SHARE = 0.2
"""Share of communication that is hidden up to which nothing seems to overlap."""
LARGE_BYTES = 1 << 20
SLOW_HOST_RATE = 0.15e9
"""Bytes per second of large messages between processes on CPUs below which a link is slower than any network of a cluster."""


def small_messages(e: Evidence) -> Iterator[Fault]:
    """Many small reductions instead of a few large ones."""
    sent = [one for one in e.profile.messages if one.part == "dp" and "broadcast" not in one.kind]
    small = [one for one in sent if 0 < one.bytes < SMALL_BYTES]
    count, seconds = sum(one.count for one in small), sum(one.seconds for one in small)
    if count < MIN_SMALL or count < 0.6 * sum(one.count for one in sent):
        return
    exposed = sum(one.exposed for one in small)
    if max(exposed, 0.3 * seconds) < MIN_SHARE * e.step:
        return
    size = sum(one.bytes * one.count for one in small)
    yield Fault(
        "tiny messages", "certain", exposed * 0.8,
        f"{count:.0f} reductions a step of {size / count / 1e3:.3g} kB on average take {milliseconds(seconds)}: each pays the latency of the "
        "network",
        "larger buckets (DistributedDataParallel's bucket_cap_mb=25 or more, or one flat buffer), or fewer, larger units of FSDP",
        f"{size / 1e6:.3g} MB a step in all",
    )  # fmt: skip


def no_overlap(e: Evidence) -> Iterator[Fault]:
    """Weights are gathered or gradients reduced while nothing computes."""
    sent = [one for one in e.profile.messages if one.part == "dp" and "broadcast" not in one.kind and one.bytes >= SMALL_BYTES / 8]
    seconds, exposed, count = (sum(getattr(one, name) for one in sent) for name in ("seconds", "exposed", "count"))
    working = sum(e.profile.phases.values())
    if count < 2 or exposed < 2 * MIN_SHARE * e.step or exposed < (1 - HIDDEN_SHARE) * seconds:
        return
    gathers = any("gather" in one.kind for one in sent)
    lost = min(exposed, working) * 0.7
    yield Fault(
        "no overlap", "likely", lost,
        f"{'weights are gathered' if gathers else 'gradients are reduced'} while nothing computes: {milliseconds(exposed)} of "
        f"{milliseconds(seconds)} a step are exposed",
        "prefetch the next layer (FSDP: forward_prefetch, limit_all_gathers, set_modules_to_forward_prefetch)" if gathers else
        "start reductions during the backward pass (DistributedDataParallel's hooks, overlap_grad_reduce)",
        f"{count:.0f} collectives a step; {milliseconds(working)} of computation could hide them",
    )  # fmt: skip


def bus_rate(one: Message) -> float:
    """Return bytes per second that the fastest of these messages moved over the slowest link of a ring."""
    ranks = max(2, one.ranks)
    around = 2.0 if "reduce" in one.kind.lower() and "scatter" not in one.kind.lower() else 1.0
    return one.bytes * around * (ranks - 1) / ranks / max(1e-9, one.shortest)


def slow_link(e: Evidence, link: float = 0.0, name: str = "") -> Iterator[Fault]:
    """Large messages are far slower than the link between the ranks. `link`: its bytes per second, if known."""
    large = [one for one in e.profile.messages if one.bytes >= LARGE_BYTES]
    if not large or e.timeline.world < 2:
        return
    fastest = max(large, key=bus_rate)
    rate, seconds = bus_rate(fastest), sum(one.exposed for one in large)
    least = 0.25 * link if e.timeline.on_gpu and link else SLOW_HOST_RATE if not e.timeline.on_gpu else 0.0
    if rate >= least or seconds < 2 * MIN_SHARE * e.step:
        return
    expected = link or 1e9
    over = "PCIe instead of the chips' own link" if e.timeline.on_gpu and rate > 5e9 else "sockets, or the wrong network interface"
    yield Fault(
        "slow link", "likely", seconds * (1 - rate / expected),
        f"large messages reach {rate / 1e9:.3g} GB/s" + (f", where {name} has {link / 1e9:.3g}" if link else ", less than any cluster's network")
        + f": it looks like {over}",
        "set NCCL_DEBUG=INFO and read which transport it chose; NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME, NCCL_IB_HCA, NCCL_P2P_LEVEL=NVL",
        f"{fastest.kind} of {fastest.bytes / 1e6:.3g} MB over {fastest.ranks} ranks: at best {milliseconds(fastest.shortest)}",
    )  # fmt: skip


RULES = (small_messages, no_overlap, slow_link)
