"""A serving plan on a terminal: header, table of layouts, memory of each device, time by part, reasons; and tables of points."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.text import Text

from meshwise import units
from meshwise.cost.parts import SERVE_MEMORY, SERVE_TIME
from meshwise.plan.serve.choice import Device, ServeChoice
from meshwise.plan.serve.plan import Miss, ServePlan
from meshwise.plan.serve.words import length_words, load_words, tokens
from meshwise.ui.views import bars
from meshwise.ui.views.energy import energy_lines
from meshwise.ui.views.tables import Column, Table, bullets, calibration_line, heading, price_sentence, wrapped
from meshwise.units import GIB, figure

REMEDY = "see meshwise bench"
REASONS_SHOWN = 5  # reasons that the short answer lists
BARS_SHOWN = 5  # layouts whose bars `--verbose` draws


def plan_view(plan: ServePlan, width: int, *, verbose: bool) -> RenderableType:
    """Return everything that `serve` prints except the commands, which must not be wrapped."""
    parts: list[RenderableType] = [
        *heading(header(plan), width), Text(), table(plan).fitted(width),
        *(wrapped(line, width) for line in below_table(plan)), Text(),
    ]  # fmt: skip
    parts += [
        *device_bars(plan.best, str(plan.cluster["unit"]), width), Text(),
        *time_bars(plan.choices[: BARS_SHOWN if verbose else 1], width), Text(),
    ]  # fmt: skip
    parts += [wrapped(line, width) for line in plan.reasons] if verbose else bullets(_highlights(plan), width)
    parts += [wrapped(line, width) for line in energy_lines(plan.ask, plan.energy, "per million tokens", verbose=verbose)]
    notes = [wrapped(f"note: {note}", width, indent="  ") for note in plan.notes]
    about = calibration_line(plan.serving, plan.cluster["chip"], REMEDY, verbose=verbose)
    return Group(*parts, Text(), *notes, wrapped(about, width, style="dim"))


def _highlights(plan: ServePlan) -> list[str]:
    """Return the first reasons; the verdict on a measured speed, which is the last of the reasons, comes before them."""
    end = next((i for i, line in enumerate(plan.reasons) if line.startswith("Measured ")), len(plan.reasons))
    return [*plan.reasons[end:], *plan.reasons[: REASONS_SHOWN - (end < len(plan.reasons))]]


def header(plan: ServePlan) -> list[str]:
    """Return the question in two lines, with the assumed engine, the lengths and the load that all speeds belong to."""
    ask, context = plan.ask, units.show(float(plan.context), "length")
    return [
        f"{ask.model} on {ask.on} with {plan.engine}{'' if ask.engine else ' (assumed, --engine)'}",
        f"{plan.weights['format']} weights, {ask.kv} KV cache; {load_words(ask)}, {length_words(ask)}, context {context}",
    ]


def table(plan: ServePlan) -> Table[ServeChoice]:
    """Return the table of layouts; with columns of several requests, prices and targets where they apply."""
    ask, several = plan.ask, plan.ask.users > 1 or plan.ask.rate > 0

    def time(title: str, name: str, quantile: str, rank: int) -> Column[ServeChoice]:
        def seconds(c: ServeChoice) -> float | None:
            return getattr(c, name).at(quantile) if c.throughput else None

        def cell(c: ServeChoice) -> str:
            value = seconds(c)
            return "" if value is None else units.show(value, "seconds", digits=3)

        return Column(title, cell, rank=rank, key=seconds)

    rate = "tok/s each" if several else "tokens/s"
    columns: list[Column[ServeChoice]] = [
        Column("layout", lambda c: c.name, text=True),
        Column(f"{rate} (90%)", lambda c: f"{tokens(c.per_user)} ({tokens(c.low)}-{tokens(c.high)})"),
        Column("all, with prompts", lambda c: tokens(c.throughput), rank=2 if several else 5, short_title="all tok/s"),
    ]
    if several:
        columns.append(Column("requests/s", lambda c: figure(c.requests), rank=8))
        columns.append(Column("per device", lambda c: tokens(c.per_device), rank=9))
    columns.append(time("TTFT" if not several else "TTFT p50", "ttft", "p50", 2))
    if several:
        columns.append(time("p95", "ttft", "p95", 4))
        columns.append(time("p99", "ttft", "p99", 10))
    if ask.tpot:
        columns.append(time("per token p95", "tpot", "p95", 3))
    columns.append(time("request" if not several else "request p95", "e2e", "p50" if not several else "p95", 3))
    columns.append(Column("prefill tok/s", lambda c: f"{c.prefill:,.0f}", rank=11))
    columns.append(Column("GiB free", lambda c: gib(c.spare), rank=7))
    columns.append(Column("P(fit)", lambda c: ">99%" if c.p_fit > 0.99 else f"{100 * c.p_fit:.0f}%", rank=12))
    columns.append(Column("at once", lambda c: f"{c.most_users:,}", rank=6))
    if any(c.dollars_per_million is not None for c in plan.choices):
        columns.append(Column("$/1M out", lambda c: dollars(c.dollars_per_million_out), rank=5))
        columns.append(Column("$/1M in", lambda c: dollars(c.dollars_per_million_in), rank=8))
    if ask.ttft or ask.per_user or ask.tpot or ask.e2e:
        columns.append(Column("meets", lambda c: "yes" if c.meets else "no", rank=1))
    return Table(columns, plan.choices)


def dollars(value: float | None) -> str:
    return f"{value:,.2f}" if value is not None else ""


def gib(value: float) -> str:
    return f"{value / GIB:.1f}"


def below_table(plan: ServePlan) -> list[str]:
    """Return the footnotes of the table: layouts that do not fit, and the price."""
    lines = [f"Does not fit: {'; '.join(_short_by(plan.misses, str(plan.cluster['unit'])))}."] if plan.misses else []
    if plan.most:
        unit = "requests/s" if plan.ask.rate else "users"
        lines.append(
            f"{plan.best.name} meets the targets with up to {f'{figure(plan.most)}' if plan.ask.rate else f'{plan.most:,.0f}'} {unit}."
        )
    rate = plan.cluster["dollars_per_hour"]
    if rate is not None and any(c.dollars_per_million is not None for c in plan.choices):
        lines.append(price_sentence(plan.cluster, given=bool(plan.ask.price)))
    return lines


def _short_by(misses: Sequence[Miss], unit: str) -> Iterator[str]:
    """Yield 'row split, 2 cards (7.0 GiB short on its fullest card)'; after the first, only the GiB."""
    for i, miss in enumerate(misses):
        yield f"{miss.name} ({gib(miss.missing)} GiB{'' if i else f' short on its fullest {unit}'})"


def device_bars(best: ServeChoice, unit: str, width: int) -> list[RenderableType]:
    """Return one memory bar per device of a replica; neighbours that hold the same share a bar."""
    title = f"memory of each {unit}, {best.name}" if len(best.devices) > 1 else f"memory of the {unit}"
    lines: list[RenderableType] = [wrapped(title, width, style="bold")]
    alike = _alike(best.devices)
    held = [{part.name: float(getattr(same[0], part.name)) for part in SERVE_MEMORY} for same in alike]
    labels = [_device_label(same, unit, sum(values.values())) for same, values in zip(alike, held, strict=True)]
    bar_width = bars.room(width, *labels)
    for same, values, label in zip(alike, held, labels, strict=True):
        lines.append(bars.bar(SERVE_MEMORY, values, same[0].capacity, bar_width).append(label, style="not dim"))
    return [*lines, bars.letters(SERVE_MEMORY, held, width)]


def _device_label(same: Sequence[Device], unit: str, used: float) -> str:
    """Return ' 11.7 of 16.0 GiB, card 3, 19 layers + head'."""
    first, last = same[0], same[-1]
    number = f"{unit} {first.card}" if len(same) == 1 else f"{unit}s {first.card}-{last.card}"
    layers = f"{first.layers} layers{' + head' if first.head else ''}"
    return f" {gib(used)} of {gib(first.capacity)} GiB, {number}, {layers}"


def _alike(devices: Sequence[Device]) -> list[list[Device]]:
    """Group neighbours that hold the same bytes."""
    groups = groupby(devices, key=lambda device: (device.layers, device.head, device.weights, device.cache, device.compute))
    return [list(group) for _, group in groups]


def time_bars(choices: Sequence[ServeChoice], width: int) -> list[RenderableType]:
    """Return bars of the milliseconds of a decode step by part, on a common scale."""
    totals = [sum(c.time.values()) for c in choices]
    alone = len(choices) == 1
    labels = [f" {figure(1e3 * total, 4)} ms{'' if alone else ', ' + c.name}" for c, total in zip(choices, totals, strict=True)]
    bar_width = bars.room(width, *labels)
    lines: list[RenderableType] = [Text("decode step by part", style="bold")]
    for c, label in zip(choices, labels, strict=True):
        lines.append(bars.bar(SERVE_TIME, c.time, max(totals), bar_width).append(label, style="not dim"))
    several = [c.time for c in choices]
    if alone:
        return [*lines, bars.legend(SERVE_TIME, several[0], max(totals), width, bar_width=bar_width)]
    return [*lines, bars.letters(SERVE_TIME, several, width)]
