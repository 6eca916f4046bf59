"""Show what `check` says about a launch file, and the programs that `export` writes."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from meshwise import units
from meshwise.audit.check import difference
from meshwise.audit.check.contradictions import Finding, shown
from meshwise.plan.serve.words import tokens
from meshwise.programs.program import Launcher, Program, launchers, programs
from meshwise.programs.read.unread import Unread
from meshwise.runs.fields import BY_NAME
from meshwise.runs.run import VARIABLES, Stated
from meshwise.ui.views.tables import Column, Table, wrapped
from meshwise.units import GIB, figure

if TYPE_CHECKING:
    from meshwise.audit.check.verdict import Verdict

HOW = {"said": "said", "default": "default", "derived": "derived", "unknown": "unknown"}
STYLES = {"stops": "bold red", "warns": "yellow", "notes": "cyan"}
HEADS = {"stops": "cannot start", "warns": "warning", "notes": "note"}
GROUPS = ("layout", "stages", "batch", "serving", "work", "model", "machine")
VERBOSE_FACTS = (
    "seed", "save_every", "rope_theta", "norm_eps", "qkv_bias", "biased", "norm", "position_kind", "positions", "tied",
    "top_k", "hours",
)  # fmt: skip
"""Facts that only --verbose lists."""


def verdict_view(verdict: "Verdict", width: int, *, verbose: bool) -> RenderableType:
    """Show the facts with their origin, what contradicts, the prediction, and the better layout in the file's own words."""
    head = f"{', '.join(verdict.files)}: {verdict.title} {verdict.version}" + (f" on {verdict.on}" if verdict.on else "")
    facts = [one for one in _ordered(verdict) if verbose or _matters(one)]
    parts: list[RenderableType] = [wrapped(head, width, style="bold"), Text(""), Table(COLUMNS, facts).fitted(width), Text("")]
    parts += [line for finding in verdict.findings for line in _finding(finding, width)]
    if verdict.model:
        parts.insert(1, wrapped(f"model: {verdict.model}", width))
    parts += [wrapped(line, width, indent="  ", style=style) for line, style in _unread(verdict, verbose=verbose)]
    parts += [wrapped(f"not given: {text}", width, indent="  ", style="yellow") for text in verdict.missing]
    parts += [wrapped(f"note: {text}", width, indent="  ") for text in verdict.notes]
    parts += [wrapped(line, width, indent="  ") for line in _prediction(verdict)]
    parts += [Text(line) for line in _changes(verdict)]
    parts.append(wrapped(_last(verdict), width, style="bold"))
    return Group(*parts)


def page_parts(verdict: "Verdict") -> dict[str, Any]:
    """Return the table, lines and changes of a verdict for a page."""
    lines = [f"not given: {text}" for text in verdict.missing] + [line for line, _ in _unread(verdict, verbose=False)]
    return {
        "facts": Table(COLUMNS, [one for one in _ordered(verdict) if _matters(one)]), "prediction": list(_prediction(verdict)),
        "changes": list(_changes(verdict)), "notes": [*lines, *verdict.notes], "last": _last(verdict),
    }  # fmt: skip


MAX_UNREAD = 8  # keys that are named in a line of those that are not read


def _unread(verdict: "Verdict", *, verbose: bool) -> Iterator[tuple[str, str]]:
    """Yield the keys that the answer does not use, with a style: misspelt ones, those that change memory or speed, and the others."""
    for one in verdict.unread:
        if one.like:
            place = f"not read: {one.key} ({one.span}) is no key of {verdict.title} {verdict.version}"
            yield f"{place}; did you mean {one.like}?", "yellow"
    left = [one for one in verdict.unread if not one.like]
    for kind, words in (("memory", "which may change memory"), ("speed", "which may change speed")):
        keys = [one for one in left if one.changes == kind]
        if keys:
            yield f"not read, {words}: {_named(keys, verbose=verbose)}", "yellow"
    others = [one for one in left if one.changes not in ("memory", "speed")]
    if others:
        yield f"not read, others: {_named(others, verbose=verbose)}", ""


def _named(keys: Sequence[Unread], *, verbose: bool) -> str:
    most = len(keys) if verbose else MAX_UNREAD
    more = f" and {len(keys) - most} more (--verbose)" if len(keys) > most else ""
    return ", ".join(f"{one.key} ({one.span})" if verbose else one.key for one in keys[:most]) + more


def _ordered(verdict: "Verdict") -> list[Stated]:
    known = [one for one in verdict.facts if one.fact in BY_NAME or one.fact.startswith(VARIABLES)]
    order = {name: number for number, name in enumerate(BY_NAME)}
    return sorted(known, key=lambda one: (_group(one), order.get(one.fact, len(order))))


def _group(one: Stated) -> int:
    return GROUPS.index(BY_NAME[one.fact].group) if one.fact in BY_NAME else len(GROUPS)


def _matters(one: Stated) -> bool:
    """Return whether a fact is listed: what is said or unknown, and what is not at its least by default."""
    if one.fact in VERBOSE_FACTS:
        return False
    if one.how in ("default", "derived") and one.value in (1, 0, "none", "1f1b", False, True):
        return one.fact in ("zero", "recompute")
    return True


COLUMNS: tuple[Column[Stated], ...] = (
    Column("fact", lambda one: one.fact, text=True),
    Column("value", shown, text=True),
    Column("how", lambda one: HOW[one.how], text=True),
    Column("where", lambda one: one.where, text=True),
    Column("key or reason", lambda one: one.note or one.key, rank=1, text=True),
)


def _finding(finding: Finding, width: int) -> Iterator[Text]:
    places = f" ({', '.join(finding.where)})" if finding.where else ""
    yield wrapped(f"{HEADS[finding.severity]}: {finding.message}{places}", width, indent="  ", style=STYLES[finding.severity])


def _prediction(verdict: "Verdict") -> Iterator[str]:
    """Yield sentences about the file's own layout: whether it fits, how fast it is, days and cost."""
    own = verdict.own
    if own is None:
        if verdict.unknown:
            yield f"not predicted: {'; '.join(verdict.unknown)}"
        return
    if verdict.kind == "serve":
        yield from own.sentences()
        return
    word = "fits" if verdict.fits else "does not fit" if verdict.fits is False else "whether it fits is not known"
    margin = ", so that it may not fit" if verdict.fits and own.may_not_fit else ""
    yield (
        f"{word}: {own.peak / GIB:.1f} GiB of {own.capacity / GIB:.1f} on the fullest device (90%: {own.peak_low / GIB:.0f} to "
        f"{own.peak_high / GIB:.0f}){margin}"
    )
    yield (
        f"speed: {figure(own.step, 4)} s/step (90%: {figure(own.low)} to {figure(own.high)}), "
        f"{own.tokens_per_second:,.0f} tokens/s, MFU {own.mfu:.1%}" + (", if it fitted" if verdict.fits is False else "")
    )
    yield from (f"not judged: {text}" for text in verdict.unknown)
    if own.total_days is not None:
        cost = f", ${units.show(own.total_dollars, 'count')}" if own.total_dollars else ""
        yield f"{units.show(float(verdict.facts.whole('tokens')), 'count')} tokens: {own.total_days:,.1f} days{cost}"


def _changes(verdict: "Verdict") -> Iterator[str]:
    best, own = verdict.best, verdict.own
    if best is None:
        return
    if verdict.kind == "serve":
        rates = f"{tokens(best.throughput)} tokens/s in all, {tokens(best.per_user)} per request"
        yield f"better: {best.name}: {rates}, first token after {best.ttft:.2g} s, {best.peak / GIB:.1f} GiB"
        yield from (f"  {change}" + (f"  ({change.span})" if change.span else "") for change in verdict.changes)
        return
    faster = f", {difference.words(own.step / best.step)}" if own is not None and verdict.fits else ""
    yield f"better: {best.name}: {figure(best.step, 4)} s/step{faster}, {best.peak / GIB:.1f} GiB"
    for change in verdict.changes:
        yield f"  {change}" + (f"  ({change.span})" if change.span else "")


def _last(verdict: "Verdict") -> str:
    if not verdict.starts:
        return "It cannot start as written."
    if verdict.fits is False:
        return "It does not fit."
    if verdict.fits is None:
        return "Nothing contradicts; whether it fits is not predicted."
    return "It fits" + (", but another layout is better." if verdict.best is not None else ", and no layout is surely faster.")


def programs_view() -> RenderableType:
    """Show every program and launcher with the version that it is written for."""
    rows: list[Program | Launcher] = [*programs().values(), *launchers().values()]
    columns: tuple[Column[Program | Launcher], ...] = (
        Column("name", lambda row: row.name, text=True),
        Column("for", lambda row: f"{row.title} {row.version}", text=True),
        Column("use", _use, text=True),
    )
    return Table(columns, rows).fitted(100)


def _use(row: Program | Launcher) -> str:
    if isinstance(row, Launcher):
        return "--with: starts processes"
    return f"--to: {'serves' if row.kind == 'serve' else 'trains'}" if row.write is not None else "check only"
