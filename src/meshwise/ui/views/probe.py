"""A probe on a terminal: rates as bars over shapes and sizes, the fitted figures, and those not measured."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from meshwise import units
from meshwise.calibrate.train.probe import Machine, Row, of_kind
from meshwise.cost.train.compute import Device
from meshwise.ui.views import bars
from meshwise.ui.views.tables import wrapped

if TYPE_CHECKING:
    from meshwise.run.probe.store import Probed

BAR_WIDTH = 32  # characters of the longest bar

Line = tuple[str, float, Row]


def probed_view(probed: "Probed", width: int, *, curves: bool) -> RenderableType:
    """Return the fitted figures of each chip; with `curves` also every measured rate."""
    parts: list[RenderableType] = []
    for key, rows in probed.rows_by_chip.items():
        if curves:
            parts += [Text(f"{key}: {rows[0]['name']}, {rows[0]['date']}", style="bold"), _curves(rows)]
        parts.append(_summary(probed.machines[key], rows, width))
    return Group(*parts)


def _summary(machine: Machine, rows: Sequence[Row], width: int) -> RenderableType:
    """Return the fitted figures that plans use."""
    chip, c = machine.chip, machine.calibration
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column()
    peak = Device.of(chip, c, "bf16").wide
    lines = [
        (chip.key, chip.name),
        ("matrix products", f"{units.show(peak * c.matmul, 'FLOP/s', digits=3)} in a step, {c.matmul:.0%} of {_peak(machine)}"),
        ("memory", f"{units.show(chip.bandwidth * c.memory, 'bytes/s', digits=3)} read and written"),
        ("attention", f"{c.flash:.0%} of the peak with heads of 128"),
        ("layer", f"{units.show(c.layer_launch + c.layer_gap, 'seconds', digits=3)} of launch overhead, forward"),
    ]
    if "link" in c.measured and chip.link:
        rate, step = chip.link.bandwidth * c.link, units.show(c.link_latency, "seconds", digits=3)
        lines.append(("between devices", f"{units.show(rate, 'bytes/s', digits=3)} in a ring, {step} per step"))
    drawn = of_kind(rows, "power")
    if drawn:
        words = {"idle power": "idle", "waiting": "waiting", "sustained rate": "in products"}
        seen = [f"{row['watts']:,.0f} W {words[row['what']]}" for row in drawn if row["what"] in words]
        lines.append(("power", f"{', '.join(seen)} by {drawn[0]['meter']}"))
    if chip.host:
        lines.append(("to the host", units.show(chip.host.bandwidth, "bytes/s", digits=3)))
    lines += [(f"fit of {what}", f"{100 * error:.0f}% median error over all shapes") for what, error in machine.errors.items()]
    for name, words in lines:
        table.add_row(name, words)
    return Group(table, *(wrapped(f"not measured: {what}", width, indent="  ") for what in machine.missing))


def _peak(machine: Machine) -> str:
    """Return the peak rate of the chip, from its datasheet or as measured."""
    return units.show(Device.of(machine.chip, machine.calibration, "bf16").wide, "FLOP/s", digits=3) + (
        " (datasheet)" if machine.chip.vendor != "measured" else " (best single product)"
    )


def _curves(rows: Sequence[Row]) -> RenderableType:
    """Return every row as a bar of its rate, with the spread of its repeats."""
    panels: list[RenderableType] = []

    def panel(title: str, lines: list[Line], show: Callable[[float], str]) -> None:
        if lines:
            panels.extend([Text(title, style="bold"), _bars(lines, show), Text()])

    def flops(value: float) -> str:
        return units.show(value, "FLOP/s", digits=3)

    def speed(value: float) -> str:
        return units.show(value, "bytes/s", digits=3)

    gemm = sorted(of_kind(rows, "gemm"), key=lambda row: (row["k"] * row["n"], row["m"]))
    panel("matrix products, m x n x k", [(f"{r['m']}x{r['n']}x{r['k']}", r["flops"] / r["seconds"], r) for r in gemm], flops)
    memory = sorted(of_kind(rows, "memory"), key=lambda row: (row["what"], row["size"]))
    panel("memory, bytes read and written", [(f"{r['what']} {_size(r)}", r["bytes"] / r["seconds"], r) for r in memory], speed)
    attention = of_kind(rows, "attention")
    panel(
        "causal attention, sequences x heads x length x width",
        [(f"{r['what']} {r['batch']}x{r['heads']}x{r['seq']}x{r['width']}", r["flops"] / r["seconds"], r) for r in attention],
        flops,
    )
    wires = sorted(of_kind(rows, "wire"), key=lambda r: (r["what"], r["nodes"], r["group"], r["size"]))
    panel(
        "between devices, bytes of the array per second",
        [
            (f"{r['what']} of {r['group']}{' nodes' if r['nodes'] > 1 else ''} {_size(r)}", r["size"] / r["seconds"], r)
            for r in wires
        ],
        speed,
    )
    host = sorted(of_kind(rows, "host"), key=lambda r: (r["what"], r["size"]))
    panel("link to the host", [(f"{r['what']} {_size(r)}", r["bytes"] / r["seconds"], r) for r in host], speed)
    times = [(f"{r['what']} operation", r["seconds"], r) for r in of_kind(rows, "launch")]
    times += [(f"block {r['what']} {r['tokens']} tokens x {r['hidden']}", r["seconds"], r) for r in of_kind(rows, "block")]
    panel("seconds", times, lambda value: units.show(value, "seconds", digits=3))
    return Group(*panels)


def _size(row: Row) -> str:
    return units.show(float(row["size"]), "bytes", binary=True, digits=3)


def _bars(lines: list[Line], show: Callable[[float], str]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    for _ in range(4):
        table.add_column(no_wrap=True)
    most = max(value for _, value, _ in lines)
    for label, value, row in lines:
        spread = 50 * (row["high"] / row["low"] - 1)
        table.add_row(label, bars.plain(value / most, BAR_WIDTH), show(value), f"± {spread:.0f}% of {row['repeats']}")
    return table
