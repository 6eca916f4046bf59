"""Show a diagnosis: measured and expected time by part, both as columns, faults with what to change, and the verdict."""

from collections.abc import Sequence
from html import escape

from rich.console import Group, RenderableType
from rich.text import Text

from meshwise import units
from meshwise.audit.doctor.diagnosis import WORDS, Diagnosis, Row
from meshwise.audit.doctor.fault import Fault, milliseconds
from meshwise.audit.doctor.profile import Kernel, Message, Product, Profile
from meshwise.audit.doctor.snapshot import Memory
from meshwise.cost.parts import TRAIN_TIME, Part
from meshwise.ui.views import bars
from meshwise.ui.views.audit import MARGIN, STYLES
from meshwise.ui.views.run.sections import Section
from meshwise.ui.views.svg.drawing import document
from meshwise.ui.views.tables import Column, Table, wrapped

BY_NAME = {part.name: part for part in TRAIN_TIME}
PARTS = tuple(
    Part(name, words, {"copy": "f", "idle": "h"}.get(name) or BY_NAME[name].letter,
         {"copy": "#ff9896", "idle": "#c7c7c7"}.get(name) or BY_NAME[name].colour)
    for name, words in WORDS.items()
)  # fmt: skip
"""The rows of a diagnosis with the letters and colours of the cost model's parts."""
MAX_FAULTS, MAX_SHOWN = 8, 6
NAMES = ("measured", "should be")
WIDTH, HEIGHT, COLUMN, LEFT, TOP = 560, 360, 120, 60, 34


def diagnosis_view(found: Diagnosis, width: int) -> RenderableType:
    """Show the parts of the step, two bars, faults, notes and the verdict."""
    shown: list[RenderableType] = [wrapped(found.title, width, style="bold")]
    if found.rows:
        shown += [_table(found.rows).fitted(width), *_bars(found, width)]
    shown += [Text(""), *(line for fault in found.faults[:MAX_FAULTS] for line in _fault(fault, found, width))]
    shown += [wrapped(_memory(one), width, "  ", "  ") for one in found.memory]
    shown += [wrapped(f"note: {note}", width, indent="  ") for note in found.notes]
    return Group(*shown, wrapped(found.verdict, width, style="bold"))


def _memory(one: Memory) -> str:
    reserved, allocated, peak = (size / units.GIB for size in (one.reserved, one.allocated, one.peak))
    return f"{one.source}: {reserved:.2f} GiB reserved, {allocated:.2f} allocated, at most {peak:.2f} in the history"


def _table(rows: Sequence[Row]) -> Table[Row]:
    step = rows[-1].measured
    return Table(
        [
            Column("part", lambda row: WORDS.get(row.part, row.part), text=True),
            Column("measured", lambda row: _time(row.measured)),
            Column("of the step", lambda row: f"{row.measured / step:.1%}", rank=2),
            Column("should be", lambda row: _time(row.should_be)),
            Column("difference", _difference),
        ],
        rows, edged=True, summed=True,
    )  # fmt: skip


def _time(seconds: float | None) -> str:
    return "" if seconds is None else milliseconds(seconds)


def _difference(row: Row) -> str:
    if row.should_be is None or abs(row.measured - row.should_be) < 0.005 * max(row.measured, row.should_be):
        return ""
    more = row.measured - row.should_be
    return f"{'+' if more > 0 else '-'}{milliseconds(abs(more))}"


def _columns(found: Diagnosis) -> list[dict[str, float]]:
    return [{row.part: row.measured for row in found.rows[:-1]}, {row.part: row.should_be or 0.0 for row in found.rows[:-1]}]


def _bars(found: Diagnosis, width: int) -> list[Text]:
    """Return one bar for what was measured and one for what should be, on one scale."""
    columns = _columns(found)
    full = max(sum(one.values()) for one in columns)
    room = bars.room(width, f"{NAMES[1]}  1234.5 ms")
    drawn = [Text(f"{name:<10}").append(bars.bar(PARTS, one, full, room)).append(f" {milliseconds(sum(one.values()))}")
             for name, one in zip(NAMES, columns, strict=True)]  # fmt: skip
    return [*drawn, bars.letters(PARTS, columns, width)]


def _fault(fault: Fault, found: Diagnosis, width: int) -> list[Text]:
    step = found.rows[-1].measured if found.rows else 0.0
    gain = f" [{milliseconds(fault.seconds)} a step, {fault.seconds / step:.0%}]" if step else ""
    ranks = f", rank {', '.join(map(str, fault.ranks[:6]))}" if fault.ranks and len(found.profiles) > 1 else ""
    first = wrapped(f"{fault.name}: {fault.message}{gain}{ranks}", width, f"{fault.certainty:<{len(MARGIN)}}", MARGIN)
    first.stylize(STYLES[fault.certainty], 0, len(MARGIN))
    lines = [f"change: {fault.change}", *([fault.evidence] if fault.evidence else [])]
    return [first, *(wrapped(line, width, MARGIN, MARGIN, style="" if i == 0 else "dim") for i, line in enumerate(lines))]


def sections(found: Diagnosis) -> list[Section]:
    """Return everything for a page: parts, faults, products, messages, kernels and ranks."""
    made = [Section("Parts of the step", _table(found.rows) if found.rows else None, found.notes)]
    made.append(Section("What to change", lines=tuple(
        f"{fault.name} ({fault.certainty}, {milliseconds(fault.seconds)} a step): {fault.message}. Change: {fault.change}. {fault.evidence}"
        for fault in found.faults
    ) or ("No known fault found.",)))  # fmt: skip
    if not found.profiles:
        return made
    one = found.slowest
    tables = (("Matrix products", _products(one.products)), ("Messages", _messages(one.messages)),
              ("Longest kernels", _kernels(one.kernels)),
              ("Ranks", _ranks(found.profiles)))  # fmt: skip
    return [*made, *(Section(title, table) for title, table in tables if table.rows)]


def _products(products: Sequence[Product]) -> Table[Product]:
    return Table([
        Column("m x n x k", lambda one: f"{one.m:,} x {one.n:,} x {one.k:,}", text=True), Column("batch", lambda one: f"{one.batch:,}"),
        Column("type", lambda one: one.dtype, text=True), Column("per step", lambda one: f"{one.count:.4g}"),
        Column("measured", lambda one: milliseconds(one.seconds)),
        Column("should be", lambda one: milliseconds(one.should_be) if one.should_be else ""),
        Column("TFLOP/s", lambda one: f"{one.flops / one.seconds / 1e12:.3g}" if one.seconds else ""),
    ], products[:MAX_SHOWN * 2])  # fmt: skip


def _messages(messages: Sequence[Message]) -> Table[Message]:
    return Table([
        Column("collective", lambda one: one.kind, text=True), Column("group", lambda one: one.group or f"{one.ranks} ranks", text=True),
        Column("bytes", lambda one: units.show(one.bytes, "bytes", digits=3) if one.bytes else ""),
        Column("per step", lambda one: f"{one.count:.4g}"), Column("time", lambda one: milliseconds(one.seconds)),
        Column("exposed", lambda one: milliseconds(one.exposed)),
    ], messages[:MAX_SHOWN * 2])  # fmt: skip


def _kernels(kernels: Sequence[Kernel]) -> Table[Kernel]:
    return Table([
        Column("kernel", lambda one: one.name, text=True), Column("part", lambda one: one.part, text=True),
        Column("per step", lambda one: f"{one.count:.4g}"), Column("time", lambda one: milliseconds(one.seconds)),
    ], kernels)  # fmt: skip


def _ranks(profiles: Sequence[Profile]) -> Table[Profile]:
    return Table([
        Column("rank", lambda one: "" if one.rank is None else str(one.rank)), Column("trace", lambda one: one.source, text=True),
        Column("step", lambda one: milliseconds(one.step)), Column("own work", lambda one: milliseconds(one.working)),
    ], profiles)  # fmt: skip


def svg(found: Diagnosis) -> str:
    """Return the picture of two columns: what was measured, and what should be."""
    columns = _columns(found)
    full = max(sum(one.values()) for one in columns) or 1.0
    scale = (HEIGHT - TOP - 30) / full
    drawn = ['<text x="20" y="20" font-weight="600">seconds of a step by part</text>']
    for number, (name, values) in enumerate(zip(NAMES, columns, strict=True)):
        left, base = LEFT + number * (COLUMN + 40), HEIGHT - 26.0
        for part in PARTS:
            size = values.get(part.name, 0.0) * scale
            if size > 0:
                base -= size
                title = f"{part.words}, {name}: {milliseconds(values[part.name])}"
                drawn.append(
                    f'<rect x="{left}" y="{base:.1f}" width="{COLUMN}" height="{size:.1f}" fill="{part.colour}">'
                    f"<title>{escape(title)}</title></rect>"
                )
        total = milliseconds(sum(values.values()))
        drawn.append(f'<text x="{left + COLUMN / 2}" y="{HEIGHT - 8}" text-anchor="middle">{name}: {total}</text>')
    shown = [part for part in PARTS if any(one.get(part.name, 0.0) > 0.002 * full for one in columns)]
    for number, part in enumerate(shown):
        y = TOP + 20 * number
        drawn.append(
            f'<rect x="400" y="{y}" width="12" height="12" fill="{part.colour}"/>'
            f'<text x="418" y="{y + 11}" font-size="11">{part.words}</text>'
        )
    return document(WIDTH, HEIGHT, drawn)
