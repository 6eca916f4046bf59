"""Batches near the one that was asked for which divide evenly over the devices, with what each gains."""

from collections.abc import Iterator
from dataclasses import replace

from meshwise import units
from meshwise.cost.axes import Bounds, layout_name
from meshwise.cost.train.question import Question
from meshwise.plan.train.search import divisors, search

NEAR = (0.75, 1.34)  # batches from three quarters to four thirds of the one that was asked for are near. A choice.
NOTABLE_GAIN = 1.05  # tokens per second over those of the batch that was asked for from which on another one is worth a sentence


def nearest(q: Question) -> list[int]:
    """Return the nearest batches, fewer and more sequences, that are multiples of the devices, or of the largest part of them that has a
    multiple near enough; none where the batch itself is one."""
    batch = int(q.work.batch)
    for share in reversed(divisors(q.cluster.devices)):
        lower = batch // share * share
        near = [size for size in (lower, lower + share) if NEAR[0] * batch <= size <= NEAR[1] * batch]
        if near:
            return [] if batch % share == 0 else near
    return []


def gains(q: Question, bounds: Bounds, now: float) -> Iterator[str]:
    """Yield what each of these batches would give, where it is notably more than `now` tokens per second (0: no layout)."""
    for batch in nearest(q):
        trial = replace(q, work=replace(q.work, batch=batch))
        found = search(trial, bounds=bounds, top=1)
        if not len(found.layouts):
            continue
        rate = float(trial.work.batch_tokens) / float(found.cost.step[0])
        if rate > NOTABLE_GAIN * now:
            gain = f"{rate / now:.1f} times the" if now and rate > 2 * now else f"{100 * (rate / now - 1):+.0f}%" if now else ""
            shown = f"{gain} tokens/s" if now else f"{units.show(rate, 'count', digits=3)} tokens/s"
            yield f"--batch {batch}: {shown}, {layout_name(found.layouts.row(0), short=True)}"
