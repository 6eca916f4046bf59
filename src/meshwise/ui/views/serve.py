"""A plan to serve on a terminal: the table of ways, what each card holds, where the time goes, the reasons, and the commands."""

from collections.abc import Callable, Mapping, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from meshwise import units
from meshwise.plan.serve.choice import Device, ServeChoice, ServePlan
from meshwise.plan.serve.explain import WORDS, tokens
from meshwise.plan.vary_serve_whatif import ServePoint
from meshwise.units import GIB

WIDTH = 48
BAR = 16
MEMORY = {"weights": ("W", "green"), "cache": ("K", "cyan"), "compute": ("B", "yellow"), "context": ("D", "magenta")}
TIME = dict(zip(WORDS, zip("WKCLHRP", ("green", "cyan", "blue", "yellow", "magenta", "red", "white"), strict=True), strict=True))


def plan_view(plan: ServePlan) -> RenderableType:
    """Everything that `plan --serve` prints, but for commands, which no terminal may break."""
    best, ask = plan.choices[0], plan.ask
    users = f"{ask.users:,} users" if ask.users > 1 else "one user"
    context = units.show(float(plan.context), "length")
    return Group(
        Text(f"{ask.model} on {ask.cluster} with {plan.engine}, {plan.weights['format']}, {context} for {users}", style="bold"),
        choices_table(plan),
        *(
            Text(f"  does not fit: {miss.name} lacks {_gib(miss.missing)} GiB on its fullest card", style="dim")
            for miss in plan.misses
        ),
        Text(),
        *card_bars(best),
        Text(),
        *time_bars(plan.choices[:5]),
        Text(),
        *map(Text, plan.reasons),
        Text(),
        *(Text(f"note: {note}") for note in plan.notes),
        Text(f"calibration: {plan.serving['name']} (fitted on {plan.serving['fitted_on']})", style="dim"),
    )


def choices_table(plan: ServePlan) -> Table:
    """The ways that fit, the best first."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("way")
    several = plan.ask.users > 1
    targets = plan.ask.ttft or plan.ask.per_user
    priced = any(c.dollars_per_million is not None for c in plan.choices)
    columns = ["tokens/s each" if several else "tokens/s", "90% between"]
    columns += ["all users", "with prompts"] if several else []
    columns += ["prompt tokens/s", "first token", "GiB left", "room for users"]
    columns += (["$ per 1M"] if priced else []) + (["meets"] if targets else [])
    for column in columns:
        table.add_column(column, justify="right")
    for c in plan.choices:
        cells = [c.name, tokens(c.per_user), f"{tokens(c.low)} to {tokens(c.high)}"]
        cells += [tokens(c.decode), tokens(c.sustained)] if several else []
        cells += [f"{c.prefill:,.0f}", units.show(c.ttft, "seconds", digits=3), _gib(c.spare), f"{c.most_users:,}"]
        cells += [f"{c.dollars_per_million:,.2f}" if c.dollars_per_million is not None else ""] if priced else []
        cells += ["yes" if c.meets else "no"] if targets else []
        table.add_row(*cells)
    return table


def _gib(value: float) -> str:
    return f"{value / GIB:.1f}"


def card_bars(best: ServeChoice) -> list[RenderableType]:
    """What each card of one copy holds, of its memory; a letter per kind, so that bars read without colour too."""
    lines: list[RenderableType] = [Text(f"memory of each card, {best.name}", style="bold")]
    for same in _alike(best.devices):
        first, last = same[0], same[-1]
        cards = f"card {first.card}" if len(same) == 1 else f"cards {first.card} to {last.card}"
        layers = f"{first.layers} layers{' and the head' if first.head else ''}"
        used = first.weights + first.cache + first.compute + first.context
        parts = {kind: float(getattr(first, kind)) for kind in MEMORY}
        label = f"{_gib(used)} of {_gib(first.capacity)} GiB, {cards}, {layers}"
        lines.append(_bar(parts, MEMORY, first.capacity, label))
    return [*lines, Text("W weights  K keys and values  B buffers  D driver", style="dim")]


def _alike(devices: Sequence[Device]) -> list[list[Device]]:
    """Neighbours that hold the same are one line."""
    found: list[list[Device]] = []
    for device in devices:
        before = found[-1][-1] if found else None
        if before and (before.layers, before.head, before.weights, before.cache, before.compute) == (
            device.layers,
            device.head,
            device.weights,
            device.cache,
            device.compute,
        ):
            found[-1].append(device)
        else:
            found.append([device])
    return found


def time_bars(choices: Sequence[ServeChoice]) -> list[RenderableType]:
    """Milliseconds of a decode step by part, on a common scale."""
    totals = [sum(c.time_parts.values()) for c in choices]
    lines: list[RenderableType] = [Text("milliseconds of a step of generation, by part", style="bold")]
    lines += [
        _bar(c.time_parts, TIME, max(totals), f"{1e3 * total:.4g} ms, {c.name}") for c, total in zip(choices, totals, strict=True)
    ]
    shown = [part for part in TIME if any(c.time_parts[part] > 0.002 * t for c, t in zip(choices, totals, strict=True))]
    return [*lines, Text("  ".join(f"{TIME[part][0]} {WORDS[part]}" for part in shown), style="dim")]


def _bar(parts: Mapping[str, float], letters: Mapping[str, tuple[str, str]], full: float, label: str) -> Text:
    """Cells in proportion; the running sum is rounded, so that the bar's length is right."""
    bar, drawn, running = Text(), 0, 0.0
    for part, (letter, colour) in letters.items():
        running += parts.get(part, 0.0)
        cells = max(0, round(WIDTH * min(1.0, running / full)) - drawn)
        bar.append(letter * cells, style=colour)
        drawn += cells
    return bar.append("." * (WIDTH - drawn), style="dim").append(f" {label}")


# Many points.

Panel = tuple[str, Callable[[ServeChoice], float], Callable[[ServeChoice], str]]


def sweep_view(titles: Sequence[str], points: Sequence[ServePoint], lessons: Sequence[str], users: bool) -> RenderableType:
    """One table, one chart and what they teach."""
    notes = dict.fromkeys(note for point in points for note in point.notes)
    return Group(
        points_table(titles, points, users),
        chart(titles, points, users),
        Text(),
        *map(Text, lessons),
        *(Text(f"note: {note}") for note in notes),
    )


def points_table(titles: Sequence[str], points: Sequence[ServePoint], users: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("way")
    columns = ["tokens/s each" if users else "tokens/s", *(["all users"] if users else []), "prompt tokens/s", "first token"]
    layered = "gpus" in titles and any(p.layered and p.choice and p.choice.split != "layer" for p in points)
    for column in (*columns, *(["layer split"] if layered else []), "GiB left", "longest context", "room for users"):
        table.add_column(column, justify="right", no_wrap=True)
    for point in points:
        c = point.choice
        if c is None:
            table.add_row(*point.labels, point.refusal)
            continue
        cells = [c.name, tokens(c.per_user), *([tokens(c.decode)] if users else []), f"{c.prefill:,.0f}"]
        cells += [units.show(c.ttft, "seconds", digits=3)]
        cells += [tokens(point.layered.per_user) if point.layered else ""] if layered else []
        table.add_row(
            *point.labels, *cells, _gib(c.spare), units.show(float(point.longest), "length", digits=3), f"{c.most_users:,}"
        )
    return table


def chart(titles: Sequence[str], points: Sequence[ServePoint], users: bool) -> Table:
    """A bar per point for generation and for the prompt, each from zero to the longest of its column."""
    each: Panel = ("tokens/s each" if users else "tokens/s", lambda c: c.per_user, lambda c: tokens(c.per_user))
    together: Panel = ("all users", lambda c: c.decode, lambda c: tokens(c.decode))
    prompt: Panel = ("prompt tokens/s", lambda c: c.prefill, lambda c: f"{c.prefill:,.0f}")
    panels = [each, together, prompt] if users else [each, prompt]
    done = [point.choice for point in points if point.choice]
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    for (title, _, _), colour in zip(panels, ("green", "yellow", "cyan"), strict=False):
        table.add_column(title, style=colour, no_wrap=True)
    most = [max((value(c) for c in done), default=0.0) or 1.0 for _, value, _ in panels]
    for point in points:
        c = point.choice
        bars = (
            ["-"] if c is None else [_cell(value(c) / top, show(c)) for (_, value, show), top in zip(panels, most, strict=True)]
        )
        table.add_row(*point.labels, *bars)
    return table


def _cell(share: float, label: str) -> str:
    eighths = round(share * BAR * 8)
    return "█" * (eighths // 8) + (" ▏▎▍▌▋▊▉"[eighths % 8] if eighths % 8 else "") + f" {label}"
