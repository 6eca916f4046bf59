"""Faults in communication."""

from collections.abc import Iterator, Sequence

from meshwise.audit.doctor.fault import Fault, milliseconds
from meshwise.audit.doctor.intervals import Cover
from meshwise.audit.doctor.profile import Evidence, Message, Profile, messages

MIN_SHARE = 0.03
SMALL_BYTES, FEW_BYTES = 1 << 19, 1 << 17
"""Bytes up to which a reduction mostly pays latency, and from which on a message could be hidden."""
MIN_SMALL = 8
HIDDEN_SHARE = 0.2  # share of communication that is hidden up to which nothing seems to overlap
OVERLAPS = (
    ("gather", "weights are gathered", "prefetch the next layer (FSDP: set_modules_to_forward_prefetch, or forward_prefetch and "
     "limit_all_gathers=False)"),
    ("reduce", "gradients are reduced", "start reductions during the backward pass (DistributedDataParallel, overlap_grad_reduce)"),
)  # fmt: skip
LARGE_BYTES = 1 << 20
SLOW_HOST_RATE = 0.06e9
"""Bytes per second of large messages between processes on CPUs below which a link is slower than any network of a cluster."""


def small_messages(e: Evidence) -> Iterator[Fault]:
    """Many small reductions instead of a few large ones."""
    sent = [one for one in e.profile.messages if one.part == "dp" and "reduce" in one.kind.lower()]
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
        f"{count:.0f} reductions a step of {size / count / 1e3:.3g} kB on average take {milliseconds(seconds)}: each pays the latency of "
        "the network",
        "larger buckets (DistributedDataParallel's bucket_cap_mb=25 or more, or one flat buffer), or fewer, larger units of FSDP",
        f"{size / 1e6:.3g} MB a step in all",
    )  # fmt: skip


def no_overlap(e: Evidence) -> Iterator[Fault]:
    """Weights are gathered, or gradients reduced, while nothing computes, in the forward or in the backward pass."""
    back = e.split.cover["backward"]
    ahead = Cover.of(*back.gaps(float(e.split.steps.bounds[0]), float(e.split.steps.bounds[-1])))
    for word, what, change in OVERLAPS:
        lost, total, count = 0.0, 0.0, 0.0
        for phase in (messages(e, ahead), messages(e, back)) if word == "gather" else (e.profile.messages,):
            sent = [one for one in phase if one.part == "dp" and word in one.kind.lower() and one.bytes >= FEW_BYTES]
            seconds, exposed, each = (sum(getattr(one, name) for one in sent) for name in ("seconds", "exposed", "count"))
            if (
                each >= 2 * max(1, e.profile.micro_batches) and exposed >= (1 - HIDDEN_SHARE) * seconds
            ):  # a single one has nothing to hide
                lost, total, count = lost + exposed, total + seconds, count + each
        working = sum(e.profile.phases.values())
        if lost >= 1.5 * MIN_SHARE * e.step:
            yield Fault(
                "no overlap", "likely", 0.7 * min(lost, working),
                f"{what} while nothing computes: {milliseconds(lost)} of {milliseconds(total)} a step are exposed", change,
                f"{count:.0f} collectives a step; {milliseconds(working)} of computation could hide them",
            )  # fmt: skip


def bus_rate(one: Message) -> float:
    """Return bytes per second that the fastest of these messages moved over the slowest link of a ring."""
    ranks = max(2, one.ranks)
    around = 2.0 if "reduce" in one.kind.lower() and "scatter" not in one.kind.lower() else 1.0
    return one.bytes * around * (ranks - 1) / ranks / max(1e-9, one.shortest)


def slow_link(profiles: Sequence[Profile], link: float = 0.0, name: str = "") -> Iterator[Fault]:
    """Large messages are far slower than the link between the ranks. `link`: its bytes per second, if known. A message takes longest where
    a rank waits for others, so that the rate is that of the rank which came last."""
    large = [one for rank in profiles for one in rank.messages if one.bytes >= LARGE_BYTES]
    if not large or profiles[0].world < 2:
        return
    on_gpu, step = profiles[0].on_gpu, max(one.step for one in profiles)
    fastest = max(large, key=bus_rate)
    rate = bus_rate(fastest)
    seconds = min(sum(one.exposed for one in rank.messages if one.bytes >= LARGE_BYTES) for rank in profiles)
    least = 0.25 * link if on_gpu and link else SLOW_HOST_RATE if not on_gpu else 0.0
    if rate >= least or seconds < 2 * MIN_SHARE * step:
        return
    over = "PCIe instead of the chips' own link" if on_gpu and rate > 5e9 else "sockets, or the wrong network interface"
    than = f", where {name} has {link / 1e9:.3g}" if link else ", less than any cluster's network"
    yield Fault(
        "slow link", "likely" if on_gpu or len(profiles) > 1 else "unusual", seconds * (1 - rate / (link or 1e9)),
        f"large messages reach {rate / 1e9:.3g} GB/s{than}: it looks like {over}",
        "set NCCL_DEBUG=INFO and read which transport it chose; NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME, NCCL_IB_HCA, NCCL_P2P_LEVEL=NVL",
        f"{fastest.kind} of {fastest.bytes / 1e6:.3g} MB over {fastest.ranks} ranks: at best {milliseconds(fastest.shortest)}",
    )  # fmt: skip


RULES = (small_messages, no_overlap)
