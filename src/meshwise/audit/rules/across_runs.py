"""What runs say against each other: figures exchanged, memory that shrinks, a smaller batch as slow, formulas that change."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from meshwise.audit.figures import Figures
from meshwise.audit.finding import Finding, Sure, near, number

SAME = 0.02
"""Two measurements of one setup are within this; memory, printed in whole GB, within twice it."""
SLOW = 0.12
"""How much longer a smaller batch may take than its micro-batches and its bubble say."""
EFFICIENCY = 0.03
"""How far a stated share may be from the one that follows."""
MOST_NAMED = 4

Rule = Callable[[Sequence[Figures]], Iterator[Finding]]


def _groups(runs: Sequence[Figures], *without: str, same_day: bool = True) -> list[list[Figures]]:
    """Runs that differ in nothing else than what is named; those that failed aside."""
    found: dict[tuple[object, ...], list[Figures]] = {}
    for f in runs:
        if f.run.text("outcome").lower() in ("", "ok"):
            found.setdefault((*f.setup(*without), _day(f) if same_day else ""), []).append(f)
    return [group for group in found.values() if len(group) > 1]


def _day(f: Figures) -> str:
    return f.run.text("date") or f.run.text("note")[:5]


def _places(some: Sequence[Figures]) -> tuple[str, ...]:
    return tuple(f.where for f in some)


def exchanged(runs: Sequence[Figures]) -> Iterator[Finding]:
    """Seconds of one run are the TFLOPs of another of the same setup, and the other way round: a pair of columns was swapped."""
    for group in _groups(runs, "zero_stage", "n_heads", same_day=False):
        for i, f in enumerate(group):
            for other in group[:i]:
                mine = f.run.get("seconds"), f.run.get("tflops") / 1e12
                theirs = other.run.get("tflops") / 1e12, other.run.get("seconds")
                if not near(*mine, SAME) and near(mine[0], theirs[0], 1e-3) and near(mine[1], theirs[1], 1e-3):
                    later = max(f, other, key=_likeliest_swapped(runs, f, other))
                    good = other if later is f else f
                    words = f"seconds and TFLOPs are swapped: read {_pair(good)}"
                    work = f"it prints {_pair(later)}; {good.where} has the same layout with {_pair(good)}"
                    yield Finding(
                        rule="swapped", sure="sure", where=(later.where,), beside=(good.where,), words=words, arithmetic=work
                    )


def _pair(f: Figures) -> str:
    return f"{number(f.run.get('seconds'))} s and {number(f.run.get('tflops') / 1e12)} TFLOPs"


def _likeliest_swapped(runs: Sequence[Figures], *pair: Figures) -> Callable[[Figures], float]:
    """Of the two, which is further from the others of its model and batch."""
    like = [f for f in runs if f not in pair and f.run.get("params") == pair[0].run.get("params") and f.batch == pair[0].batch]
    typical = sorted(f.run.get("seconds") for f in like if f.run.stated("seconds") and _day(f) == _day(pair[0]))
    middle = typical[len(typical) // 2] if typical else math.nan
    return lambda f: abs(f.run.get("seconds") - middle) if math.isfinite(middle) else 0.0


def twice(runs: Sequence[Figures]) -> Iterator[Finding]:
    """The same setup on the same day with other results: one of its columns is wrong, or runs are that noisy."""
    for group in _groups(runs):
        off: list[str] = []
        for name, unit, scale, within in (("seconds", "s", 1.0, SAME), ("memory", "GB", 1e9, 3 * SAME)):
            values = [f.run.get(name) for f in group if f.run.stated(name)]
            if len(values) > 1 and not near(min(values), max(values), within):
                off.append(f"{number(min(values) / scale)} to {number(max(values) / scale)} {unit}")
        if off:
            words = f"one setup is given with two results, {' and '.join(off)}: something that differs is not stated"
            work = "all else that is stated is equal: " + _layout(group[0])
            yield Finding(
                rule="quoted twice",
                sure="look",
                where=_places(group[1:MOST_NAMED]),
                beside=_places(group[:1]),
                words=words,
                arithmetic=work,
            )


def _layout(f: Figures) -> str:
    names = {"n_gpus": "devices", "nodes": "nodes", "micro_batch": "mbs", "global_batch_seqs": "batch"}
    axes = ("nodes", "n_gpus", "dp", "tp", "pp", "micro_batch", "global_batch_seqs", "n_layers", "prompt", "output")
    return ", ".join(f"{names.get(axis, axis)} {number(f.run.get(axis))}" for axis in axes if f.run.stated(axis))


def memory_and_micro_batch(runs: Sequence[Figures]) -> Iterator[Finding]:
    """A larger micro-batch in the same layout never takes less memory."""
    for group in _groups(runs, "micro_batch", "grad_accum"):
        some = sorted((f for f in group if f.run.stated("memory", "micro_batch")), key=lambda f: f.run.get("micro_batch"))
        for small, large in pairwise(some):
            least, most = small.run.get("memory"), large.run.get("memory")
            if small.run.get("micro_batch") < large.run.get("micro_batch") and least > (1 + 2 * SAME) * most:
                words = f"{number(least / 1e9)} GB at micro-batch {number(small.run.get('micro_batch'))} is out of line"
                larger = number(large.run.get("micro_batch"))
                work = f"the same layout takes {number(most / 1e9)} GB at micro-batch {larger}, which keeps more activations"
                beside = _beside(runs, small)
                yield Finding(
                    rule="memory",
                    sure="likely",
                    where=(small.where,),
                    beside=(large.where,),
                    words=words,
                    arithmetic=work + beside,
                )


def _beside(runs: Sequence[Figures], odd: Figures) -> str:
    """What its neighbours in the same table take."""
    others = [
        f for f in runs if f.source == odd.source and f.run.section == odd.run.section and f is not odd and f.run.stated("memory")
    ]
    return f"; its table has {', '.join(number(f.run.get('memory') / 1e9) for f in others[:6])} GB" if others else ""


def smaller_batch(runs: Sequence[Figures]) -> Iterator[Finding]:
    """A step of fewer micro-batches is shorter, by (m + pp - 1) slots of a pipeline (arXiv:2104.04473, 2.2.1)."""
    for group in _groups(runs, "global_batch_seqs", "grad_accum"):
        some = sorted(
            (f for f in group if f.run.stated("seconds", "micro_batch") and f.batch > 0 and f.dp > 0), key=lambda f: f.batch
        )
        for small, large in pairwise(some):
            if small.batch == large.batch:
                continue
            slots = [f.batch / (f.dp * f.run.get("micro_batch")) + f.run.numbers.get("pp", 1.0) - 1 for f in (small, large)]
            if slots[0] < 4:
                continue  # what a step costs whatever its batch is not small against so few
            expected = large.run.get("seconds") * slots[0] / slots[1]
            if small.run.get("seconds") > (1 + SLOW) * expected and small.run.get("seconds") > 0.9 * large.run.get("seconds"):
                mine, other = number(small.run.get("seconds")), number(large.run.get("seconds"))
                words = f"a batch of {number(small.batch)} takes {mine} s, as long as one of {number(large.batch)} with {other} s"
                work = f"{number(large.run.get('seconds'))} s x {slots[0]:g} / {slots[1]:g} slots = {expected:.1f} s expected"
                yield Finding(
                    rule="batch and time",
                    sure="likely",
                    where=(small.where,),
                    beside=(large.where,),
                    words=words,
                    arithmetic=work,
                )


def formula_change(runs: Sequence[Figures]) -> Iterator[Finding]:
    """TFLOPs of one document that follow two formulas: their times can be compared, their TFLOPs cannot."""
    for source in dict.fromkeys(f.source for f in runs):
        used: dict[str, list[Figures]] = {}
        for f in runs:
            if f.source == source and f.used[0] and f.run.stated("tflops") and math.isfinite(f.shape.layer_params):
                used.setdefault(f.used[0], []).append(f)
        names = sorted(used, key=lambda name: -len(used[name]))
        for other in names[1:]:
            most, some = used[names[0]], used[other]
            one = max(some, key=lambda f: f.shape.params)
            if not {names[0], other} <= set(one.formulas):
                continue
            ratio = one.formulas[names[0]] / one.formulas[other]
            counts = f"{len(most)} runs count '{names[0]}' and {len(some)} count '{other}'"
            words = f"TFLOPs follow two formulas: {counts}; compare times, not TFLOPs"
            both = f"'{names[0]}' gives {one.formulas[names[0]]:.4g} FLOPs a token and '{other}' {one.formulas[other]:.4g}"
            more = f"{abs(ratio - 1):.1%} {'more' if ratio > 1 else 'less'} for the same work"
            work = f"for the run at {one.run.where} {both}: {more}"
            sure: Sure = "sure" if abs(ratio - 1) > 0.015 else "look"
            yield Finding(
                rule="two formulas",
                sure=sure,
                where=(source,),
                beside=_places([*some[:MOST_NAMED], most[0]]),
                words=words,
                arithmetic=work,
            )


def unlike_batches(runs: Sequence[Figures]) -> Iterator[Finding]:
    """Runs of one table on several numbers of devices whose batches neither stay (strong scaling) nor grow with the devices (weak)."""
    for group in _tables(runs):
        by_devices: dict[float, set[float]] = {}
        for f in group:
            if math.isfinite(f.devices) and math.isfinite(f.batch):
                by_devices.setdefault(f.devices, set()).add(f.batch)
        if len(by_devices) < 2:
            continue
        batches = list(by_devices.values())
        shared = set[float].intersection(*batches)
        each = [{batch / devices for batch in some} for devices, some in by_devices.items()]
        if shared or set[float].intersection(*each) or _nearly(batches):
            continue
        shown = ", ".join(
            f"{number(devices)} devices with {'/'.join(map(number, sorted(some)))}"
            for devices, some in sorted(by_devices.items())
        )
        words = "numbers of devices are compared with other batches: neither strong nor weak scaling"
        yield Finding(rule="unlike batches", sure="look", where=_places(group[:1]), words=words, arithmetic=f"batches: {shown}")


def _nearly(batches: Sequence[set[float]]) -> bool:
    """Batches that differ by what divisibility asks: 2040, 2043 and 2048 are one batch."""
    values = [batch for some in batches for batch in some]
    return near(min(values), max(values), 0.05)


def _tables(runs: Sequence[Figures]) -> list[list[Figures]]:
    """Runs of one table of one model."""
    found: dict[tuple[object, ...], list[Figures]] = {}
    for f in runs:
        if f.run.section and f.run.section != "log":
            found.setdefault(
                (f.source, f.run.section, f.run.get("params"), f.run.text("model"), f.run.get("seq_len")), []
            ).append(f)
    return [group for group in found.values() if len(group) > 1]


def unlike_lengths(runs: Sequence[Figures]) -> Iterator[Finding]:
    """Throughput compared over sequence lengths, where the tokens of a step change with them or are not stated."""
    tables: dict[tuple[str, str], list[Figures]] = {}
    for f in runs:
        if f.run.section and math.isfinite(f.stated_rate) and f.run.stated("seq_len"):
            tables.setdefault((f.source, f.run.section), []).append(f)
    for group in tables.values():
        lengths = {f.run.get("seq_len") for f in group}
        unknown = [f for f in group if not f.run.stated("per_device_batch") and not math.isfinite(f.batch)]
        if len(lengths) > 1 and len(lengths) == len(group) and unknown:
            words = (
                f"throughput is compared over {len(lengths)} sequence lengths, and {len(unknown)} of them state no single batch"
            )
            work = ", ".join(f"{number(f.run.get('seq_len'))} tokens: {number(f.stated_rate)} tok/s" for f in group)
            yield Finding(rule="unlike batches", sure="look", where=_places(group[:1]), words=words, arithmetic=work)


def stated_efficiency(runs: Sequence[Figures]) -> Iterator[Finding]:
    """A column of scaling efficiencies against the rates and devices of its table, measured by the fewest devices."""
    for group in _tables(runs):
        some = sorted((f for f in group if f.rate > 0 and f.devices > 0), key=lambda f: f.devices)
        if len(some) < 2 or (some[0].run.stated("efficiency") and not near(some[0].run.get("efficiency"), 1.0, EFFICIENCY)):
            continue
        base = some[0]
        for f in some[1:]:
            stated, gain, more = f.run.get("efficiency"), f.rate / base.rate, f.devices / base.devices
            if more > 1 and math.isfinite(stated) and abs(stated - gain / more) > EFFICIENCY:
                work = f"{number(f.rate)} / {number(base.rate)} = {gain:.3g} times the rate with {more:g} times the devices"
                words = f"its scaling efficiency of {stated:.0%} is not: it is {gain / more:.0%}"
                yield Finding(rule="scaling", sure="sure", where=(f.where,), beside=(base.where,), words=words, arithmetic=work)


RULES: tuple[Rule, ...] = (
    stated_efficiency,
    exchanged,
    twice,
    memory_and_micro_batch,
    smaller_batch,
    formula_change,
    unlike_batches,
    unlike_lengths,
)
