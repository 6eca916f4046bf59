"""The page Replay: built-in or made traffic through a deployment, its figures and their course over time."""

from typing import Any

from markupsafe import Markup

from meshwise import api
from meshwise.replay.answer import Replayed
from meshwise.replay.ask import ReplayAsk
from meshwise.ui.views import replay as views
from meshwise.ui.web import asking, drawing
from meshwise.ui.web.asking import Group, Pairs
from meshwise.ui.web.pages.page import Badge, Page, Reply, Site, Tile, examples_of

HIDDEN = (
    "users", "prompt", "output", "prompt_spread", "output_spread", "depth", "measured", "measured_of", "top", "cheapest", "by",
)  # fmt: skip
EXAMPLES = examples_of("replay")


def answer(site: Site, query: Pairs) -> Reply | None:
    ask = asking.replayed(query, site.named.models)
    given = {name: value for name, value in vars(ask).items() if name not in ("model", "trace")}
    result = site.kept.get(("replay", ask), lambda: api.replay(ask.model, trace=ask.trace, **given))
    return Reply(values(result), result.to_json(), result.rows(), f"{result.trace.name} on {ask.on}")


def values(result: Replayed) -> dict[str, Any]:
    """Return what the template shows."""
    return {
        "header": views.header(result), "badges": badges(result), "tiles": tiles(result),
        "bars": [drawing.bar("rt", result.figures.shares, 1.0, views.share, "time of requests", "100%")],
        "table": views.latencies(result), "lines": views.sentences(result), "picture": Markup(views.svg(result)),
        "notes": result.notes, "command": result.command,
    }  # fmt: skip


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
        return Tile(
            words,
            views.seconds(value.p95),
            f"p95, 90%: {views.seconds(low)} to {views.seconds(high)}; p50 {views.seconds(value.p50)}",
        )

    f = result.figures
    shown = [time("ttft", "first token"), time("tpot", "next tokens"), time("e2e", "whole request")]
    if result.targets:
        shown.append(Tile("goodput", views.share(f.good), f"of requests, {f.goodput:.3g}/s"))
    shown += [
        Tile("queue", f"{f.waiting:.2g}", f"requests on average, {f.most_waiting:.3g} at worst"),
        Tile("copies", f"{f.copies:.3g}", f"on average, busy {views.share(f.busy)}"),
        Tile("device-hours", f"{f.device_hours:,.2f}", f"{f.kwh:,.3g} kWh" if f.kwh is not None else ""),
    ]
    if f.dollars is not None:
        shown.append(Tile("cost", f"${f.dollars:,.2f}", "at the list price, or --price"))
    if result.trace.block:
        shown.append(Tile("hits", views.share(f.hits), "of prompt tokens found in caches"))
    return shown


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
