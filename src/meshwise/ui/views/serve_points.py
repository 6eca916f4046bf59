"""A serving question at many points on a terminal: a table and bars; and the cheapest devices of each chip."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.console import RenderableType

from meshwise import units
from meshwise.plan.serve.choice import ServeChoice
from meshwise.plan.serve.words import length_words, load_words, target_words, tokens
from meshwise.ui.views.chart import Panel, chart
from meshwise.ui.views.serve import dollars, gib
from meshwise.ui.views.tables import Column, Table, heading, paragraphs, wrapped

if TYPE_CHECKING:
    from meshwise.plan.serve.vary import ServePoint, ServePoints


def points_view(points: "ServePoints", width: int) -> RenderableType:
    """Return one table, one chart and the sentences that sum them up."""
    if points.ask.cheapest:
        return cheapest_view(points, width)
    several = any(point.ask and (point.ask.users > 1 or point.ask.rate) for point in points)
    notes = dict.fromkeys(note for point in points for note in point.notes)
    ask = points.ask
    about = ", ".join(filter(None, (load_words(ask), length_words(ask), target_words(ask))))
    lessons = [wrapped(line, width) for line in points.lessons]
    return paragraphs(
        heading([f"{ask.model} on {ask.on}, {' and '.join(points.axes)} varied; {about}"], width),
        [Table(_point_columns(points, several), points.points).fitted(width)], [_chart(points, several, width)],
        [*lessons, *(wrapped(f"note: {note}", width, indent="  ") for note in notes)],
    )  # fmt: skip


def axis_columns(points: "ServePoints") -> "list[Column[ServePoint]]":
    """Return a column per axis."""

    def label(i: int) -> "Callable[[ServePoint], str]":
        return lambda point: point.labels[i]

    return [Column(name, label(i)) for i, name in enumerate(points.axes)]


def _of(cell: Callable[[ServeChoice], str]) -> "Callable[[ServePoint], str]":
    """Return the cell of a point's layout; empty if it has none."""
    return lambda point: cell(point.choice) if point.choice else ""


def _point_columns(points: "ServePoints", several: bool) -> "list[Column[ServePoint]]":
    """Return the columns: the axes, and figures of the best layout; a point without a layout shows the reason instead."""
    layered = "gpus" in points.axes and any(p.layered and p.choice and p.choice.split != "layer" for p in points)
    columns: list[Column[ServePoint]] = [
        *axis_columns(points), Column("layout", lambda point: point.choice.name if point.choice else point.refusal, text=True),
        Column("tok/s each" if several else "tokens/s", _of(lambda c: tokens(c.per_user))),
        Column("all requests", _of(lambda c: tokens(c.throughput)), rank=2),
        Column("prefill tok/s", _of(lambda c: f"{c.prefill:,.0f}"), rank=6),
        Column("TTFT", _of(lambda c: units.show(c.ttft.p50, "seconds", digits=3)), rank=1),
        Column("layer split", lambda p: tokens(p.layered.per_user) if p.layered else "", rank=5),
        Column("GiB free", _of(lambda c: gib(c.spare)), rank=3),
        Column("max context", lambda p: units.show(float(p.longest), "length", digits=3) if p.choice else "", rank=4),
        Column("max requests", _of(lambda c: f"{c.most_users:,}"), rank=7),
        Column("weights", lambda p: p.weights, text=True, rank=2), Column("meets", _of(lambda c: "yes" if c.meets else "no")),
    ]  # fmt: skip
    hidden = {*(() if several else ("all requests",)), *(() if layered else ("layer split",))}
    hidden |= {*(() if target_words(points.ask) else ("meets",)), *(() if len({p.weights for p in points}) > 1 else ("weights",))}
    return [column for column in columns if column.title not in hidden]


def _chart(points: "ServePoints", several: bool, width: int) -> RenderableType:
    """Return a bar per point for decode and for prefill."""
    each: Panel[ServeChoice] = ("tok/s each" if several else "tokens/s", lambda c: c.per_user, lambda c: tokens(c.per_user))
    together: Panel[ServeChoice] = ("all requests", lambda c: c.throughput, lambda c: tokens(c.throughput))
    prompt: Panel[ServeChoice] = ("prefill tok/s", lambda c: c.prefill, lambda c: f"{c.prefill:,.0f}")
    panels = [each, together, prompt] if several else [each, prompt]
    return chart(points.axes, [(point.labels, point.choice, "") for point in points], panels, width)


# The cheapest devices.


def cheapest_view(points: "ServePoints", width: int) -> RenderableType:
    """Return the fewest devices of each chip that serve a load, the cheapest first."""
    ask = points.ask
    about = f"{load_words(ask)}, {length_words(ask)}{f'; {target_words(ask)}' if target_words(ask) else ''}"
    rent: Panel[ServeChoice] = ("$/h", lambda c: c.hourly or 0.0, lambda c: dollars(c.hourly))
    million: Panel[ServeChoice] = (
        "$/1M output tokens", lambda c: c.dollars_per_million_out or 0.0, lambda c: dollars(c.dollars_per_million_out)
    )  # fmt: skip
    found = [point for point in points if point.choice]
    return paragraphs(
        heading([f"{ask.model}: the fewest devices of each chip, the cheapest first", about], width),
        [cheapest_table(points).fitted(width)],
        [chart(points.axes, [(point.labels, point.choice, "") for point in found], [rent, million], width)],
        [wrapped(price_note(points), width)],
    )


def price_note(points: "ServePoints") -> str:
    """Return what the dollars of a table rest on."""
    if points.ask.price:
        return f"Every device at {units.show(points.ask.price, 'dollars/s')}."
    if points.ask.provider:
        return f"List prices of renting at {points.ask.provider}, per device-hour; --provider and --price change them."
    return (
        "List prices of renting, per device-hour; --price sets one for all chips. 'meshwise show chips' has each with its source."
    )


def cheapest_table(points: "ServePoints") -> "Table[ServePoint]":
    """Return the table of points: devices, dollars, and the latencies that a load has there."""
    ask, several = points.ask, points.ask.users > 1 or points.ask.rate > 0

    def time(name: str, quantile: str) -> "Callable[[ServePoint], str]":
        return _of(lambda c: units.show(getattr(c, name).at(quantile), "seconds", digits=3))

    quantile = "p95" if several else "p50"
    at = " p95" if several else ""
    columns: list[Column[ServePoint]] = [
        *axis_columns(points), Column("layout", lambda point: point.choice.name if point.choice else point.refusal, text=True),
        Column("$/h", _of(lambda c: dollars(c.hourly))),
        Column("$/1M out", _of(lambda c: dollars(c.dollars_per_million_out)), rank=3),
        Column("$/1M in", _of(lambda c: dollars(c.dollars_per_million_in)), rank=6),
        Column("tok/s each", _of(lambda c: tokens(c.per_user)), rank=1), Column(f"TTFT{at}", time("ttft", quantile), rank=2),
        *([Column(f"per token{at}", time("tpot", quantile), rank=4)] if ask.tpot or ask.per_user else []),
        Column(f"request{at}", time("e2e", quantile), rank=5),
    ]  # fmt: skip
    return Table(columns, points.points)
