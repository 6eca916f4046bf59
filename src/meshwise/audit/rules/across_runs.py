"""Rules over several runs: swapped figures, memory that shrinks, a smaller batch that is as slow, formulas that change."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from meshwise.audit.figures import Figures
from meshwise.audit.finding import Certainty, Finding, near, number

REPEAT_TOLERANCE = 0.02  # relative difference of two measurements of one setup; for memory, printed in whole GB, three times this
EXCESS_TIME_SHARE = 0.12
"""Relative excess of a smaller batch's time over the time that its micro-batches and pipeline bubble give."""
EFFICIENCY_TOLERANCE = 0.03  # largest difference of a stated efficiency from the computed one
MAX_PLACES = 4

Rule = Callable[[Sequence[Figures]], Iterator[Finding]]


def _groups(runs: Sequence[Figures], *without: str, same_day: bool = True) -> list[list[Figures]]:
    """Group successful runs that differ in nothing but the fields in `without`."""
    groups: dict[tuple[object, ...], list[Figures]] = {}
    for f in runs:
        if f.run.text("outcome").lower() in ("", "ok"):
            groups.setdefault((*f.setup_key(*without), _day(f) if same_day else ""), []).append(f)
    return [group for group in groups.values() if len(group) > 1]


def _day(f: Figures) -> str:
    return f.run.text("date") or f.run.text("note")[:5]


def _places(runs: Sequence[Figures]) -> tuple[str, ...]:
    return tuple(f.where for f in runs)


def swapped(runs: Sequence[Figures]) -> Iterator[Finding]:
    """If the seconds of one run are the TFLOP/s of another of the same setup, and vice versa, two columns were swapped."""
    for group in _groups(runs, "zero", "heads", same_day=False):
        for i, f in enumerate(group):
            for other in group[:i]:
                this_pair = f.run.number("seconds"), f.run.number("tflops") / 1e12
                other_swapped = other.run.number("tflops") / 1e12, other.run.number("seconds")
                if (
                    near(*this_pair, REPEAT_TOLERANCE)
                    or not near(this_pair[0], other_swapped[0], 1e-3)
                    or not near(this_pair[1], other_swapped[1], 1e-3)
                ):
                    continue
                wrong = max(f, other, key=_distance_from_similar(runs, f, other))
                right = other if wrong is f else f
                yield Finding(
                    rule="swapped",
                    certainty="certain",
                    where=(wrong.where,),
                    compared_with=(right.where,),
                    message=f"seconds and TFLOP/s are swapped: read {_pair(right)}",
                    arithmetic=f"{_pair(wrong)} printed; {right.where} has {_pair(right)} for the same layout",
                )


def _pair(f: Figures) -> str:
    return f"{number(f.run.number('seconds'))} s and {number(f.run.number('tflops') / 1e12)} TFLOP/s"


def _distance_from_similar(runs: Sequence[Figures], *pair: Figures) -> Callable[[Figures], float]:
    """Return a function that gives the distance of a run's seconds from the median of other runs of the same model, batch and day."""
    like = [
        f for f in runs if f not in pair and f.run.number("params") == pair[0].run.number("params") and f.batch == pair[0].batch
    ]
    typical = sorted(f.run.number("seconds") for f in like if f.run.stated("seconds") and _day(f) == _day(pair[0]))
    middle = typical[len(typical) // 2] if typical else math.nan
    return lambda f: abs(f.run.number("seconds") - middle) if math.isfinite(middle) else 0.0


def quoted_twice(runs: Sequence[Figures]) -> Iterator[Finding]:
    """One setup has the same results on one day; otherwise a column is wrong, or a setting that differs is not stated."""
    for group in _groups(runs):
        ranges: list[str] = []
        for name, unit, scale, tolerance in (
            ("seconds", "s", 1.0, REPEAT_TOLERANCE),
            ("memory", "GB", 1e9, 3 * REPEAT_TOLERANCE),
        ):
            values = [f.run.number(name) for f in group if f.run.stated(name)]
            if len(values) > 1 and not near(min(values), max(values), tolerance):
                ranges.append(f"{number(min(values) / scale)} to {number(max(values) / scale)} {unit}")
        if ranges:
            yield Finding(
                rule="quoted twice",
                certainty="unusual",
                where=_places(group[1:MAX_PLACES]),
                compared_with=_places(group[:1]),
                message=f"one setup has different results, {' and '.join(ranges)}: a setting that differs is not stated",
                arithmetic=f"all stated settings are equal: {_layout(group[0])}",
            )


def _layout(f: Figures) -> str:
    names = {"devices": "devices", "nodes": "nodes", "mbs": "mbs", "batch": "batch"}
    axes = ("nodes", "devices", "dp", "tp", "pp", "mbs", "batch", "layers", "prompt", "output")
    return ", ".join(f"{names.get(axis, axis)} {number(f.run.number(axis))}" for axis in axes if f.run.stated(axis))


def memory_and_micro_batch(runs: Sequence[Figures]) -> Iterator[Finding]:
    """A larger micro-batch in the same layout never needs less memory."""
    for group in _groups(runs, "mbs", "accumulation"):
        stated = sorted((f for f in group if f.run.stated("memory", "mbs")), key=lambda f: f.run.number("mbs"))
        for small, large in pairwise(stated):
            least, most = small.run.number("memory"), large.run.number("memory")
            if small.run.number("mbs") < large.run.number("mbs") and least > (1 + 2 * REPEAT_TOLERANCE) * most:
                smaller, larger = number(small.run.number("mbs")), number(large.run.number("mbs"))
                work = f"the same layout needs {number(most / 1e9)} GB at micro-batch {larger}, which keeps more activations"
                yield Finding(
                    rule="memory",
                    certainty="likely",
                    where=(small.where,),
                    compared_with=(large.where,),
                    message=f"{number(least / 1e9)} GB at micro-batch {smaller} is more than at the larger micro-batch {larger}",
                    arithmetic=work + _memory_of_table(runs, small),
                )


def _memory_of_table(runs: Sequence[Figures], odd: Figures) -> str:
    """Return the memory of the other rows in the same table, as the end of a sentence."""
    others = [
        f for f in runs if f.source == odd.source and f.run.section == odd.run.section and f is not odd and f.run.stated("memory")
    ]
    shown = ", ".join(number(f.run.number("memory") / 1e9) for f in others[:6])
    return f"; other rows of its table need {shown} GB" if others else ""


def smaller_batch(runs: Sequence[Figures]) -> Iterator[Finding]:
    """A step of fewer micro-batches is shorter: it takes m + pp - 1 slots of the pipeline (arXiv:2104.04473, 2.2.1)."""
    for group in _groups(runs, "batch", "accumulation"):
        timed = sorted((f for f in group if f.run.stated("seconds", "mbs") and f.batch > 0 and f.dp > 0), key=lambda f: f.batch)
        for small, large in pairwise(timed):
            if small.batch == large.batch:
                continue
            slots = [f.batch / (f.dp * f.run.number("mbs")) + f.run.number("pp", 1.0) - 1 for f in (small, large)]
            if slots[0] < 4:
                continue  # with this few slots, the fixed cost of a step is not negligible
            took, other = small.run.number("seconds"), large.run.number("seconds")
            expected = other * slots[0] / slots[1]
            if took > (1 + EXCESS_TIME_SHARE) * expected and took > 0.9 * other:
                both = (
                    f"a batch of {number(small.batch)} takes {number(took)} s, and one of {number(large.batch)} {number(other)} s"
                )
                yield Finding(
                    rule="batch and time",
                    certainty="likely",
                    where=(small.where,),
                    compared_with=(large.where,),
                    message=f"{both}: the smaller one is too slow",
                    arithmetic=f"{number(other)} s x {slots[0]:g} / {slots[1]:g} slots = {expected:.1f} s expected",
                )


def formula_change(runs: Sequence[Figures]) -> Iterator[Finding]:
    """TFLOP/s of one document follow one formula; if they follow two, only its times can be compared."""
    for source in dict.fromkeys(f.source for f in runs):
        used: dict[str, list[Figures]] = {}
        for f in runs:
            formula = f.printed_formula[0]
            if f.source == source and formula and f.run.stated("tflops") and math.isfinite(f.shape.layer_params):
                used.setdefault(formula, []).append(f)
        names = sorted(used, key=lambda name: -len(used[name]))
        for other in names[1:]:
            most, fewer = used[names[0]], used[other]
            largest = max(fewer, key=lambda f: f.shape.params)
            if not {names[0], other} <= set(largest.formulas):
                continue
            ratio = largest.formulas[names[0]] / largest.formulas[other]
            counts = f"{len(most)} runs count '{names[0]}' and {len(fewer)} count '{other}'"
            both = (
                f"'{names[0]}' gives {largest.formulas[names[0]]:.4g} FLOPs a token and '{other}' {largest.formulas[other]:.4g}"
            )
            more = f"{abs(ratio - 1):.1%} {'more' if ratio > 1 else 'less'} for the same work"
            certainty: Certainty = "certain" if abs(ratio - 1) > 0.015 else "unusual"
            yield Finding(
                rule="two formulas",
                certainty=certainty,
                where=(source,),
                compared_with=_places([*fewer[:MAX_PLACES], most[0]]),
                message=f"the TFLOP/s follow two formulas: {counts}; compare times, not TFLOP/s",
                arithmetic=f"for the run at {largest.run.where} {both}: {more}",
            )


def unlike_batches(runs: Sequence[Figures]) -> Iterator[Finding]:
    """Over the numbers of devices in one table, the batch stays the same (strong scaling) or grows with the devices (weak)."""
    for group in _tables(runs):
        by_devices: dict[float, set[float]] = {}
        for f in group:
            if math.isfinite(f.devices) and math.isfinite(f.batch):
                by_devices.setdefault(f.devices, set()).add(f.batch)
        if len(by_devices) < 2:
            continue
        batches = list(by_devices.values())
        shared = set[float].intersection(*batches)
        each = [{batch / devices for batch in sizes} for devices, sizes in by_devices.items()]
        if shared or set[float].intersection(*each) or _nearly_equal(batches):
            continue
        shown = ", ".join(
            f"{number(devices)} devices with {'/'.join(map(number, sorted(sizes)))}"
            for devices, sizes in sorted(by_devices.items())
        )
        message = "numbers of devices are compared at different batches: this is neither strong nor weak scaling"
        yield Finding(
            rule="unlike batches", certainty="unusual", where=_places(group[:1]), message=message, arithmetic=f"batches: {shown}"
        )


def _nearly_equal(batches: Sequence[set[float]]) -> bool:
    """Return whether batches only differ as divisibility requires: 2040, 2043 and 2048 count as one batch."""
    values = [batch for sizes in batches for batch in sizes]
    return near(min(values), max(values), 0.05)


def _tables(runs: Sequence[Figures]) -> list[list[Figures]]:
    """Group runs of one model in one table."""
    tables: dict[tuple[object, ...], list[Figures]] = {}
    for f in runs:
        if f.run.section and f.run.section != "log":
            key = (f.source, f.run.section, f.run.number("params"), f.run.text("model"), f.run.number("seq"))
            tables.setdefault(key, []).append(f)
    return [group for group in tables.values() if len(group) > 1]


def unlike_lengths(runs: Sequence[Figures]) -> Iterator[Finding]:
    """A comparison of throughput over sequence lengths states the batch; without it, the tokens per step are unknown."""
    tables: dict[tuple[str, str], list[Figures]] = {}
    for f in runs:
        if f.run.section and math.isfinite(f.stated_rate) and f.run.stated("seq"):
            tables.setdefault((f.source, f.run.section), []).append(f)
    for group in tables.values():
        lengths = {f.run.number("seq") for f in group}
        unknown = [f for f in group if not f.run.stated("per_device_batch") and not math.isfinite(f.batch)]
        if len(lengths) > 1 and len(lengths) == len(group) and unknown:
            yield Finding(
                rule="unlike batches",
                certainty="unusual",
                where=_places(group[:1]),
                message=f"throughput is compared over {len(lengths)} sequence lengths, {len(unknown)} of them without a single batch",
                arithmetic=", ".join(f"{number(f.run.number('seq'))} tokens: {number(f.stated_rate)} tok/s" for f in group),
            )


def stated_efficiency(runs: Sequence[Figures]) -> Iterator[Finding]:
    """A stated scaling efficiency agrees with the rates and devices of its table, relative to the fewest devices."""
    for group in _tables(runs):
        rated = sorted((f for f in group if f.rate > 0 and f.devices > 0), key=lambda f: f.devices)
        if len(rated) < 2 or (
            rated[0].run.stated("efficiency") and not near(rated[0].run.number("efficiency"), 1.0, EFFICIENCY_TOLERANCE)
        ):
            continue
        base = rated[0]
        for f in rated[1:]:
            stated, gain, more = f.run.number("efficiency"), f.rate / base.rate, f.devices / base.devices
            if more > 1 and math.isfinite(stated) and abs(stated - gain / more) > EFFICIENCY_TOLERANCE:
                yield Finding(
                    rule="scaling",
                    certainty="certain",
                    where=(f.where,),
                    compared_with=(base.where,),
                    message=f"a scaling efficiency of {stated:.0%} is stated, the rates give {gain / more:.0%}",
                    arithmetic=f"{number(f.rate)} / {number(base.rate)} = {gain:.3g} times the rate on {more:g} times the devices",
                )


RULES: tuple[Rule, ...] = (
    stated_efficiency, swapped, quoted_twice, memory_and_micro_batch, smaller_batch, formula_change, unlike_batches,
    unlike_lengths,
)  # fmt: skip
