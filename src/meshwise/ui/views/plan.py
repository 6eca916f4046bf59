"""A training plan on a terminal: header, table of layouts, bars of time and memory, the reasons, and what to type next."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from rich.console import Group, RenderableType
from rich.text import Text

from meshwise import units
from meshwise.cost.axes import layout_name
from meshwise.cost.goodput import HARDWARE_SHARE, LLAMA3_STORAGE_RATE, LOSSES
from meshwise.cost.parts import TRAIN_MEMORY, TRAIN_TIME, on_chip
from meshwise.cost.work import OBJECTIVES, Reliability
from meshwise.plan.ask import TrainAsk
from meshwise.plan.train import money
from meshwise.plan.train.choice import Choice
from meshwise.plan.train.dataset import CHARS_PER_TOKEN, TEMPLATE_TOKENS
from meshwise.plan.train.explain import Explanation
from meshwise.plan.train.finetune import FinetuneFacts
from meshwise.plan.train.money import Span
from meshwise.plan.train.plan import TrainPlan
from meshwise.ui.views import bars
from meshwise.ui.views.energy import energy_lines
from meshwise.ui.views.tables import Column, Table, bullets, calibration_line, heading, price_sentence, sentences_view, wrapped
from meshwise.units import GIB, figure

FIT = "see meshwise calibrate"
REMEDY: dict[str, str] = {"gpu": "see meshwise probe and calibrate", "cpu": "see meshwise probe and calibrate"}
"""How to measure a chip, by its kind: probes run on GPUs and CPUs."""
BARS_SHOWN = 5  # layouts whose bars `--verbose` draws


def plan_view(plan: TrainPlan, width: int, *, why: Explanation, verbose: bool) -> RenderableType:
    """Return everything that `plan` prints except the commands, which must not be wrapped."""
    best = plan.best
    parts: list[RenderableType] = [
        *heading(header(plan), width), Text(), table(plan).fitted(width),
        *(wrapped(line, width) for line in below_table(plan)), Text(), *bullets(finetune_lines(plan), width),
        *bullets(compared_lines(plan), width),
        *([Text()] if plan.finetune else []),
    ]  # fmt: skip
    kind = plan.cluster["kind"]
    if verbose:
        parts += [*choice_bars(plan.choices[:BARS_SHOWN], width, kind), Text(), *moment_bars(best, width, kind)]
        parts += [Text(), wrapped(formulas(best), width)]
        parts += [*(wrapped(line, width) for line in failures(plan)), Text(), wrapped(rejects(plan), width), Text()]
        parts += [wrapped(line, width) for line in why.reasons]
    else:
        parts += [*best_bars(best, width, kind), Text(), *bullets(why.highlights, width)]
    parts += [wrapped(line, width) for line in energy_lines(plan.ask, plan.energy, "in all", verbose=verbose)]
    notes = [wrapped(f"note: {note}", width, indent="  ") for note in plan.notes]
    about = calibration_line(plan.calibration, plan.cluster["chip"], REMEDY.get(str(kind), FIT), verbose=verbose)
    return Group(*parts, Text(), *notes, wrapped(about, width, style="dim"))


def explanation_view(why: Explanation, width: int, *, kind: object) -> RenderableType:
    """Return bars of the two layouts, on a kind of chip, and every reason."""
    bars_of_both = choice_bars([why.best, why.other], width, kind) if why.other else []
    return Group(*bars_of_both, Text(), sentences_view(why.reasons, width))


def header(plan: TrainPlan) -> list[str]:
    """Return the question in two lines, with the assumed framework."""
    ask, cluster = plan.ask, plan.cluster
    nodes = f" in {cluster['nodes']:,} {cluster['unit']}s" if int(cluster["nodes"] or 0) > 1 else ""
    chip = str(cluster["chip"])  # unequal cards are counted in their name: 2 x RTX 3090 + 1 x RTX 3060
    devices = chip if " + " in chip else f"{cluster['devices']:,} x {chip}"
    return [f"{ask.model} on {ask.on}: {devices}{nodes}", setting(ask, plan.framework)]


def setting(ask: TrainAsk, framework: str) -> str:
    """Return framework, precision, optimizer, batch and tokens in one line; an assumed framework is marked."""
    assumed = "" if ask.framework else " (assumed, --framework)"
    objective = OBJECTIVES[ask.objective or "sft"]
    each = ask.answers if objective.generates else objective.sequences
    step = units.show(float(ask.batch * each * ask.seq), "count", digits=3)
    unit = f" prompts x {each} answers" if objective.generates else " pairs x 2" if each == 2 else ""
    training = f", {units.show(ask.tokens, 'count')} in all" if ask.tokens else ""
    finetune = f", {ask.finetune}" if ask.finetune else ""
    loss = f", {ask.objective}" if ask.objective != "sft" else ""
    how = f"{ask.precision}, {ask.optimizer}{finetune}{loss}"
    return f"{framework}{assumed}, {how}; batch {ask.batch:,}{unit} x {ask.seq:,} = {step} tokens{training}"


def table(plan: TrainPlan) -> Table[Choice]:
    """Return the table of layouts; with days and cost where tokens to train on were given."""
    capacity = plan.best.capacity / GIB
    columns: list[Column[Choice]] = [
        Column("layout", name_cell, text=True, short=lambda c: name_cell(c, short=True)),
        Column("s/step (90%)", seconds_cell, short=lambda c: seconds_cell(c, digits=3)),
        Column("tokens/s", lambda c: f"{c.tokens_per_second:,.0f}", rank=6),
        Column("TFLOP/s", lambda c: f"{c.tflops['exact']:.1f}", rank=8),
        Column("MFU", lambda c: f"{100 * c.mfu:.1f}%", rank=2),
        Column(
            f"GiB of {capacity:.0f} (90%)", memory_cell, rank=1, short=lambda c: memory_cell(c, digits=0),
            short_title=f"GiB of {capacity:.0f}",
        ),
        Column("P(fit)", fit_cell, rank=3),
        Column("accum", lambda c: f"{c.gradient_accumulation:,}", rank=7),
    ]  # fmt: skip
    if plan.ask.tokens:
        columns += total_columns(plan.best)
    return Table(columns, plan.choices)


TIMES = (("days", 1.0), ("hours", 24.0), ("minutes", 24 * 60.0))
ENERGIES = (("MWh", 1.0), ("kWh", 1e3), ("Wh", 1e6))


def scaled(total: Span | None, scales: Sequence[tuple[str, float]]) -> tuple[str, float]:
    """Return the first unit in which a figure is at least 1.5, or the last, with its factor."""
    return next((pair for pair in scales if total and total.value * pair[1] >= 1.5), scales[-1] if total else scales[0])


def total_columns(best: Choice) -> list[Column[Choice]]:
    """Return columns of the whole training's time, cost and energy, with intervals, in units that suit the best layout."""
    (time, hours), (energy, watts) = scaled(money.days(best), TIMES), scaled(money.mwh(best), ENERGIES)
    columns = [
        _total_column(time, money.days, hours, number_words), _total_column("cost", money.dollars, 1.0, dollar_words),
        replace(_total_column(energy, money.mwh, watts, number_words), rank=9),
    ]  # fmt: skip
    return [column for column in columns if column.cell(best)]


def _total_column(title: str, of: Callable[[Choice], Span | None], factor: float, show: Callable[[float], str]) -> Column[Choice]:
    def cell(c: Choice, *, ends: bool = True) -> str:
        total = of(c)
        return span_words(total.times(factor), show, ends=ends) if total else ""

    def value(c: Choice) -> float | None:
        total = of(c)
        return total.value if total else None

    return Column(title, cell, short=lambda c: cell(c, ends=False), key=value)


def span_words(total: Span, show: Callable[[float], str], *, ends: bool = True) -> str:
    """Return '2.2 (1.8-2.6)'."""
    return f"{show(total.value)} ({show(total.low)}-{show(total.high).lstrip('$')})" if ends else show(total.value)


def number_words(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else figure(value) if value < 1 else f"{value:,.1f}"


def dollar_words(value: float) -> str:
    """Return '$54.2M', '$312' or '$0.07'."""
    return f"${units.show(value, 'count', digits=3)}" if value >= 1e3 else f"${value:,.2f}" if value < 100 else f"${value:,.0f}"


RISK = "may not fit (marked !): the 90% memory interval exceeds the device"


def name_cell(c: Choice, *, short: bool = False) -> str:
    """Return the name of the layout, with '!' where the upper end of its memory interval exceeds the device."""
    return (layout_name(c.layout, short=True) if short else c.name) + (" !" if c.may_not_fit else "")


def seconds_cell(c: Choice, digits: int = 4) -> str:
    """Return '112.4 (106-124)': seconds per step with their 90% interval."""
    return f"{figure(c.step, digits)} ({figure(c.low)}-{figure(c.high)})"


def memory_cell(c: Choice, digits: int = 1) -> str:
    """Return '43.3 (35-54)': GiB with their 90% interval; more decimals for a small model."""
    return f"{_gib(c.peak, digits)} ({_gib(c.peak_low)}-{_gib(c.peak_high)})"


def _gib(size: float, digits: int = 0) -> str:
    least = 0 if size >= 5 * GIB else 1 if size >= GIB else 2
    return f"{size / GIB:.{max(digits, least)}f}"


def fit_cell(c: Choice) -> str:
    """Return the probability that a layout fits: '96%', '>99%'."""
    return ">99%" if c.p_fit > 0.99 else f"{100 * c.p_fit:.0f}%"


def evidence_lines(plan: TrainPlan) -> list[str]:
    """Return what was measured near the best layout, and what the program's usual layout would lose."""
    known = plan.evidence
    if known is None:
        return []
    usual = next((c for c in plan.choices if c.name == known.usual), None)
    lines = [f"{known.sentence[0].upper()}{known.sentence[1:]}."]
    if usual is not None and usual is not plan.best:
        lost = f"{100 * (usual.step / plan.best.step - 1):+.1f}% time"
        lines.append(f"Cut as in {known.usual_run}: {usual.name}, {lost}.")
    return lines


def below_table(plan: TrainPlan) -> list[str]:
    """Return the footnotes of the table: near-ties, layouts that may not fit, goodput and price."""
    best, ties = plan.best, sum(c.ties for c in plan.choices)
    lines = [f"Not listed: {ties:,} more within 1% of a row above, with the same work per device."] if ties else []
    risky = sum(c.may_not_fit for c in plan.choices)
    if risky:
        rows = f"{risky} row{'s' * (risky > 1)}"
        lines.append(f"{rows} {RISK}.")
    if plan.risky:
        gain = 100 * (1 - plan.risky.step / best.step)
        lines.append(f"{gain:.1f}% faster if it fits ({fit_cell(plan.risky)}): {plan.risky.name} (--risk changes this order).")
    lines += evidence_lines(plan)
    if plan.ask.tokens:
        unit, factor = scaled(money.days(best), TIMES)
        ideal = f"; {number_words(best.days * factor)} {unit} without failures" if best.days and best.wall_days else ""
        include = "Days and cost include" if best.total_dollars is not None else "Days include"
        lines.append(f"{include} failures: goodput {100 * best.goodput['effective']:.1f}%{ideal}. {price_line(plan)}")
        lines += plan.money
    return lines


def finetune_lines(plan: TrainPlan) -> list[str]:
    """Return what fine-tuning trains, what fits, and what the data takes, one sentence per line; nothing for a plan without it."""
    found, best = plan.finetune, plan.best
    if found is None:
        return []
    share = f"{figure(100 * found.trained / found.parameters)}% of {units.show(found.parameters, 'count', digits=3)}"
    saved = units.show(found.saved_bytes, "bytes", binary=True, digits=3)
    lines = [
        f"Trains {found.trained:,} parameters ({share}); saved as {saved}.",
        f"{_room(found, best)} Largest micro-batch: "
        f"{found.largest_batch:,} x {plan.ask.seq:,} ({_with(found.largest_batch_recompute)}); longest sequence: "
        f"{found.longest:,} tokens ({_with(found.longest_recompute)}).",
    ]
    if found.rows:
        how = "packed" if plan.ask.packing else "padded"
        other = f"{100 * found.packed:.0f}% packed, {100 * found.padded:.0f}% padded"
        money = f", ${found.dollars:,.2f}" if found.dollars is not None else ""
        took = units.show(found.seconds, "seconds", digits=3)
        assumed = (
            "" if found.counted else f" Tokens are assumed: {CHARS_PER_TOKEN:g} characters each, {TEMPLATE_TOKENS} per message."
        )
        ends = f" {found.cut:,} sequence{'s are' if found.cut > 1 else ' is'} longer than {plan.ask.seq:,} tokens and cut there."
        lines.append(
            f"{plan.ask.epochs} epoch{'s' * (plan.ask.epochs > 1)} of {found.rows:,} row{'s' * (found.rows > 1)}, {how} ({other} are real "
            f"tokens; longest row {found.longest_row:,}): {found.steps:,.0f} step{'s' * (found.steps > 1)}, {took}{money}, "
            f"{best.tokens_per_second * found.real:,.0f} real tokens/s.{ends * (found.cut > 0)}{assumed}"
        )
    return lines


def _room(found: FinetuneFacts, best: Choice) -> str:
    """Return what the first row leaves free, with its interval where that exceeds the device."""
    free = units.show(found.free, "bytes", binary=True, digits=3)
    if not best.may_not_fit:
        return f"Fits with {free} to spare."
    return f"Fits with {free} to spare if the prediction is exact, and may not fit: the interval ends at {best.peak_high / GIB:.1f} GiB."


def compared_lines(plan: TrainPlan) -> list[str]:
    """Return the seconds of each way to use the devices, and of other programs; programs that are alike are joined."""
    found = plan.finetune
    if found is None:
        return []
    lines = [f"Ways to use the devices: {', '.join(map(str, found.ways))}."] if found.ways else []
    alike: dict[str, list[str]] = {}
    for one in found.rivals:
        alike.setdefault(f"{figure(one.seconds)} s in {one.peak / GIB:.1f} GiB", []).append(one.name)
    others = ", ".join(f"{' and '.join(names)} {words}" for words, names in alike.items())
    return lines + ([f"Other programs (--framework): {others}."] if others else [])


def _with(recompute: str) -> str:
    return "without recompute" if recompute == "none" else f"{recompute} recompute"


def price_line(plan: TrainPlan) -> str:
    """Return the price that the cost is computed with, or how to give one."""
    rate = plan.cluster["dollars_per_hour"]
    return (
        "No list price for this chip: give one with --price."
        if rate is None
        else price_sentence(plan.cluster, given=bool(plan.ask.price))
    )


def best_bars(best: Choice, width: int, kind: object = "gpu") -> list[RenderableType]:
    """Return one bar each for the time and the memory of the best layout, with the largest parts."""
    kinds = on_chip(TRAIN_MEMORY, kind)
    time, memory = (Text(f"{name:<8}") for name in ("time", "memory"))
    seconds, size = f" {figure(best.step, 4)} s", f" {best.peak / GIB:.1f} of {best.capacity / GIB:.0f} GiB"
    bar_width = bars.room(width - 8, seconds, size)
    return [
        time.append_text(bars.bar(TRAIN_TIME, best.time, best.step, bar_width)).append(seconds),
        bars.legend(TRAIN_TIME, best.time, best.step, width, 8, bar_width),
        memory.append_text(bars.bar(kinds, best.memory, best.capacity, bar_width)).append(size),
        bars.legend(kinds, best.memory, best.capacity, width, 8, bar_width),
    ]


MOMENT_WORDS = {
    "loss": "at the loss", "last layer": "backward, last layer", "first layer": "backward, first layer", "update": "at the update",
}  # fmt: skip
"""Words for the moments of a step, in its order."""


def moment_bars(c: Choice, width: int, kind: object = "gpu") -> list[RenderableType]:
    """Return a bar of the memory at each moment of a step, with the peak named; nothing for a plan that does not state them."""
    if not c.moments:
        return []
    kinds = on_chip(TRAIN_MEMORY, kind)
    words = {
        name: f" {sum(sizes.values()) / GIB:6.2f} GiB  {MOMENT_WORDS[name]}{', the peak' * (name == c.peak_moment)}"
        for name, sizes in c.moments.items()
    }
    bar_width = bars.room(width, *words.values())
    title = f"memory over a step of {layout_name(c.layout, short=True)}, of {c.capacity / GIB:.0f} GiB"
    lines: list[RenderableType] = [Text(title, style="bold")]
    for name, sizes in c.moments.items():
        lines.append(bars.bar(kinds, sizes, c.capacity, bar_width).append(words[name], style="not dim"))
    return [*lines, bars.letters(kinds, list(c.moments.values()), width)]


def choice_bars(choices: Sequence[Choice], width: int, kind: object = "gpu") -> list[RenderableType]:
    """Return bars of the time and memory of several layouts, on a common scale."""
    kinds = on_chip(TRAIN_MEMORY, kind)
    slowest, capacity = max(c.step for c in choices), choices[0].capacity
    names = [layout_name(c.layout, short=True) for c in choices]
    times = [f" {c.step:7.4g} s  {name}" for c, name in zip(choices, names, strict=True)]
    sizes = [f" {c.peak / GIB:5.1f} GiB  {name}" for c, name in zip(choices, names, strict=True)]
    bar_width = bars.room(width, *times, *sizes)
    lines: list[RenderableType] = [Text("time by part", style="bold")]
    for c, words in zip(choices, times, strict=True):
        lines.append(bars.bar(TRAIN_TIME, c.time, slowest, bar_width).append(words, style="not dim"))
    lines += [bars.letters(TRAIN_TIME, [c.time for c in choices], width), Text()]
    lines.append(Text(f"memory by kind, of {capacity / GIB:.0f} GiB", style="bold"))
    for c, words in zip(choices, sizes, strict=True):
        lines.append(bars.bar(kinds, c.memory, capacity, bar_width).append(words, style="not dim"))
    return [*lines, bars.letters(kinds, [c.memory for c in choices], width)]


def rejects(plan: TrainPlan) -> str:
    """Return how many layouts each rule dropped."""
    dropped = "; ".join(f"{count:,} by '{rule}'" for rule, count in plan.rejected.items())
    return f"{plan.evaluated:,} layouts evaluated. Dropped: {dropped or 'none'}."


def formulas(best: Choice) -> str:
    """Return the rate of the best layout under each common formula for FLOPs."""
    peak = best.tflops["exact"] / best.mfu
    rates = ", ".join(f"{name} {rate:.1f} ({100 * rate / peak:.1f}%)" for name, rate in best.tflops.items())
    return f"First row in TFLOP/s by formula: {rates}. The table counts exactly: causal attention, no recompute."


def failures(plan: TrainPlan) -> list[str]:
    """Return the cost of failures for the best layout, with the assumptions; nothing unless --tokens or failures were given."""
    best, g = plan.best, plan.best.goodput
    if not (plan.ask.tokens or plan.ask.failures):
        return []
    spares = f"{g['spares']:,.0f} spare node{'' if g['spares'] == 1 else 's'}"
    number = g["interruptions_per_day"] * (best.wall_days or 0)
    total = f"{number:,.{0 if number >= 10 else 1}f} interruptions, " if best.wall_days else ""
    between, save, every = (units.show(g[name], "seconds", digits=2) for name in ("between", "save", "interval"))
    size = units.show(g["checkpoint_bytes"], "bytes", digits=3)
    lost = ", ".join(f"{100 * g[part]:.1f}% {words}" for part, words in LOSSES.items() if g[part] >= 0.0005)
    return [
        f"Goodput of the first row: {100 * g['effective']:.1f}%, with {spares}; {total}one every {between}.",
        f"A checkpoint of {size} takes {save}, every {every}. Lost: {lost or 'nothing'}.",
        _assumed(plan),
    ]


def _assumed(plan: TrainPlan) -> str:
    """Return the assumptions about failures that the user did not set."""
    r = Reliability()
    words = {
        "mtbf": f"a failure per {r.mtbf / 3600:,.0f} device-hours (arXiv:2407.21783)",
        "checkpoint_bandwidth": f"{units.show(LLAMA3_STORAGE_RATE, 'bytes/s', digits=3)} to storage per device (arXiv:2407.21783)",
        "restart": f"{units.show(r.restart, 'seconds')} to restart",
        "repair": f"{units.show(r.repair, 'seconds')} to repair a node",
        "spares": "as many spare nodes as pay off",
        "straggler": f"step times that spread by {units.show(r.straggler, 'share')}",
    }
    left = [text for name, text in words.items() if name not in plan.ask.failures]
    return f"Assumed: {', '.join([*left, f'{HARDWARE_SHARE:.0%} of failures take a node out'])}."
