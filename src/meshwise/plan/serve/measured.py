"""Judge a measured speed: normal, or outside the predicted interval, with the usual causes."""

from collections.abc import Iterator
from dataclasses import replace

from meshwise.catalogue import clusters
from meshwise.catalogue.engines import find_runtime
from meshwise.cost.serve.layouts import ServeLayout
from meshwise.cost.serve.question import ServeQuestion
from meshwise.errors import UserError
from meshwise.plan.serve.choice import interval
from meshwise.plan.serve.explain import default_option, on_cluster
from meshwise.plan.serve.search import Found, Option, with_memory, with_speed
from meshwise.plan.serve.words import tokens

OLD_BUILD = "llama.cpp-2024-05"


def judge(q: ServeQuestion, found: Found, value: float, of: str = "each") -> list[str]:
    """Judge a measured speed of one request or of all: normal, or outside the predicted interval, with the usual causes."""
    mine = default_option(found, len(q.cards))
    low, high = interval(q, mine)
    percent = 100 * (value / (mine.throughput if of == "all" else mine.per_user) - 1)
    several = q.work.users > 1 or q.load.rate > 0
    scale = mine.throughput / mine.per_user if of == "all" and mine.per_user else 1.0
    which = f" of {'all requests, prompts included' if of == 'all' else 'each request'}" if several else ""
    head = (
        f"Measured {tokens(value)} tokens/s{which}; {mine.layout.name} is predicted at {tokens(scale * mine.per_user)}, 90% between "
        f"{tokens(scale * low)} and {tokens(scale * high)}"
    )
    value = value / scale
    ranges = {option.layout.name: interval(q, option) for option in found.options if option is not mine}
    alike = [name for name, (least, most) in ranges.items() if least <= value <= most]
    other = f" It would be normal for {' or '.join(alike[:2])}." if alike else ""
    if low <= value <= high:
        return [f"{head}: normal ({percent:+.0f}%)."]
    if value > high:
        return [
            f"{head}: faster than predicted ({percent:+.0f}%).{other} Usual reasons: a smaller file than {q.weights.format}, "
            f"a shorter prompt than {q.work.prompt}, speculative decoding, other cards, or the prefill rate mistaken for decode."
        ]
    return [
        f"{head}: slower than predicted ({percent:+.0f}%).{other} Usual reasons:",
        *(f"  {line}" for line in _slower(q, mine, value)),
    ]


def _slower(q: ServeQuestion, best: Option, value: float) -> Iterator[str]:
    """Yield the usual causes of a slow engine, each with the speed it would give."""
    if q.engine.offload and best.layout.split == "layer" and best.layout.gpu_layers is None:
        layers = len(q.model.layers)
        left = next((n for n in range(1, layers + 1) if _with_layers(q, best, layers + 1 - n).per_user <= value), None)
        if left:
            whole = f"offloaded {layers + 1}/{layers + 1} layers to GPU"
            yield f"layers on the CPU: {left} of {layers} would explain it (the log should say '{whole}')"
    trials: dict[str, Option | None] = {}
    if len(best.layout.cards) > 1:
        others = [split for split in q.engine.splits if split not in (best.layout.split, "tensor")]
        trials |= {f"the wrong split (-sm {split})": _trial(q, replace(best.layout, split=split, shared="")) for split in others}
    if len(best.layout.cards) > 1 and not all(
        q.cards[i].chip.link for i in best.layout.cards
    ):  # NVLink and its like need no riser
        trials["cards on PCIe 3.0 x1 risers"] = on_cluster(q, best, clusters.with_link(q.cluster, "1GB/s"))
    if q.engine.offload:
        old_build = replace(q, runtime=find_runtime(OLD_BUILD))
        trials["an old build (May 2024, without flash attention)"] = _trial(old_build, best.layout)
    slower = {words: trial for words, trial in trials.items() if trial and trial.per_user < 0.97 * best.per_user}
    yield from (f"{words} would give {tokens(trial.per_user)} tokens/s" for words, trial in slower.items())
    yield "a power cap or a hot card that clocks its memory down (nvidia-smi -q -d CLOCK,POWER), or another program on the cards"
    harmless = [
        f"{words} {tokens(trial.per_user)}"
        for words, trial in trials.items()
        if trial and words not in slower and trial.per_user <= best.per_user
    ]
    if harmless:
        yield f"unlikely, since they hardly change tokens/s: {'; '.join(harmless)}"


def _with_layers(q: ServeQuestion, best: Option, gpu_layers: int) -> Option:
    """Return the option with this many layers on devices and the others on the CPU."""
    return with_speed(q, with_memory(q, replace(best.layout, gpu_layers=gpu_layers)))


def _trial(q: ServeQuestion, layout: ServeLayout) -> Option | None:
    """Evaluate a layout, or return None where the engine or the devices cannot run it."""
    try:
        return with_speed(q, with_memory(q, layout))
    except UserError:
        return None
