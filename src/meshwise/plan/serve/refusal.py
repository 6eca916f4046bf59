"""The error of a serving question without an answer: the closest layout, by how much it misses, and what would fit."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from meshwise import units
from meshwise.cost.serve.question import ServeQuestion
from meshwise.errors import DoesNotFit, UserError
from meshwise.plan.serve.capacity import max_rate, most_within
from meshwise.plan.serve.choice import largest_format, on_cards
from meshwise.plan.serve.search import Found, Option, largest_context, search, worth
from meshwise.plan.serve.words import tokens

WIDE_CACHES, NARROW_CACHES = ("f32", "f16", "bf16"), ("q8_0", "fp8", "int8", "q4_0", "int4")
"""Types of a KV cache in 16 bits or more, and narrower ones in the order of their harm."""
NOTABLE_GAIN = 1.02  # speed over that of the best layout from which on a change is worth a sentence


def refuse(q: ServeQuestion, found: Found) -> DoesNotFit:
    """Return the error where nothing fits or meets the targets: the closest layout, by how much it misses, and what would fit."""
    if found.options:
        return DoesNotFit(_too_slow(q, found.options))
    if not found.misses:
        fixed = ", ".join(f"{axis}={value}" for axis, value in q.bounds.items())
        return DoesNotFit(f"no layout of {q.model.name} on {q.cluster.name} has {fixed}")
    near = found.misses[0]
    users = f" for {q.work.users} concurrent requests" if q.work.users > 1 else ""
    head = (
        f"{q.model.name} in {q.weights.format} does not fit on {q.cluster.name} with {q.engine.name} and a context of {q.work.context:,}"
        f"{users}: {near.layout.name} needs {missing(q, near)}"
    )
    context, wider = largest_context(q, near) if near.spare < 0 else 0, largest_format(q, near)
    hints = [f"a context of {context:,} would fit"] if context else []
    hints += [f"{near.most_users} concurrent requests would fit"] if q.work.users > 1 and near.most_users else []
    hints += [f"{wider[0]} would fit"] if wider else []
    hints += [line.removesuffix(".") for line in narrower_cache(q, found)]
    return DoesNotFit("; ".join([head, *hints]))


def missing(q: ServeQuestion, near: Option) -> str:
    """Return what a layout that does not fit lacks: memory of its fullest device, or of the host where some of its layers are."""
    if near.spare < 0:
        return f"{units.show(-near.spare, 'bytes', binary=True, digits=3)} more on its fullest {near.layout.unit}"
    more = near.footprints[0].bytes - (q.cluster.node.host.memory or 0.0)
    return f"{units.show(more, 'bytes', binary=True, digits=3)} more host memory"


def _too_slow(q: ServeQuestion, options: Sequence[Option]) -> str:
    """Return why no layout serves the load within the targets, and the most that can be."""
    best = options[0]
    if best.report is None:
        most, largest = max(((max_rate(q, option), option) for option in options), key=lambda pair: pair[0])
        return (
            f"no layout on {q.cluster.name} serves {q.load.rate:g} requests/s of {q.work.prompt:,} prompt and {q.work.output:,} output "
            f"tokens: the most is {most:.3g}/s, by {largest.layout.name}"
        )
    words = {"ttft": "a time to first token", "tpot": "a time per output token", "e2e": "a request"}
    asked = [f"{words[name]} of {units.show(t.seconds, 'seconds')} at {t.quantile}" for name, t in q.targets.named.items()]
    values = [
        f"{words[name]} of {units.show(getattr(best.report, name).at(t.quantile), 'seconds', digits=3)}"
        for name, t in q.targets.named.items()
    ]
    most, largest = max(((most_within(q, option), option) for option in options), key=lambda pair: pair[0])
    unit = "requests/s" if q.load.rate else "user" if most == 1 else "users"
    them = "them" if len(asked) > 1 else "it"
    hint = f"; {largest.layout.name} meets {them} with up to {units.figure(most)} {unit}" if most else ""
    closest = f"the closest is {best.layout.name}, with {' and '.join(values)}"
    return f"no layout on {q.cluster.name} gives {' and '.join(asked).replace('at mean', 'on average')}: {closest}{hint}"


def narrower_cache(q: ServeQuestion, found: Found) -> Iterator[str]:
    """Yield the speed with a KV cache of fewer bits, where layers stay in host memory or nothing fits, and it would help."""
    best = max(found.options, key=lambda option: worth(q, option), default=None)
    if (best and on_cards(best)) or q.work.kv not in WIDE_CACHES:
        return
    for kind in (kind for kind in NARROW_CACHES if kind in q.runtime.cache_types):
        try:
            narrow = search(replace(q, work=replace(q.work, kv=kind)))
        except UserError:  # head sizes that are not a multiple of the type's blocks
            continue
        other = narrow.options[0] if narrow.options else None
        if other and (best is None or worth(q, other) > NOTABLE_GAIN * worth(q, best)):
            before = f" instead of {tokens(best.per_user)}" if best else ""
            yield f"With --kv {kind}: {other.layout.name}, {tokens(other.per_user)}{before} tokens/s."
            return
