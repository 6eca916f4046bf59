"""The report of a run: measured beside predicted, by part, over ranks and over earlier runs, and what to try next."""

import math
from collections.abc import Sequence

from meshwise.cost.axes import layout_name as name_of
from meshwise.plan.train.choice import TIE_SHARE
from meshwise.run.train.report.advice import Forecast, Suggestion, suggestions, why
from meshwise.run.train.report.comparison import Measured, Part, Rival, Scaling, Spread, balance, by_kernel, parts, scaling
from meshwise.run.train.results import SweepResult, TrainResult
from meshwise.ui.views.run import lengths, sweep
from meshwise.ui.views.run.sections import Section, as_markdown, as_text
from meshwise.ui.views.run.words import rank_name, row_layout_name
from meshwise.ui.views.tables import Column, Table, grid
from meshwise.units import GIB, figure
from meshwise.workers.trainer.contract.rows import typical_step

EVALUATIONS = 8  # validation losses that the report shows, the last ones


def drawn(result: TrainResult | SweepResult) -> tuple[str, str]:
    """Return the report of a run for a terminal, and the same as Markdown."""
    made = sections(result)
    return as_text(made), as_markdown(title(result), made)


def result_view(result: TrainResult | SweepResult, width: int = 0) -> str:
    """Return the report of a run for a terminal, whatever the width: commands must not be wrapped."""
    return drawn(result)[0]


def title(result: TrainResult | SweepResult) -> str:
    """Return the heading of report.md."""
    if isinstance(result, SweepResult):
        return f"Sweep: {result.axes}"
    s = result.measured.settings
    return f"{s.name}, {s.batch} x {s.seq} tokens per step, {s.layout.devices} {s.facts.get('gpu', s.device)}"


def sections(result: TrainResult | SweepResult) -> list[Section]:
    """Return the report that is printed at the end of a run or a sweep."""
    if isinstance(result, SweepResult):
        return sweep.sections(result)
    measured, forecast = result.measured, result.forecast
    return [
        *(lengths.sections(result, result.lengths) if result.lengths else ()), headline(measured, forecast),
        *by_part(measured, forecast), *profiled(measured, forecast), *([memory(measured, forecast)] if forecast else []),
        *validation(measured), *experts(measured), balanced(measured), scaled(measured),
        *([next_to_try(measured, forecast)] if forecast else []),
    ]  # fmt: skip


def _time(seconds: float) -> str:
    return f"{seconds:.4f} s" if seconds < 10 else f"{seconds:.2f} s"


def _gib(size: float) -> str:
    return f"{size / GIB:.2f} GiB"


def _share(value: float) -> str:
    return f"{value:.1%}" if math.isfinite(value) else ""


def headline(measured: Measured, forecast: Forecast | None) -> Section:
    """Return time, throughput and memory of a step."""
    tokens, flops, mfu = measured.rates
    memory = f"{float(measured.row['mem_gb']):.2f} GiB"
    cells = [_figures(measured, measured.seconds, tokens, flops / 1e12, mfu, memory, measured.watts)]
    if forecast is not None:
        rate, here = measured.tokens / forecast.seconds, forecast.here
        peak = here.mfu / forecast.scale if math.isfinite(mfu) else math.nan
        rated = here.tflops["exact"] / forecast.scale
        cells.insert(0, _figures(measured, forecast.seconds, rate, rated, peak, _gib(here.peak), forecast.watts))
    names = (
        "step", "tokens/s", "tokens/s per device", "TFLOP/s per device", "MFU", "memory, fullest device", "power of this node's devices",
        "their energy in a step",
    )  # fmt: skip
    rows = [row for row in zip(names, *cells, strict=True) if row[-1]]
    table = grid(("", "predicted", "measured") if forecast else ("", "measured"), rows)
    return Section("predicted and measured" if forecast else "measured", table, tuple(_about(measured, forecast)))


def _figures(
    measured: Measured, seconds: float, rate: float, tflops: float, mfu: float, memory: str, watts: float | None
) -> tuple[str, ...]:
    each = rate / measured.settings.layout.devices
    power = (f"{watts:,.0f} W", f"{figure(watts * seconds, 4)} J") if watts else ("", "")
    return _time(seconds), f"{rate:,.0f}", f"{each:,.0f}", f"{tflops:.4g}", _share(mfu), memory, *power


def _about(measured: Measured, forecast: Forecast | None) -> list[str]:
    """Return lines that explain how the numbers were measured and predicted."""
    timed, steps = measured.timed, measured.steps
    warm = len(measured.since_restart) - len(timed)
    since = " since the last restart" if len(measured.since_restart) < len(steps) else ""
    lines = [
        f"median of {len(timed)} step{'s' * (len(timed) != 1)} after {warm} of warm-up{since}; "
        f"loss {steps[0].loss:.4f} to {steps[-1].loss:.4f}"
    ]
    lines += [f"start to the end of the first step: {measured.first_step:.1f} s"] if measured.first_step is not None else []
    if forecast is None:
        lines.append("no prediction: this GPU is not in the catalogue; name the machine with --on, such as 1x8xh200")
    elif measured.settings.device == "cpu" and forecast.kind != "cpu":
        lines.append(f"the prediction is for the {forecast.kind.upper()} that --on or the plan names, but this ran on a CPU")
    elif forecast.generic and forecast.fitted:
        runs = f"{forecast.fitted} earlier run{'s' if forecast.fitted > 1 else ''}"
        lines.append(
            f"predicted times are for a generic 16-core CPU, times {forecast.scale:.3g}, the median of {runs} in this folder"
        )
    elif forecast.generic:
        lines.append("the prediction is for a generic 16-core CPU, not for this machine: 'meshwise probe' measures it")
    return lines


def by_part(measured: Measured, forecast: Forecast | None) -> list[Section]:
    """Return seconds by part: predicted parts, and measured phases beside them."""
    rows, step = parts(measured, forecast), typical_step(measured.since_restart)
    if not rows:
        return []
    lines = () if step.phases else ("no phases were timed: the step runs as one CUDA graph",)
    title = f"time by part, rank 0, step {step.step + 1}, the nearest to the median"
    return [Section(title, _parts_table(rows, predicted=forecast is not None), lines)]


def profiled(measured: Measured, forecast: Forecast | None) -> list[Section]:
    """Return seconds by part of the step whose kernels were profiled; nothing without a GPU."""
    found = measured.kernels
    if found is None:
        return []
    lines = ["the prediction counts the loss with norms and activations"] if forecast and "loss" in found.parts else []
    lines += ["hidden communication overlaps with other parts"] if "communication, hidden" in found.parts else []
    table = _parts_table(by_kernel(found, forecast), predicted=True).without_empty_columns()
    return [Section("time by kernel, rank 0, last step", table, tuple(lines))]


def _parts_table(rows: Sequence[Part], *, predicted: bool) -> Table[Part]:
    """Return seconds by part, and their shares of the last row, the whole step."""
    step = rows[-1]

    def seconds(value: float | None) -> str:
        return "" if value is None else f"{value:.5f} s"

    def share(value: float | None, whole: float | None) -> str:
        return "" if value is None or not whole else f"{value / whole:.1%}"

    columns: list[Column[Part]] = [
        Column("", lambda row: f"{'  ' * row.inner}{row.words}", text=True),
        Column("predicted", lambda row: seconds(row.predicted)),
        Column("", lambda row: share(row.predicted, step.predicted)),
        Column("measured", lambda row: seconds(row.measured)),
        Column("", lambda row: share(row.measured, step.measured)),
    ]
    return Table(columns if predicted else [columns[0], *columns[3:]], rows)


def memory(measured: Measured, forecast: Forecast) -> Section:
    """Return predicted bytes by kind, and the measured peak."""
    rows = [(kind, _gib(size), "") for kind, size in forecast.here.memory.items() if size > 0]
    rows.append(("peak", _gib(forecast.here.peak), f"{float(measured.row['mem_gb']):.2f} GiB"))
    on_gpu = measured.settings.device == "cuda"
    kind = "allocated by PyTorch" if on_gpu else "resident memory of the process, including PyTorch itself"
    return Section("memory by kind, fullest device", grid(("", "predicted", "measured"), rows), (f"measured: {kind}",))


def validation(measured: Measured) -> list[Section]:
    """Return the validation losses of the run; nothing if it had none."""
    rows, text = measured.evaluations, measured.settings.eval_text
    if not rows or not text:
        return []
    cells = [(f"after step {row['step']}", f"{row['loss']:.4f}") for row in rows[-EVALUATIONS:]]
    return [Section("validation loss", grid(("", "loss"), cells), (f"{rows[-1]['tokens']:,} tokens of {text}",))]


def experts(measured: Measured) -> list[Section]:
    """Return how evenly the router used the experts; nothing for a model without."""
    loads = [step.imbalance for step in measured.timed if step.imbalance]
    if not loads:
        return []
    line = (
        f"busiest expert over the mean, worst layer: {loads[0]:.2f} at first, {loads[-1]:.2f} at last, {max(loads):.2f} at most"
    )
    even = "1.00 is even; the ranks of busy experts are waited for" if measured.settings.layout.ep > 1 else "1.00 is even"
    return [Section("balance of experts", lines=(line, even))]


def balanced(measured: Measured) -> Section:
    """Return whether some ranks have more work or memory than others."""
    several = len(measured.ranks) > 1
    lines = map(_spread, balance(measured.ranks)) if several else ["one rank: nothing to balance"]
    return Section("balance over ranks", lines=tuple(lines))


def _spread(spread: Spread) -> str:
    (least, first), (most, last) = spread.least, spread.most
    verdict = "balanced" if spread.even else f"{rank_name(last)} has {spread.ratio - 1:.0%} more than the mean"
    ends = f"{least:.3f} (rank {first.rank}) to {most:.3f} {spread.unit} (rank {last.rank})"
    return f"{spread.words}: {ends}, largest over mean {spread.ratio:.3f}: {verdict}"


def scaled(measured: Measured) -> Section:
    """Compare the run with runs on fewer, more or as many devices in the same folder."""
    found, rival = scaling(measured)
    lines = [*map(_efficiency, found), *([_against(rival)] if rival else [])]
    return Section(
        "against earlier runs in this folder", lines=tuple(lines or ["none with this model and sequence length on this device"])
    )


def _efficiency(one: Scaling) -> str:
    same = f"weak scaling ({one.load:g} sequences per device)" if one.weak else f"strong scaling (batch {one.load:.0f})"
    return f"{same}, {one.few} to {one.many} devices: {one.speedup:.2f} times the tokens/s, efficiency {one.efficiency:.0%}"


def _against(rival: Rival) -> str:
    earlier = f"{rival.runs} earlier run{'s' * (rival.runs > 1)}"
    return f"against the fastest of {earlier} on as many devices ({row_layout_name(rival.row)}): {rival.change:+.1%} tokens/s"


def next_to_try(measured: Measured, forecast: Forecast) -> Section:
    """Return faster layouts that the planner finds for the same model, batch and devices."""
    found = suggestions(measured.settings, forecast)
    lines = [_suggestion(one, forecast) for one in found if not one.doubled]
    if not lines:
        here = name_of(forecast.here.layout)
        lines.append(f"{here} is already the fastest of {forecast.evaluated:,} layouts for this batch, within {TIE_SHARE:.0%}.")
    lines += [
        f"Twice the batch: {one.gain:+.0%} tokens/s predicted, with {name_of(one.choice.layout)}." for one in found if one.doubled
    ]
    if forecast.generic and not forecast.fitted:
        lines.append("The order of layouts is uncertain on a generic CPU; --sweep measures it.")
    return Section("suggested next", lines=tuple(lines), commands=tuple(one.command for one in found if one.command))


def _suggestion(one: Suggestion, forecast: Forecast) -> str:
    here, better = forecast.here, one.choice
    return (
        f"{name_of(better.layout)}: {one.gain:+.0%} tokens/s predicted over {name_of(here.layout)}, "
        f"{better.peak / GIB:.2f} GiB per device instead of {here.peak / GIB:.2f}; {why(better, here)}"
    )
