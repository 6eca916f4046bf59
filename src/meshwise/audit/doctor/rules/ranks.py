"""Faults that only the traces of several ranks show, or the steps of one over time."""

import statistics
from collections.abc import Iterator, Sequence

from meshwise.audit.doctor.fault import Fault, milliseconds
from meshwise.audit.doctor.kinds import COMMUNICATION, WORDS
from meshwise.audit.doctor.profile import Profile

SLOW = 1.15  # work of a rank over the median from which on it holds up the others
MIN_SHARE = 0.03
SPIKE = 1.8  # time of a step over the median of all that makes it an outlier


def slow_rank(profiles: Sequence[Profile]) -> Iterator[Fault]:
    """One rank works longer than the others, which wait for it in collectives."""
    if len(profiles) < 2:
        return
    others_work = [one.working for one in profiles]
    for number, one in enumerate(profiles):
        usual = statistics.median(seconds for i, seconds in enumerate(others_work) if i != number)
        lost = one.working - usual
        if (
            usual <= 0
            or one.working < SLOW * usual
            or lost < MIN_SHARE * one.step
            or number != others_work.index(max(others_work))
        ):
            continue
        part, more = _where(one, [other for other in profiles if other is not one])
        rank = one.rank if one.rank is not None else number
        uniform = _uniform(one, [other for other in profiles if other is not one])
        throttled = one.on_gpu and uniform > SLOW
        yield Fault(
            "throttled GPU" if throttled else "slow rank", "certain" if one.on_gpu and one.working > 1.3 * usual else "likely", lost,
            f"rank {rank} works {milliseconds(one.working)} a step, the others {milliseconds(usual)}: they wait for it. Most of it is in "
            f"{WORDS.get(part, part)} ({milliseconds(more)} more)",
            ("look at clocks, power and temperature of its GPU, and measure its node: meshwise probe" if throttled else
             "look at what else runs on its node, its data and its share of the work; meshwise probe measures the node"),
            f"communication takes {milliseconds(_communicating(one))} there and "
            f"{milliseconds(statistics.median(map(_communicating, [other for other in profiles if other is not one])))} elsewhere",
            (rank,),
        )  # fmt: skip


def _communicating(one: Profile) -> float:
    return sum(one.parts.get(part, 0.0) for part in (*COMMUNICATION, "wait"))


def _where(one: Profile, others: Sequence[Profile]) -> tuple[str, float]:
    """Return the part in which a rank takes longer than the others, and by how much."""
    more = {part: seconds - statistics.median(other.parts.get(part, 0.0) for other in others) for part, seconds in one.parts.items()
            if part not in (*COMMUNICATION, "wait")}  # fmt: skip
    part = max(more, key=lambda name: more[name])
    return part, more[part]


def _uniform(one: Profile, others: Sequence[Profile]) -> float:
    """Return by how much its products are slower than those of the same shape elsewhere, the least affected of the longest ones; without
    shapes, its kernels of the same name. Low clocks slow down what computes, and hardly what reads memory."""
    ratios: list[float] = []
    for product in one.products[:6]:
        shape = (product.m, product.n, product.k, product.batch)
        same = [p.seconds / p.count for other in others for p in other.products if (p.m, p.n, p.k, p.batch) == shape]
        ratios += [product.seconds / product.count / statistics.median(same)] if same else []
    for kernel in one.kernels[:6] if not one.products else ():
        same = [k.seconds / k.count for other in others for k in other.kernels if k.name == kernel.name]
        ratios += [kernel.seconds / kernel.count / statistics.median(same)] if same else []
    return min(ratios) if len(ratios) >= (2 if one.products else 3) else 0.0


def spikes(profiles: Sequence[Profile]) -> Iterator[Fault]:
    """Some steps take far longer than the usual one."""
    for one in profiles:
        if len(one.steps) < 5:
            continue
        usual = statistics.median(one.steps)
        slow = [seconds for seconds in one.steps[1:] if seconds > SPIKE * usual]
        lost = sum(seconds - usual for seconds in slow) / len(one.steps)
        if slow and lost > MIN_SHARE * one.step:
            message = f"{len(slow)} of {len(one.steps)} steps take over {SPIKE} times the median of {milliseconds(usual)}"
            change = "look at what happens every few steps: evaluation, logging, garbage collection, checkpoints"
            yield Fault("uneven steps", "unusual", lost, message, change, "", () if one.rank is None else (one.rank,))
            return


RULES = (slow_rank, spikes)
