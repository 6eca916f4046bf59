"""A serving plan on a terminal: header, table of layouts, memory of each device, where the time goes, the reasons; and tables of points."""

from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from meshwise import units
from meshwise.cost.parts import SERVE_MEMORY, SERVE_TIME
from meshwise.plan.serve.choice import Device, ServeChoice
from meshwise.plan.serve.explain import tokens
from meshwise.plan.serve.plan import ServePlan
from meshwise.plan.serve.vary import ServePoint, ServePoints
from meshwise.ui.views import bars
from meshwise.ui.views.tables import Column, bullets, calibration_line, fitted, wrapped
from meshwise.units import GIB

BAR = 40
REMEDY = "'meshwise bench --rows' measures yours"
POINT_BAR = 16
HIGHLIGHTS = 5
SEVERAL = 5
"""Layouts whose bars `--verbose` draws."""


def plan_view(plan: ServePlan, width: int, *, verbose: bool) -> RenderableType:
    """Everything `serve` prints but for commands, which no terminal may break."""
    parts: list[RenderableType] = [
        header(plan),
        fitted(columns(plan), plan.choices, width),
        *map(Text, _below_table(plan)),
        Text(),
    ]
    parts += [*device_bars(plan.best), Text(), *time_bars(plan.choices[: SEVERAL if verbose else 1], width), Text()]
    reasons = plan.reasons if verbose else _highlights(plan)
    parts += map(Text, reasons) if verbose else bullets(reasons, width)
    notes = [wrapped(f"note: {note}", width, indent="  ") for note in plan.notes]
    return Group(*parts, Text(), *notes, calibration_line(plan.serving, plan.cluster["chip"], REMEDY, verbose=verbose))


def _highlights(plan: ServePlan) -> list[str]:
    """The first reasons, and the verdict on a measured speed, which come last."""
    measured = [i for i, line in enumerate(plan.reasons) if line.startswith("Measured ")]
    verdict = list(plan.reasons[measured[0] :]) if measured else []
    return [*verdict, *plan.reasons[:HIGHLIGHTS]]


def header(plan: ServePlan) -> Text:
    """The question, with what was assumed."""
    ask, context = plan.ask, units.show(float(plan.context), "length")
    requests = f"{ask.users:,} concurrent requests" if ask.users > 1 else "one request at a time"
    lines = [
        f"{ask.model} on {ask.on} with {plan.engine}{'' if ask.engine else ' (assumed, --engine)'}",
        f"{plan.weights['format']} weights, {ask.kv} KV cache; {requests}, {ask.prompt:,} prompt + {ask.output:,} output tokens, "
        f"context {context}",
    ]
    return Text(lines[0], style="bold").append(f"\n{lines[1]}", style="not bold")


def columns(plan: ServePlan) -> list[Column[ServeChoice]]:
    """The columns of the table; those of several requests, prices and targets where they apply."""
    several = plan.ask.users > 1
    found: list[Column[ServeChoice]] = [
        Column("layout", lambda c: c.name, text=True),
        Column(
            f"{'tok/s each' if several else 'tokens/s'} (90%)",
            lambda c: f"{tokens(c.per_user)} ({tokens(c.low)}-{tokens(c.high)})",
        ),
    ]
    if several:
        found.extend(
            [
                Column("decode tok/s", lambda c: tokens(c.decode), rank=3),
                Column("with prompts", lambda c: tokens(c.sustained)),
            ]
        )
    found.extend(
        [
            Column("prefill tok/s", lambda c: f"{c.prefill:,.0f}", rank=2),
            Column("TTFT", lambda c: units.show(c.ttft, "seconds", digits=3)),
            Column("GiB free", lambda c: _gib(c.spare)),
            Column("max requests", lambda c: f"{c.most_users:,}", rank=1),
        ]
    )
    if any(c.dollars_per_million is not None for c in plan.choices):
        found.append(Column("$/1M tokens", lambda c: _dollars(c.dollars_per_million)))
    if plan.ask.ttft or plan.ask.per_user:
        found.append(Column("meets", lambda c: "yes" if c.meets else "no"))
    return found


def _dollars(value: float | None) -> str:
    return f"{value:,.2f}" if value is not None else ""


def _gib(value: float) -> str:
    return f"{value / GIB:.1f}"


def _below_table(plan: ServePlan) -> list[str]:
    lines = [f"Does not fit: {miss.name}, {_gib(miss.missing)} GiB short on its fullest device." for miss in plan.misses]
    rate = plan.cluster["dollars_per_hour"]
    if rate is not None and any(c.dollars_per_million is not None for c in plan.choices):
        lines.append(
            f"Cost at ${rate:,.2f} per device-hour ({'--price' if plan.ask.price else 'list price; --price changes it'})."
        )
    return lines


def device_bars(best: ServeChoice) -> list[RenderableType]:
    """Return one memory bar per device of a copy."""
    lines: list[RenderableType] = [Text(f"memory of each device, {best.name}", style="bold")]
    for same in _alike(best.devices):
        first, last = same[0], same[-1]
        number = f"device {first.card}" if len(same) == 1 else f"devices {first.card}-{last.card}"
        layers = f"{first.layers} layers{' and the head' if first.head else ''}"
        values = {part.name: float(getattr(first, part.name)) for part in SERVE_MEMORY}
        bar = bars.bar(SERVE_MEMORY, values, first.capacity, BAR)
        lines.append(
            bar.append(f" {_gib(sum(values.values()))} of {_gib(first.capacity)} GiB, {number}, {layers}", style="not dim")
        )
    return [*lines, Text("  ".join(f"{part.letter} {part.words}" for part in SERVE_MEMORY), style="dim")]


def _alike(devices: Sequence[Device]) -> list[list[Device]]:
    """Neighbours that hold the same amount, as one group."""
    found: list[list[Device]] = []
    for device in devices:
        held = (device.layers, device.head, device.weights, device.cache, device.compute)
        before = found[-1][-1] if found else None
        if before and (before.layers, before.head, before.weights, before.cache, before.compute) == held:
            found[-1].append(device)
        else:
            found.append([device])
    return found


def time_bars(choices: Sequence[ServeChoice], width: int) -> list[RenderableType]:
    """Milliseconds of a decode step by part, on a common scale."""
    totals = [sum(c.time.values()) for c in choices]
    lines: list[RenderableType] = [Text("decode step by part", style="bold")]
    for c, total in zip(choices, totals, strict=True):
        lines.append(bars.bar(SERVE_TIME, c.time, max(totals), BAR).append(f" {1e3 * total:.4g} ms, {c.name}", style="not dim"))
    if len(choices) == 1:
        return [*lines, bars.legend(SERVE_TIME, choices[0].time, width)]
    return [*lines, bars.letters(SERVE_TIME, [c.time for c in choices])]


# Many points.

Panel = tuple[str, Callable[[ServeChoice], float], Callable[[ServeChoice], str]]


def points_view(found: ServePoints, width: int) -> RenderableType:
    """One table, one chart and what they teach."""
    several = any(point.ask and point.ask.users > 1 for point in found)
    notes = dict.fromkeys(note for point in found for note in point.notes)
    return Group(
        fitted(_point_columns(found, several), found.points, width),
        _chart(found, several),
        Text(),
        *map(Text, found.lessons),
        *(Text(f"note: {note}") for note in notes),
    )


def _point_columns(found: ServePoints, several: bool) -> list[Column[ServePoint]]:
    """The axes, and the best layout at each point; a point without one shows the reason instead."""

    def of(cell: Callable[[ServeChoice], str]) -> Callable[[ServePoint], str]:
        return lambda point: cell(point.choice) if point.choice else ""

    def axis(i: int) -> Callable[[ServePoint], str]:
        return lambda point: point.labels[i]

    layered = "gpus" in found.axes and any(p.layered and p.choice and p.choice.split != "layer" for p in found)
    columns: list[Column[ServePoint]] = [
        *(Column(name, axis(i)) for i, name in enumerate(found.axes)),
        Column("layout", lambda point: point.choice.name if point.choice else point.refusal, text=True),
        Column("tok/s each" if several else "tokens/s", of(lambda c: tokens(c.per_user))),
        Column("all requests", of(lambda c: tokens(c.decode))),
        Column("prefill tok/s", of(lambda c: f"{c.prefill:,.0f}"), rank=2),
        Column("TTFT", of(lambda c: units.show(c.ttft, "seconds", digits=3))),
        Column("layer split", lambda p: tokens(p.layered.per_user) if p.layered else "", rank=3),
        Column("GiB free", of(lambda c: _gib(c.spare))),
        Column("max context", lambda p: units.show(float(p.longest), "length", digits=3) if p.choice else "", rank=1),
        Column("max requests", of(lambda c: f"{c.most_users:,}"), rank=4),
    ]
    hidden = {*(() if several else ("all requests",)), *(() if layered else ("layer split",))}
    return [column for column in columns if column.title not in hidden]


def _chart(found: ServePoints, several: bool) -> Table:
    """A bar per point for generation and for the prompt, each from zero to the longest of its column."""
    each: Panel = ("tok/s each" if several else "tokens/s", lambda c: c.per_user, lambda c: tokens(c.per_user))
    together: Panel = ("all requests", lambda c: c.decode, lambda c: tokens(c.decode))
    prompt: Panel = ("prefill tok/s", lambda c: c.prefill, lambda c: f"{c.prefill:,.0f}")
    panels = [each, together, prompt] if several else [each, prompt]
    done = [point.choice for point in found if point.choice]
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for title in found.axes:
        table.add_column(title, justify="right", no_wrap=True)
    for (title, _, _), colour in zip(panels, ("green", "yellow", "cyan"), strict=False):
        table.add_column(title, style=colour, no_wrap=True)
    most = [max((value(c) for c in done), default=0.0) or 1.0 for _, value, _ in panels]
    for point in found:
        c = point.choice
        drawn = (
            [bars.length(value(c) / top, show(c), POINT_BAR) for (_, value, show), top in zip(panels, most, strict=True)]
            if c
            else ["-"]
        )
        table.add_row(*point.labels, *drawn)
    return table
