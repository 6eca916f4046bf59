"""A replay on a terminal and as a picture: figures with intervals, where the time goes, the course over time; and what a trace is."""

from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from meshwise import units
from meshwise.cost.parts import REPLAY_TIME
from meshwise.replay.answer import Figures, Replayed, Slice
from meshwise.replay.compared import Compared, Variant
from meshwise.replay.traces.facts import Reuse, TraceFacts
from meshwise.ui.views import bars
from meshwise.ui.views.energy import energy_lines
from meshwise.ui.views.svg.courses import Course, courses
from meshwise.ui.views.tables import Column, Table, heading, wrapped
from meshwise.units import figure

LEVELS = " ▁▂▃▄▅▆▇█"
LATENCIES = {"ttft": "TTFT", "tpot": "per token", "e2e": "request"}


def seconds(value: float) -> str:
    return units.show(value, "seconds", digits=3)


def share(value: float) -> str:
    return f"{100 * value:.1f}%"


def replay_view(result: Replayed, width: int) -> RenderableType:
    """Return everything that `replay` prints except the command."""
    parts: list[RenderableType] = [
        *heading(header(result), width), Text(), latencies(result).fitted(width), Text(),
        *(wrapped(line, width) for line in sentences(result)), Text(),
        Text("where the time of requests goes", style="bold"), *_shares(result.figures, width), Text(),
        Text(f"over {units.show(result.trace.seconds, 'seconds', digits=3)}", style="bold"), *course_lines(result, width),
    ]  # fmt: skip
    return Group(*parts, *(wrapped(f"note: {note}", width, indent="  ") for note in result.notes))


def header(result: Replayed) -> list[str]:
    """Return the deployment and the traffic in two lines."""
    trace, figures = result.trace, result.figures
    copies = f"{result.policy} with {figures.copies:.2f} copies on average" if result.policy else counted(result.copies)
    changed = f" ({trace.changed})" if trace.changed else ""
    return [
        f"{result.plan}; {copies}, {result.ask.router}",
        f"{trace.name}{changed}: {trace.requests:,} requests, {figure(trace.rate)}/s, {trace.prompt.mean:,.0f} prompt and "
        f"{trace.output.mean:,.0f} output tokens, bursts of {figure(trace.burst)}",
    ]


def counted(number: int) -> str:
    return f"{number:,} {'copy' if number == 1 else 'copies'}"


def latencies(result: Replayed) -> Table[str]:
    """Return the table of latencies with their intervals."""

    def at(part: str) -> Callable[[str], str]:
        def cell(name: str) -> str:
            low, high = result.interval(name, part)
            return f"{seconds(getattr(result.figures, name).at(part))} ({seconds(low)}-{seconds(high)})"

        return cell

    def target(name: str) -> str:
        found = result.targets.named.get(name)
        if not found:
            return ""
        holds = getattr(result.figures, name).at(found.quantile) <= found.seconds
        return f"{seconds(found.seconds)} at {found.quantile}: {'holds' if holds else 'missed'}"

    columns: list[Column[str]] = [Column("", lambda name: LATENCIES[name], text=True)]
    columns += [Column(f"{part} (90%)", at(part), rank) for part, rank in (("p50", 0), ("p95", 0), ("p99", 2), ("mean", 3))]
    columns += [Column("target", target, 1, text=True)] if result.targets else []
    return Table(columns, tuple(LATENCIES))


def sentences(result: Replayed) -> list[str]:
    """Return goodput, queue, cache and cost, each with its interval."""
    f = result.figures
    good, hits = result.interval("good"), result.interval("hits")
    served = f"{f.requests - f.rejected:,} of {f.requests:,} requests" if f.rejected else f"all {f.requests:,} requests"
    goodput = (
        f"Goodput: {share(f.good)} ({share(good[0])}-{share(good[1])}) of requests meet the targets, {figure(f.goodput)}/s."
        if result.targets
        else f"Throughput: {served} served, {f.output_rate:,.0f} output tokens/s."
    )
    queue = f"Queue: {figure(f.waiting)} requests wait on average, {figure(f.most_waiting)} in the worst of {len(result.slices)} windows."
    lines = [goodput, queue]
    if result.trace.block:
        lines.append(f"Cache: {share(f.hits)} ({share(hits[0])}-{share(hits[1])}) of prompt tokens are found in it.")
    if f.preempted or f.retried:
        lines.append(
            f"{share(f.preempted)} of requests lose their place in the cache; {f.retried:,} are sent again after failures."
        )
    return [*lines, cost_line(f), *energy_lines(result.ask, f.energy, "in all")]


def cost_line(f: Figures) -> str:
    money = f", ${f.dollars:,.2f}" if f.dollars is not None else ""
    energy = f", {f.kwh:,.3g} kWh" if f.kwh is not None else ""
    return f"Cost: {f.device_hours:,.2f} device-hours{money}{energy}; copies compute {share(f.busy)} of their time."


def _shares(figures: Figures, width: int) -> list[RenderableType]:
    length = bars.room(width, "")
    return [
        bars.bar(REPLAY_TIME, figures.shares, 1.0, length),
        bars.legend(REPLAY_TIME, figures.shares, 1.0, width, bar_width=length),
    ]


# The course over time.


def figures_of(result: Replayed) -> list[tuple[str, Callable[[Slice], float], Callable[[float], str]]]:
    """Return what is drawn over time: title, value, and how its largest value is printed."""
    shown: list[tuple[str, Callable[[Slice], float], Callable[[float], str]]] = [
        ("requests/s", lambda one: one.rate, lambda value: figure(value)),
        ("TTFT p95", lambda one: one.ttft_p95, seconds),
        ("per token p95", lambda one: one.tpot_p95, seconds),
        ("waiting", lambda one: one.waiting, lambda value: figure(value)),
        ("KV cache", lambda one: one.filled, share),
    ]
    if result.policy:
        shown.insert(1, ("copies", lambda one: one.copies, lambda value: figure(value)))
    if result.trace.block:
        shown.append(("hits", lambda one: one.hits, share))
    if result.targets:
        shown.append(("goodput", lambda one: one.good, share))
    return shown


def course_lines(result: Replayed, width: int) -> list[RenderableType]:
    """Return a line of blocks for each figure; a full block is its largest value."""
    shown = figures_of(result)
    titles = max(len(title) for title, _, _ in shown)
    most = [(title, [value(one) for one in result.slices], show) for title, value, show in shown]
    length = max(10, min(len(result.slices), width - titles - 14))
    return [
        Text(f"{title:<{titles}} {sparkline(values, length)} {show(max(values))}", no_wrap=True, overflow="crop")
        for title, values, show in most
    ]


def sparkline(values: Sequence[float], length: int) -> str:
    """Return values as blocks of eight heights; where there are more than `length`, the largest of neighbours."""
    step = len(values) / length
    shown = [max(values[int(i * step) : max(int(i * step) + 1, int((i + 1) * step))]) for i in range(length)]
    top = max(shown) or 1.0
    return "".join(LEVELS[min(8, max(0, round(8 * value / top)))] for value in shown)


def svg(result: Replayed) -> str:
    """Return the course over time as a picture."""
    drawn = [Course(title, [value(one) for one in result.slices], show) for title, value, show in figures_of(result)]
    return courses(header(result)[0], drawn, result.trace.seconds)


# Several deployments.


def compared_view(result: Compared, width: int) -> RenderableType:
    """Return a row per deployment, and which is the best."""
    head = [result.plan, f"{result.title}: {result.trace}, {result.requests:,} requests"]
    refused = [f"{one.name}: {one.refusal}" for one in result.variants if one.refusal]
    lines = [best_line(result)] if result.by else []
    return Group(
        *heading(head, width), Text(), compared_table(result).fitted(width), Text(),
        *(wrapped(line, width) for line in (*lines, *refused)), *(wrapped(f"note: {note}", width, indent="  ") for note in result.notes),
    )  # fmt: skip


def best_line(result: Compared) -> str:
    if result.best < 0:
        return "Nothing that was tried holds the targets."
    best = result.variants[result.best]
    assert best.figures
    return f"Least {result.by}: {best.name}. {cost_line(best.figures)}"


def compared_table(result: Compared) -> Table[Variant]:
    """Return the table of deployments; changes are against the first, unless the best is looked for."""
    first = result.variants[0].figures if not result.by else None

    def cell(show: Callable[[Figures], str]) -> Callable[[Variant], str]:
        return lambda one: show(one.figures) if one.figures else ""

    def change(value: Callable[[Figures], float | None]) -> Callable[[Figures], str]:
        def show(figures: Figures) -> str:
            now, before = value(figures), value(first) if first else None
            return f"{100 * (now / before - 1):+.0f}%" if now is not None and before and figures is not first else ""

        return show

    columns: list[Column[Variant]] = [
        Column("", lambda one: one.name, text=True),
        Column("copies", cell(lambda f: f"{f.copies:.2f}".rstrip("0").rstrip(".")), 4),
        Column("TTFT p50", cell(lambda f: seconds(f.ttft.p50)), 3),
        Column("p95", cell(lambda f: seconds(f.ttft.p95))),
        Column("per token p95", cell(lambda f: seconds(f.tpot.p95)), 2, short_title="TPOT p95"),
        Column("request p95", cell(lambda f: seconds(f.e2e.p95)), 1),
        Column("hits", cell(lambda f: share(f.hits) if f.hits else ""), 5),
        Column("device-hours", cell(lambda f: f"{f.device_hours:,.2f}"), 3, short_title="dev-h"),
        Column("$", cell(lambda f: f"{f.dollars:,.2f}" if f.dollars is not None else "")),
    ]
    if first:
        columns.insert(4, Column("p95 of TTFT", cell(change(lambda f: f.ttft.p95)), 1, short_title="change"))
        columns.append(Column("money", cell(change(lambda f: f.dollars)), 2))
    if result.targeted:
        columns.append(Column("goodput", cell(lambda f: share(f.good)), 2))
        columns.append(Column("holds", cell(lambda f: "yes" if f.holds else "no"), 0))
    best = result.variants[result.best] if result.best >= 0 else None
    return Table(columns, result.variants, style=lambda one: "bold" if one is best else "").without_empty_columns()


# A trace.


def trace_view(facts: TraceFacts, width: int) -> RenderableType:
    """Return what a trace is."""
    minutes = [float(number) for number in facts.minutes]
    lines = trace_lines(facts)
    parts: list[RenderableType] = [*heading(lines[:1], width), *(wrapped(line, width) for line in lines[1:])]
    if len(minutes) > 1:
        length = max(10, min(60, len(minutes), width - 24))
        parts.append(Text(f"by minute {sparkline(minutes, length)} {max(minutes):,.0f}", no_wrap=True, overflow="crop"))
    if facts.reuse:
        parts += [Text(), reuse_table(facts).fitted(width), *(wrapped(line, width) for line in worth_lines(facts))]
    return Group(*parts)


def trace_lines(facts: TraceFacts) -> list[str]:
    """Return requests, rates and lengths in sentences."""
    changed = f" ({facts.changed})" if facts.changed else ""
    lengths = [
        f"{title}: {one.mean:,.0f} tokens on average, {one.p50:,.0f} at p50, {one.p95:,.0f} at p95, {one.most:,.0f} at most"
        for title, one in (("Prompts", facts.prompt), ("Outputs", facts.output))
    ]
    return [
        f"{facts.name}{changed}: {facts.kind}, {facts.requests:,} requests in {seconds(facts.seconds)}",
        f"Rate: {figure(facts.rate)}/s on average, {figure(facts.busiest)}/s in the busiest minute, "
        f"{figure(facts.quietest)}/s in the quietest",
        f"Bursts: gaps deviate by {figure(facts.burst)} times their mean (1 is a Poisson process)",
        *lengths,
    ]


def reuse_table(facts: TraceFacts) -> Table[Reuse]:
    return Table(
        [
            Column("one cache of blocks", lambda one: f"{one.blocks:,}" if one.blocks else "endless"),
            Column("tokens", lambda one: f"{one.tokens:,}" if one.tokens else ""),
            Column("blocks found again", lambda one: share(one.hits)),
        ],
        facts.reuse,
    )


def worth_lines(facts: TraceFacts) -> list[str]:
    if facts.worth is None:
        return ["No prefix comes twice: a cache of prefixes is worth nothing."]
    return [
        f"A cache of {facts.worth.tokens:,} tokens finds {share(facts.worth.hits)}, nine tenths of what an endless one does: "
        f"more is hardly worth having ({facts.block}-token blocks)."
    ]
