"""The page Replay: built-in or made traffic through a deployment, its figures and their course over time."""

from typing import Any

from markupsafe import Markup

from meshwise import api, units
from meshwise.catalogue import files
from meshwise.errors import UserError, quoted
from meshwise.replay.answer import Replayed
from meshwise.replay.ask import ReplayAsk
from meshwise.replay.traces.trace import SUFFIX
from meshwise.ui.views import replay as views
from meshwise.ui.web import asking, drawing
from meshwise.ui.web.asking import Group, Pairs
from meshwise.ui.web.pages.page import Badge, Example, Page, Reply, Site, Tile

MAX_PAGE_REQUESTS = 50_000
"""Requests that a page replays, at most; the command line takes 20 million."""
HIDDEN = (
    "users",
    "prompt",
    "output",
    "prompt_spread",
    "output_spread",
    "depth",
    "measured",
    "measured_of",
    "top",
    "cheapest",
    "by",
)
EXAMPLES = (
    Example("An hour of conversations on four H200s", "Mooncake's trace, a router that knows prefixes",
            "model=llama-3.1-8b%3Afp8&on=4xh200&trace=mooncake-conversation&fix=cards%3D1&router=prefix&ttft=1s%40p95"),
    Example("Bursts of code completion", "Azure's trace, copies by their queue",
            "model=llama-3.1-8b%3Afp8&on=1xh100-sxm&trace=azure-code-2023&autoscale=queue%3A4&copies=1..6&ttft=1s%40p95"),
    Example("Agents that call tools", "made traffic with growing contexts",
            "model=llama-3.1-8b%3Afp8&on=1xh200&make=agent&rate=1%2Fs&hours=1&ttft=1s%40p95"),
)  # fmt: skip


def answer(site: Site, query: Pairs) -> Reply | None:
    ask = asking.question(ReplayAsk, query, site.named.models)
    known = files.files("traces", SUFFIX)
    if ask.trace and ask.trace not in known:
        raise UserError(f"--trace {quoted(ask.trace)}: the page reads no files; it has {', '.join(known)}, and --make")
    if ask.cheapest:
        raise UserError("--cheapest replays a trace many times: use the command line")
    if ask.rate * ask.hours * 3600 * ask.scale_users > MAX_PAGE_REQUESTS or (ask.trace and ask.scale_users > 4):
        raise UserError(f"a page replays at most {MAX_PAGE_REQUESTS:,} requests; the command line takes more")
    given = {name: value for name, value in vars(ask).items() if name not in ("model", "trace")}
    result = site.kept.get(("replay", ask), lambda: api.replay(ask.model, trace=ask.trace, **given))
    return Reply(values(result), result.to_json(), result.rows(), f"{result.trace.name} on {ask.on}")


def values(result: Replayed) -> dict[str, Any]:
    """Return what the template shows."""
    return {
        "header": views.header(result),
        "badges": badges(result),
        "tiles": tiles(result),
        "bars": [drawing.bar("rt", result.figures.shares, 1.0, views.share, "time of requests", "100%")],
        "table": views.latencies(result),
        "lines": views.sentences(result),
        "picture": Markup(views.svg(result)),
        "notes": result.notes,
        "command": result.command,
    }


def badges(result: Replayed) -> list[Badge]:
    if not result.targets:
        return []
    held = result.figures.holds
    return [Badge("good" if held else "warn", "holds the targets" if held else "misses the targets")]


def tiles(result: Replayed) -> list[Tile]:
    """Return the figures of a replay."""

    def time(name: str, words: str) -> Tile:
        low, high = result.interval(name, "p95")
        value = getattr(result.figures, name)
        return Tile(words, _seconds(value.p95), f"p95, 90%: {_seconds(low)} to {_seconds(high)}; p50 {_seconds(value.p50)}")

    f = result.figures
    shown = [time("ttft", "first token"), time("tpot", "next tokens"), time("e2e", "whole request")]
    if result.targets:
        shown.append(Tile("goodput", views.share(f.good), f"of requests, {f.goodput:.3g}/s"))
    shown += [
        Tile("queue", f"{f.waiting:.2g}", f"requests on average, {f.most_waiting:.3g} at worst"),
        Tile("copies", f"{f.copies:.3g}", f"on average, busy {views.share(f.busy)}"),
        Tile("device-hours", f"{f.device_hours:,.2f}", f"at most {f.kwh:,.2f} kWh" if f.kwh is not None else ""),
    ]
    if f.dollars is not None:
        shown.append(Tile("cost", f"${f.dollars:,.2f}", "at the list price, or --price"))
    if result.trace.block:
        shown.append(Tile("hits", views.share(f.hits), "of prompt tokens found in caches"))
    return shown


def _seconds(value: float) -> str:
    return units.show(value, "seconds", digits=3)


def form(query: Pairs) -> list[Group]:
    return asking.groups(ReplayAsk, query, HIDDEN)


def missing(query: Pairs) -> list[str]:
    given = {name for name, value in query if value.strip()}
    needed = {"model": "a model", "on": "devices (on)"}
    lacking = [words for name, words in needed.items() if name not in given]
    return lacking + (["a trace, or traffic to make"] if not given & {"trace", "make"} else [])


PAGE = Page(
    name="replay", title="Replay", about="Timed traffic through a deployment", template="replay.html", answer=answer, form=form,
    missing=missing, examples=EXAMPLES,
)  # fmt: skip
