"""Views of `pick`: models by published quality, each with its speed, memory and command; and machines within a price."""

from typing import TYPE_CHECKING

from meshwise import units
from meshwise.plan.serve.words import tokens
from meshwise.ui.views.tables import Column, Table, heading, paragraphs, wrapped
from meshwise.units import GIB

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

    from meshwise.plan.pick.answer import Pick, Picked
    from meshwise.plan.pick.ask import PickAsk
    from meshwise.plan.pick.machines import Affordable, Machines

SHOWN_SCORES = 2
MANY = 3  # models whose commands are printed without --verbose


def pick_view(pick: "Pick", width: int, *, verbose: bool = False) -> "Group":
    """Return the tables of models, and what their order rests on; the commands are printed below."""
    parts: list[list[RenderableType]] = [
        [*heading([f"{pick.machine}: what to run for {pick.ask.purpose}", about(pick.ask)], width)]
    ]
    if pick.models:
        parts.append([table(pick).fitted(width)])
    if pick.unranked:
        parts.append(
            [
                wrapped("They run too, and no score of theirs for this use is known here:", width),
                table(pick, ranked=False).fitted(width),
            ]
        )
    return paragraphs(*parts, [wrapped(line, width) for line in notes(pick, verbose=verbose)])


def command_lines(pick: "Pick", *, verbose: bool = False) -> list[str]:
    """Return the commands of the first models, which must not be wrapped."""
    lines: list[str] = []
    listed = (*pick.models, *pick.unranked)
    for one in listed if verbose else listed[:MANY]:
        licence = f"; licence: {one.licence}" if one.licence else ""
        lines += [f"{one.model} in {one.format}, {one.engine}, {one.layout}{licence}", *(f"  {line}" for line in one.commands)]
    return lines


def about(ask: "PickAsk") -> str:
    """Return the speed and context asked for, in words."""
    users = f"{ask.users} users, " if ask.users > 1 else ""
    speed = f"at least {ask.speed:g} tokens/s with half of it in use" if ask.speed else "prompt tokens per second"
    return f"{users}{units.show(float(ask.tokens), 'length')} of context, {speed}"


def table(pick: "Pick", *, ranked: bool = True) -> "Table[Picked]":
    """Return the table of models: those with published scores, or the others."""
    embedding = pick.ask.purpose == "embedding"
    columns: list[Column[Picked]] = [
        Column("model", lambda one: one.model, text=True, short=lambda one: one.model.rpartition("/")[2]),
        Column("published scores", scores, rank=1, text=True, short=lambda one: scores(one, 1)),
        Column("format", lambda one: one.format, text=True),
        Column("engine", lambda one: one.engine, rank=3, text=True),
        Column("layout", lambda one: one.layout, rank=7, text=True),
        Column("prompt tok/s" if embedding else "tokens/s (90%)", speed),
        Column("W", lambda one: f"{one.watts:,.0f}" if one.watts else "", rank=2),
        Column("kWh/1M", lambda one: f"{one.kwh:,.2f}" if one.kwh else "", rank=8),
        Column("GiB", lambda one: f"{one.memory / GIB:.1f} of {one.capacity / GIB:.0f}", rank=1),
        Column("longest", lambda one: units.show(float(one.longest), "length", digits=3), rank=4),
        Column("licence", lambda one: one.licence or "unknown", rank=6, text=True),
        Column("date", lambda one: one.date or "unknown", rank=5, text=True),
    ]
    made = Table(columns, pick.models if ranked else pick.unranked)
    return made.without_empty_columns()


def scores(one: "Picked", most: int = SHOWN_SCORES) -> str:
    """Return the first published scores: 'MMLU-Pro 86.1, GPQA Diamond 85.5'."""
    return ", ".join(f"{name} {value:g}" for name, value in list(one.scores.items())[:most])


def speed(one: "Picked") -> str:
    """Return tokens per second with their interval."""
    return f"{tokens(one.speed)} ({tokens(one.low)}-{tokens(one.high)})" if one.high else tokens(one.speed)


def notes(pick: "Pick", *, verbose: bool = False) -> list[str]:
    """Return what the order rests on, what the formats cost, and what was passed over."""
    shown = (*pick.models, *pick.unranked)
    formats = dict.fromkeys((one.format, one.quality) for one in shown)
    lines = [f"quality of {name}: {text or 'nothing published is known here'}" for name, text in formats]
    sources = dict.fromkeys((one.source, one.url, one.recalled) for one in pick.models)
    some = list(sources) if verbose else list(sources)[:MANY]
    lines += [
        f"scores: {title}, {url}{' (recalled: check before you cite)' if recalled else ''}" for title, url, recalled in some
    ]
    more = len(sources) - len(some)
    if pick.models:
        lines.append(
            "Sources state different benchmarks: the order is that of ability where the logit of a score is ability minus the benchmark's "
            "difficulty, fitted over all published scores, and counts those for this use."
            + (f" --verbose: {more} more sources." if more else "")
        )
    if pick.too_large or pick.too_slow:
        lines.append(f"Better scores, but too large here: {pick.too_large}; too slow: {pick.too_slow}.")
    doubts = dict.fromkeys(one.uncertain for one in shown if one.uncertain)
    lines += [f"wide intervals: {doubt}; 'meshwise bench' measures" for doubt in list(doubts)[:2]]
    return lines


def machines_view(found: "Machines", width: int, *, verbose: bool = False) -> "Group":
    """Return the machines within a price, with the best model of each."""
    ask = found.ask
    price = f"{units.show(ask.rent, 'dollars/s')} to rent" if ask.rent else f"${ask.buy:,.0f} to buy"
    made = machines_table(found)
    lines = ["List prices of the devices alone" + ("." if ask.rent else ", without the host that holds them.")]
    lines += [f"{one.on}: {one.source}, {one.date}" for one in found.machines] if verbose else ["--verbose lists their sources."]
    return paragraphs(
        heading([f"{price}: the best model for {ask.purpose} on each machine", about(ask)], width),
        [made.fitted(width)],
        [wrapped(line, width) for line in lines],
        [wrapped(f"next: meshwise pick --on {found.machines[0].on} --for {ask.purpose}", width)],
    )


def machines_table(found: "Machines") -> "Table[Affordable]":
    """Return the table of machines."""
    columns: list[Column[Affordable]] = [
        Column("machine", lambda one: one.on, text=True),
        Column("$/h" if found.ask.rent else "$", lambda one: f"{one.dollars:,.2f}" if found.ask.rent else f"{one.dollars:,.0f}"),
        Column("best model", lambda one: one.best.model, text=True),
        Column("published scores", lambda one: scores(one.best), rank=2, text=True),
        Column("format", lambda one: one.best.format, text=True),
        Column("engine", lambda one: one.best.engine, rank=3, text=True),
        Column("tokens/s (90%)", lambda one: speed(one.best), rank=1),
    ]
    return Table(columns, found.machines)
