"""Many points on a terminal: one table, bars of time, cost and MFU side by side, and why the layout changes."""

from collections.abc import Callable, Mapping, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from meshwise import units
from meshwise.cost.layout import name_of
from meshwise.plan.cheapest import CONSIDERED, Answer
from meshwise.plan.train.choice import Ask, Choice, days_of, dollars_of
from meshwise.plan.vary_whatif import Point
from meshwise.units import GIB

BAR = 16
EIGHTHS = " ▏▎▍▌▋▊▉"


def sweep_view(ask: Ask, titles: Sequence[str], points: Sequence[Point]) -> RenderableType:
    """Everything that a table of points prints, but for the command that asks again."""
    reasons = [Text(f"{' '.join(point.labels)}: {point.why}") for point in points if point.why]
    asked = [point for point in points if point.choice]
    same = Text("The same cut wins at every point." if len(asked) > 1 else "")
    why = [Text("why the layout changes", style="bold"), *reasons] if reasons else [same]
    return Group(points_table(ask, titles, points), chart(titles, points), Text(), *why, Text(), *_notes(points))


def points_table(ask: Ask, titles: Sequence[str], points: Sequence[Point]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("layout")
    total = ("days", "cost") if ask.tokens else ()
    mark = (f"in {units.show(ask.within, 'seconds')}",) if ask.within else ()
    for column in ("devices", "s/step", "tokens/s", "MFU", "GiB", *total, *mark):
        table.add_column(column, justify="right", no_wrap=True)
    for point in points:
        cells = _cells(point.choice, bool(total)) if point.choice else [point.refusal]
        table.add_row(*point.labels, *cells, *((["yes" if point.meets(ask.within) else "no"]) if mark and point.choice else []))
    return table


def _cells(c: Choice, trained: bool) -> list[str]:
    days = days_of(c)
    total = [f"{days:,.1f}" if days is not None else "", dollars(c)] if trained else []
    return [
        name_of(c.layout),
        f"{c.devices:,}",
        f"{c.seconds:.4g}",
        f"{c.tokens_per_second:,.0f}",
        f"{100 * c.mfu:.1f}%",
        f"{c.memory / GIB:.1f} of {c.capacity / GIB:.0f}",
        *total,
    ]


def dollars(c: Choice) -> str:
    """'$54.2M', or nothing where no price to rent is known."""
    cost = dollars_of(c)
    return "" if cost is None else f"${units.show(cost, 'count', digits=3)}" if cost >= 1e3 else f"${cost:,.0f}"


Panel = tuple[str, Callable[[Choice], float | None], Callable[[Choice], str]]


def chart(titles: Sequence[str], points: Sequence[Point], marks: Mapping[int, str] | None = None) -> RenderableType:
    """A bar per point for time, for cost and for MFU, each from zero to the longest of its column: lengths say it, not colours. A mark
    stands behind its point's bars."""
    done = [point.choice for point in points if point.choice]
    panels: list[Panel] = [("s/step", lambda c: c.seconds, lambda c: f"{c.seconds:.4g}")]
    if any(days_of(c) is not None for c in done):
        panels = [("days", days_of, lambda c: f"{days_of(c) or 0:,.1f}")]
    if any(map(dollars_of, done)):
        panels.append(("cost", dollars_of, dollars))
    panels.append(("MFU", lambda c: c.mfu, lambda c: f"{100 * c.mfu:.1f}%"))
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    for (title, _, _), colour in zip(panels, ("green", "yellow", "cyan"), strict=False):
        table.add_column(title, style=colour, no_wrap=True)
    table.add_column("")
    most = [max((value(c) or 0.0 for c in done), default=0.0) for _, value, _ in panels]
    for i, point in enumerate(points):
        bars = ["-"] + [""] * (len(panels) - 1)
        if (c := point.choice) is not None:
            shares = [(value(c) or 0.0) / top if top else 0.0 for (_, value, _), top in zip(panels, most, strict=True)]
            bars = [_bar(share, show(c)) for share, (_, _, show) in zip(shares, panels, strict=True)]
        table.add_row(*point.labels[-len(titles) :], *bars, (marks or {}).get(i, ""))
    return table


def _bar(share: float, label: str) -> str:
    """A bar to the eighth of a cell, and its number behind it."""
    eighths = round(share * BAR * 8)
    return "█" * (eighths // 8) + (EIGHTHS[eighths % 8] if eighths % 8 else "") + f" {label}"


def _notes(points: Sequence[Point], unpriced: Sequence[str] = ()) -> list[Text]:
    """What was assumed anywhere, said once."""
    questions = [point.question for point in points if point.question]
    several = len({q.chip.key for q in questions}) > 1
    found = [note for q in questions for note in q.model.notes]
    found += [f"{q.chip.key}: {note}" if several else note for q in questions for note in q.cluster.notes]
    unpriced = list(dict.fromkeys([*unpriced, *(q.chip.key for q in questions if q.work.tokens and not q.cluster.rent)]))
    found += [f"no price to rent {', '.join(unpriced)} in the catalogue"] if unpriced else []
    rents = {q.chip.key: q.cluster.rent / q.cluster.devices for q in questions if q.work.tokens and q.cluster.rent}
    each = ", ".join(f"{key} {units.show(rent, 'dollars/s')}" for key, rent in rents.items())
    found += [f"list price to rent a device: {each}"] if rents else []
    names = dict.fromkeys(q.calibration.key or "default prior" for q in questions)
    notes = [Text(f"note: {note}") for note in dict.fromkeys(found)]
    return [*notes, Text(f"calibration: {', '.join(names)}", style="dim")]


def cheapest_view(ask: Ask, found: Answer) -> RenderableType:
    """The answer in one sentence, the best of each chip, and what the numbers of nodes around the answer cost."""
    best = found.best
    assert best.choice
    assert best.ask
    per_chip = [point for key in found.chips if (point := found.cheapest_of(key, ask.within))]
    per_chip.sort(key=lambda point: (not point.meets(ask.within), (point.choice and dollars_of(point.choice)) or 0.0))
    counts = [point for point in found.of_chip(str(best.values["chip"])) if point.choice]
    limit = f" within {units.show(ask.within, 'seconds')}" if ask.within else ""
    sentence = (
        f"Cheapest{limit}: {best.ask.cluster}, {dollars(best.choice)}, {days_of(best.choice) or 0:,.1f} days, "
        f"{name_of(best.choice.layout)}."
    )
    marks = {i: "cheapest" if point is best else "" if point.meets(ask.within) else "too late" for i, point in enumerate(counts)}
    return Group(
        Text(),
        Text(sentence, style="bold"),
        points_table(ask, ("chip", "nodes"), per_chip),
        Text(f"Numbers of nodes of {best.values['chip']} that were tried and work:"),
        Text(),
        chart(("nodes",), counts, marks),
        Text(),
        *([] if ask.cluster else [Text(f"Chips: {CONSIDERED}; --vary chip=... names others.")]),
        *_notes(found.tried, found.unpriced),
    )
