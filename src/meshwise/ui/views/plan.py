"""A plan on a terminal: the table of layouts, stacked bars of time and memory, what the rules dropped, and the reasons."""

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from meshwise import units
from meshwise.cost.goodput import HARDWARE, LLAMA3_STORAGE, LOSSES
from meshwise.cost.layout import name_of
from meshwise.cost.reliability import Reliability
from meshwise.cost.train.memory import KINDS
from meshwise.cost.train.step import PARTS
from meshwise.plan.train.choice import Choice, Plan
from meshwise.plan.train.explain import WORDS
from meshwise.units import GIB

COLOURS = ("green", "cyan", "blue", "magenta", "yellow", "bright_cyan", "bright_blue", "white", "bright_magenta", "red", "bright_yellow",
           "bright_green", "bright_red", "bright_black")  # fmt: skip
LETTERS: dict[str, str] = dict(zip(PARTS, "makrtceh>bdof_", strict=True)) | {
    "matmul": "M",
    "attention": "A",
    "elementwise": "e",
    "recompute": "R",
    "ep": "x",
}
MEMORY_LETTERS: dict[str, str] = dict(zip(KINDS, "WGOALC", strict=True))
WIDTH = 60


def plan_view(plan: Plan, why: Sequence[str]) -> RenderableType:
    """Everything `plan` prints, but for the command that asks again, which no terminal may break."""
    notes = [Text(f"note: {note}") for note in plan.notes]
    return Group(
        choices_table(plan),
        formulas(plan.choices[0]),
        *failures(plan),
        Text(),
        *bars(plan.choices[:5]),
        rejects(plan),
        Text(),
        *map(Text, why),
        Text(),
        *notes,
        _provenance(plan),
    )


def choices_table(plan: Plan) -> Table:
    """The best layouts, fastest first."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("layout")
    trained = plan.choices[0].days is not None
    columns = ["s/step", "90% between", "tokens/s", "TFLOP/s", "MFU", "GiB of " + f"{plan.choices[0].capacity / GIB:.0f}"]
    for column in (*columns, *(("days", "cost", "MWh") if trained else ()), "ties"):
        table.add_column(column, justify="right")
    for choice in plan.choices:
        table.add_row(*_cells(choice, trained))
    return table


def _cells(c: Choice, trained: bool) -> list[str]:
    days = f"{c.days:,.1f}" if c.days is not None else ""
    total = (
        [days, "$" + units.show(c.dollars, "count", digits=3) if c.dollars else "", f"{c.mwh:,.0f}" if c.mwh else ""]
        if trained
        else []
    )
    return [
        name_of(c.layout),
        f"{c.seconds:.4g}",
        f"{c.low:.3g} to {c.high:.3g}",
        f"{c.tokens_per_second:,.0f}",
        f"{c.tflops['exact']:.1f}",
        f"{100 * c.mfu:.1f}%",
        f"{c.memory / GIB:.1f}",
        *total,
        f"+{c.ties}" if c.ties else "",
    ]


def bars(choices: Sequence[Choice]) -> list[RenderableType]:
    """Seconds and bytes by part, one bar per layout on a common scale; a letter per part, so that they read without colour too."""
    longest = max(c.seconds for c in choices)
    capacity = choices[0].capacity
    lines: list[RenderableType] = [Text("time by part", style="bold")]
    lines += [_bar(c.time_parts, LETTERS, longest, f"{c.seconds:7.4g} s", name_of(c.layout)) for c in choices]
    lines += [_legend(choices, LETTERS), Text(), Text(f"memory by kind, of {capacity / GIB:.0f} GiB", style="bold")]
    lines += [_bar(c.memory_parts, MEMORY_LETTERS, capacity, f"{c.memory / GIB:5.1f} GiB", name_of(c.layout)) for c in choices]
    kinds = "  ".join(f"{letter} {kind}" for kind, letter in MEMORY_LETTERS.items())
    return [*lines, Text(kinds, style="dim"), Text()]


def _bar(parts: dict[str, float], letters: dict[str, str], full: float, total: str, name: str) -> Text:
    """Cells in proportion; the running sum is rounded, so that the bar's length is right."""
    bar, drawn, running = Text(f"{total} "), 0, 0.0
    for (part, letter), colour in zip(letters.items(), COLOURS, strict=False):
        running += parts.get(part, 0.0)
        cells = round(WIDTH * running / full) - drawn
        bar.append(letter * cells, style=colour)
        drawn += cells
    return bar.append(" " * (WIDTH - drawn + 1) + name)


def _legend(choices: Sequence[Choice], letters: dict[str, str]) -> Text:
    shown = [part for part in letters if any(c.time_parts.get(part, 0.0) > 0.002 * c.seconds for c in choices)]
    return Text("  ".join(f"{letters[part]} {WORDS[part]}" for part in shown), style="dim")


def rejects(plan: Plan) -> RenderableType:
    """How many layouts each rule dropped."""
    dropped = "; ".join(f"{count:,} by '{rule}'" for rule, count in plan.rejected.items())
    return Text(f"{plan.priced:,} layouts priced. Dropped: {dropped or 'none'}.")


def formulas(best: Choice) -> Text:
    """The same step under each common way to count FLOPs."""
    peak = best.tflops["exact"] / best.mfu
    rates = ", ".join(f"{name} {rate:.1f} ({100 * rate / peak:.1f}%)" for name, rate in best.tflops.items())
    return Text(f"First row in TFLOP/s by formula: {rates}. The table's are exact: causal attention, and no recompute.")


def failures(plan: Plan) -> list[Text]:
    """What failures make of the first row's days, where days or failures were asked about; and what was assumed."""
    best, g = plan.choices[0], plan.choices[0].goodput
    if not (plan.ask.tokens or plan.ask.reliability):
        return []
    days = f": {best.wall_days:,.1f} days instead of {best.days:,.1f}" if best.wall_days and best.days else ""
    cost = f", ${units.show(best.wall_dollars, 'count', digits=3)}" if best.wall_dollars else ""
    spares = f"{g['spares']:,.0f} spare node{'' if g['spares'] == 1 else 's'}"
    number = g["interruptions_per_day"] * (best.wall_days or 0)
    total = f"{number:,.{0 if number >= 10 else 1}f} interruptions, " if best.wall_days else ""
    between, save, every = (units.show(g[name], "seconds", digits=2) for name in ("between", "save", "interval"))
    size = units.show(g["checkpoint_bytes"], "bytes", digits=3)
    lost = ", ".join(f"{100 * g[part]:.1f}% {words}" for part, words in LOSSES.items() if g[part] >= 0.0005)
    return [
        Text(f"With failures, first row: {100 * g['effective']:.1f}% of the time is useful{days}{cost} with {spares}."),
        Text(
            f"  {total}one every {between}; a checkpoint of {size}, written in {save}, every {every}. Lost: {lost or 'nothing'}."
        ),
        Text(f"  {_assumed(plan)}", style="dim"),
    ]


def _assumed(plan: Plan) -> str:
    """Every number about failures that was not given."""
    r = Reliability()
    words = {
        "mtbf": f"a failure in {r.mtbf / 3600:,.0f} device-hours (arXiv:2407.21783)",
        "checkpoint_bandwidth": f"{units.show(LLAMA3_STORAGE, 'bytes/s', digits=3)} to storage a device (arXiv:2407.21783)",
        "restart": f"{units.show(r.restart, 'seconds')} to restart",
        "repair": f"{units.show(r.repair, 'seconds')} to repair a node",
        "spares": "as many spare nodes as pay for themselves",
        "straggler": f"step times that spread by {units.show(r.straggler, 'share')}",
    }
    left = [text for name, text in words.items() if name not in plan.ask.reliability]
    return f"Assumed: {', '.join([*left, f'{HARDWARE:.0%} of failures taking a node away'])}."


def _provenance(plan: Plan) -> Text:
    about = plan.calibration
    return Text(
        f"calibration: {about['name']} (fitted on {about['fitted_on']}{', ' + about['date'] if about['date'] else ''})",
        style="dim",
    )
