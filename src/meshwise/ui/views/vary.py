"""A training question at many points on a terminal: one table, bars of time, cost and MFU, and why the layout changes."""

from collections.abc import Callable, Mapping, Sequence

from rich.console import RenderableType
from rich.text import Text

from meshwise import units
from meshwise.plan.ask import TrainAsk
from meshwise.plan.cheapest import CONSIDERED_GPUS, Cheapest
from meshwise.plan.train.choice import Choice
from meshwise.plan.train.vary import Point, TrainPoints
from meshwise.ui.views.chart import Panel, chart
from meshwise.ui.views.plan import RISK, dollar_words, memory_cell, name_cell, setting, total_columns
from meshwise.ui.views.tables import Column, Table, heading, paragraphs, wrapped
from meshwise.units import GIB


def points_view(points: TrainPoints, width: int) -> RenderableType:
    """Return everything that `--vary` prints except the command that reproduces it."""
    reasons = [wrapped(f"{' '.join(point.labels)}: {point.why}", width, indent="  ") for point in points if point.why]
    several = sum(1 for point in points if point.choice) > 1
    why = [Text("why the layout changes", style="bold"), *reasons] if reasons else []
    why += [Text("The same layout wins at every point.")] if several and not reasons else []
    table = Table(_columns(points.ask, points.axes, points.points), points.points).fitted(width)
    title = heading(_header(points.ask, " and ".join(points.axes), points.points), width)
    return paragraphs(title, [table], [_chart(points.axes, points.points, width)], why, _notes(points.points, width))


def _header(ask: TrainAsk, varied: str, points: Sequence[Point]) -> list[str]:
    """Return the question in two lines, with the axes that vary."""
    names = dict.fromkeys(point.question.work.framework.name for point in points if point.question)
    on = f" on {ask.on}" if ask.on else ""
    return [f"{ask.model}{on}, {varied} varied", setting(ask, ", ".join(names))]


def _columns(ask: TrainAsk, axes: Sequence[str], points: Sequence[Point]) -> list[Column[Point]]:
    """Return the columns: the axes, and figures of the best layout; a point without a layout shows the reason instead."""

    def of(cell: Callable[[Choice], str]) -> Callable[[Point], str]:
        return lambda point: cell(point.choice) if point.choice else ""

    def axis(i: int) -> Callable[[Point], str]:
        return lambda point: point.labels[i]

    def layout(point: Point, *, short: bool = False) -> str:
        return name_cell(point.choice, short=short) if point.choice else point.refusal

    sizes = {c.capacity for point in points if (c := point.choice)}
    title = f"GiB of {min(sizes) / GIB:.0f} (90%)" if len(sizes) == 1 else "GiB (90%)"
    columns: list[Column[Point]] = [Column(name, axis(i)) for i, name in enumerate(axes)]
    columns += [
        Column("layout", layout, text=True, short=lambda point: layout(point, short=True)),
        Column("devices", of(lambda c: f"{c.devices:,}"), rank=6),
        Column("s/step", of(lambda c: f"{c.step:.4g}")),
        Column("tokens/s", of(lambda c: f"{c.tokens_per_second:,.0f}"), rank=5),
        Column("MFU", of(lambda c: f"{100 * c.mfu:.1f}%"), rank=4),
        Column(title, of(memory_cell), rank=7),
    ]
    if ask.tokens:
        done = [point.choice for point in points if point.choice]
        priced = next((c for c in done if c.total_dollars), done[0])
        columns += [Column(c.title, of(c.short or c.cell), rank=2) for c in total_columns(priced)[:2]]
    if ask.within:
        limit = f"in {units.show(ask.within, 'seconds')}"
        columns.append(Column(limit, lambda point: ("yes" if point.meets(ask.within) else "no") if point.choice else "", rank=1))
    return columns


def _chart(titles: Sequence[str], points: Sequence[Point], width: int, marks: Mapping[int, str] | None = None) -> RenderableType:
    """Return a bar per point for time, cost and MFU; `marks` by point are printed after the bars."""
    done = [point.choice for point in points if point.choice]
    panels: list[Panel[Choice]] = [("s/step", lambda c: c.step, lambda c: f"{c.step:.4g}")]
    if any(c.total_days is not None for c in done):
        panels = [("days", lambda c: c.total_days, lambda c: f"{c.total_days or 0:,.1f}")]
    if any(c.total_dollars for c in done):
        panels.append(("cost", lambda c: c.total_dollars, lambda c: dollar_words(c.total_dollars or 0.0)))
    panels.append(("MFU", lambda c: c.mfu, lambda c: f"{100 * c.mfu:.1f}%"))
    drawn = [(point.labels[-len(titles) :], point.choice, (marks or {}).get(i, "")) for i, point in enumerate(points)]
    return chart(titles, drawn, panels, width)


def _notes(points: Sequence[Point], width: int, unpriced: Sequence[str] = ()) -> list[Text]:
    """Return the assumptions of all points, each once, and the calibrations."""
    questions = [point.question for point in points if point.question]
    several = len({q.chip.key for q in questions}) > 1
    notes = [note for q in questions for note in q.model.notes]
    notes += [f"{q.chip.key}: {note}" if several else note for q in questions for note in q.cluster.notes]
    if any(q.work.tokens for q in questions):
        notes.append("days and cost include failures (goodput) and spare nodes")
    unpriced = list(dict.fromkeys([*unpriced, *(q.chip.key for q in questions if q.work.tokens and not q.cluster.rent)]))
    whose = next((f" of {q.cluster.seller}" for q in questions if q.cluster.seller), "")
    notes += [f"no list price{whose} for {', '.join(unpriced)}: give one with --price, or another --provider"] if unpriced else []
    rents = {q.chip.key: q.cluster.rent / q.cluster.devices for q in questions if q.work.tokens and q.cluster.rent}
    told = {q.chip.key: q.cluster.priced_on if whose else q.cluster.priced_by for q in questions}
    priced = {key: f" ({words})" if words else "" for key, words in told.items()}
    each = ", ".join(f"{key} {units.show(rent, 'dollars/s')}{priced[key]}" for key, rent in rents.items())
    notes += [f"price per device-hour{whose}: {each}"] if rents else []
    notes += (
        ["these prices are not of one seller: --provider or --price compares like with like"]
        if len(rents) > 1 and not whose
        else []
    )
    notes += [f"points {RISK}"] if any(point.choice and point.choice.may_not_fit for point in points) else []
    names = dict.fromkeys(q.calibration.name for q in questions)
    lines = [wrapped(f"note: {note}", width, indent="  ") for note in dict.fromkeys(notes)]
    return [*lines, wrapped(f"calibration: {', '.join(names)}", width, style="dim")]


def cheapest_view(cheapest: Cheapest, width: int) -> RenderableType:
    """Return the answer in one sentence, the best point of each chip, and the cost of the node counts tried for the best chip."""
    ask, best = cheapest.ask, cheapest.best
    assert best.choice
    assert best.ask
    per_chip = [point for key in cheapest.chips if (point := cheapest.cheapest_of(key, ask.within))]
    per_chip.sort(key=lambda point: (not point.meets(ask.within), (point.choice and point.choice.total_dollars) or 0.0))
    counts = [point for point in cheapest.of_chip(str(best.values["chip"])) if point.choice]
    limit = f" within {units.show(ask.within, 'seconds')}" if ask.within else ""
    cost = dollar_words(best.choice.total_dollars or 0.0)
    sentence = f"Cheapest{limit}: {best.ask.on}, {cost}, {best.choice.total_days or 0:,.1f} days, {best.choice.name}."
    marks = {i: "cheapest" if point is best else "" if point.meets(ask.within) else "too late" for i, point in enumerate(counts)}
    chips = [] if ask.on else [wrapped(f"Chips: {CONSIDERED_GPUS}; --vary chip=... names others.", width)]
    return paragraphs(
        heading(_header(ask, "chip and nodes", cheapest.tried), width),
        [wrapped(sentence, width, style="bold")],
        [Table(_columns(ask, ("chip", "nodes"), per_chip), per_chip).fitted(width)],
        [Text(f"Node counts of {best.values['chip']} that were tried and fit:")],
        [_chart(("nodes",), counts, width, marks)],
        [*chips, *_notes(cheapest.tried, width, cheapest.unpriced)],
    )
