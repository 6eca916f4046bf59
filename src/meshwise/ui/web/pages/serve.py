"""The page Serve: a form of ServeAsk, the table of layouts, memory of each device, the decode step by part, and the commands."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from meshwise import api, units
from meshwise.plan.ask import ServeAsk
from meshwise.plan.serve.choice import Device, ServeChoice
from meshwise.plan.serve.plan import ServePlan
from meshwise.plan.serve.vary import ServePoints
from meshwise.plan.serve.words import length_words, load_words, target_words, tokens
from meshwise.ui.views import serve as views
from meshwise.ui.views import serve_points
from meshwise.ui.web import asking, drawing
from meshwise.ui.web.asking import Pairs
from meshwise.ui.web.compare import compare_served, selected
from meshwise.ui.web.pages import choices
from meshwise.ui.web.pages.page import Badge, Launch, Page, Reply, Site, Tile, calibrated, dropped, examples_of, missing_fields
from meshwise.units import GIB, figure

REQUIRED_FIELDS = {"model": "a model", "on": "devices (on)"}
REQUIRED_TO_FIND_CHEAPEST = {"model": "a model"}  # fields that are required where the devices are searched
EXAMPLES = examples_of("serve")


def plan_of(site: Site, query: Pairs) -> ServePlan:
    return choices.plan_of(site, query, ServeAsk, ServePlan, api.serve)


def answer(site: Site, query: Pairs) -> Reply | None:
    ask = asking.question(ServeAsk, query, site.named.models, choices.OTHER_PARAMETERS)
    if ask.cheapest:
        points = site.kept.get(("cheapest", ask), lambda: api.cheapest_serve(ask))
        return Reply(cheapest_values(points), points.to_json(), points.rows(), f"{ask.model}: the cheapest devices")
    plan = plan_of(site, query)
    return Reply(values(plan, query), plan.to_json(), plan.rows(), f"{plan.ask.model} on {plan.ask.on}")


def believe(site: Site, query: Pairs) -> Reply:
    return choices.believe(site, plan_of(site, query))


def cheapest_values(points: ServePoints) -> dict[str, Any]:
    """Return what the template of the cheapest devices shows: a table with a link to the plan of each row."""
    ask = points.ask
    return {
        "cheapest": True,
        "header": [
            f"{ask.model}: the fewest devices of each chip, the cheapest first",
            "; ".join(filter(None, (load_words(ask), length_words(ask), target_words(ask)))),
        ],
        "table": serve_points.cheapest_table(points),
        "links": [asking.changed(asking.query_of(point.ask)) if point.choice and point.ask else "" for point in points],
        "notes": [serve_points.price_note(points)],
        "command": points.command,
    }


def values(plan: ServePlan, query: Pairs) -> dict[str, Any]:
    """Return what the template of an answer shows."""
    chosen, shown_table = selected(query, len(plan.choices)), table(plan, query)
    shown = plan.choices[chosen[0] if chosen else 0]
    return {
        "cheapest": False,
        "header": views.header(plan),
        "badges": badges(plan),
        "tiles": tiles(plan, shown),
        "tiles_of": shown.name,
        "moments": (),
        "bars": [time_bar(shown, sum(shown.time.values()), "decode step"), *device_bars(shown, str(plan.cluster["unit"]))],
        "table": shown_table,
        **choices.links(query, shown_table),
        "picture": "decode step by part",
        "footnotes": views.below_table(plan)[len(plan.misses) > 0 :],  # the first names the misses, which have a table here
        "comparison": compare_served(plan.choices[chosen[0]], plan.choices[chosen[1]]) if chosen else None,
        "dropped_title": "Layouts that do not fit, and what their fullest device lacks",
        "dropped": dropped({miss.name: miss.missing for miss in plan.misses}, lambda value: f"{value / GIB:.1f} GiB"),
        "launches": launches(plan),
        "drawing": "",
        "drawing_title": "The Pareto front: speed of each user against throughput of a device",
        "notes": plan.notes,
        "command": plan.command,
        "links": {"what-if": f"/what-if?{asking.changed([('of', 'serve'), *query], a='', b='', sort='')}"},
        "why": "",
        "believe": f"/serve/believe?{asking.changed(query, sort='', a='', b='')}",
        "reasons": plan.reasons,
    }


def badges(plan: ServePlan) -> list[Badge]:
    shown = [calibrated(plan.serving, plan.cluster["chip"])]
    if plan.fits:
        shown.append(Badge("good", "fits", "Everything but the embedding is in device memory."))
    else:
        shown.append(Badge("warn", "partly in host memory", "Some layers stay in host memory, which is several times slower."))
    if not plan.ask.engine:
        usual = "No engine was given: this is the usual one for the format and chip."
        shown.append(Badge("note", f"{plan.engine} assumed", usual))
    if target_words(plan.ask):
        met = plan.best.meets
        shown.append(Badge("good" if met else "warn", "meets the targets" if met else "misses the targets"))
    return shown


def tiles(plan: ServePlan, c: ServeChoice) -> list[Tile]:
    """Return the figures of one layout at the load."""
    several = plan.ask.users > 1 or plan.ask.rate > 0
    each = Tile("each request" if several else "speed", tokens(c.per_user), f"tokens/s, 90%: {tokens(c.low)} to {tokens(c.high)}")
    shown = [each]
    if several:
        shown.append(Tile("all requests", tokens(c.throughput), f"tokens/s, prompts included; {figure(c.requests)} requests/s"))
        shown.append(Tile("per device", tokens(c.per_device), "tokens/s"))
    shown += [
        Tile("first token", _seconds(c.ttft.p50), f"95% below {_seconds(c.ttft.p95)}"),
        Tile("next tokens", _seconds(c.tpot.p50), f"each; 95% below {_seconds(c.tpot.p95)}"),
        Tile("whole request", _seconds(c.e2e.p50), f"95% below {_seconds(c.e2e.p95)}"),
        Tile("free memory", f"{c.spare / GIB:.1f} GiB", f"on the fullest {plan.cluster['unit']}"),
        Tile("requests", f"{c.most_users:,}", "run at once"),
    ]
    if plan.most:
        unit = "requests/s" if plan.ask.rate else "users"
        shown.append(Tile("most within targets", f"{figure(plan.most)}", unit))
    if c.dollars_per_million_out is not None:
        prompts = f"; ${c.dollars_per_million_in:,.2f} of prompt tokens" if c.dollars_per_million_in else ""
        shown.append(Tile("cost", f"${c.dollars_per_million_out:,.2f}", f"per million output tokens{prompts}"))
    if c.kwh_per_million is not None:
        shown.append(Tile("energy", f"{c.kwh_per_million:,.2f} kWh", f"per million output tokens, at most {c.watts:,.0f} W"))
    return shown


def _seconds(value: float) -> str:
    return units.show(value, "seconds", digits=3)


def time_bar(c: ServeChoice, full: float, label: str) -> drawing.Bar:
    return drawing.bar("st", c.time, full, _seconds, label)


def device_bars(c: ServeChoice, unit: str) -> list[drawing.Bar]:
    """Return one bar of memory per device; neighbours that hold the same share one."""
    groups = groupby(c.devices, key=lambda d: (d.layers, d.head, d.weights, d.cache, d.compute, d.capacity))
    return [_device_bar(list(group), unit) for _, group in groups]


def _device_bar(same: Sequence[Device], unit: str) -> drawing.Bar:
    first, last = same[0], same[-1]
    held = {"weights": first.weights, "cache": first.cache, "compute": first.compute, "context": first.context}
    number = f"{unit} {first.card}" if len(same) == 1 else f"{unit}s {first.card} to {last.card}"
    label = f"{number}: {first.layers} layers{' and the head' if first.head else ''}"
    total = f"{sum(held.values()) / GIB:.1f} of {first.capacity / GIB:.1f} GiB"
    return drawing.bar("sm", held, first.capacity, lambda value: f"{value / GIB:.2f} GiB", label, total)


def table(plan: ServePlan, query: Pairs) -> drawing.Layouts:
    slowest = max(sum(c.time.values()) for c in plan.choices)
    return choices.table(views.table(plan), query, lambda c: (c.low, c.per_user, c.high), lambda c: time_bar(c, slowest, c.name))


def launches(plan: ServePlan) -> list[Launch]:
    """Return the commands of the engine, and those of meshwise that start and measure it."""
    engines = [Launch(engine, "\n".join(lines)) for engine, lines in plan.commands.items()]
    own = f"{plan.command} --out plan.json\nmeshwise run plan.json\nmeshwise bench plan.json"
    return [*engines, Launch("meshwise", own, "write the plan, start its engine, measure it")]


def missing(query: Pairs) -> list[str]:
    searched = asking.one(query, "cheapest").lower() in asking.TRUE_WORDS
    return missing_fields(REQUIRED_TO_FIND_CHEAPEST if searched else REQUIRED_FIELDS)(query)


PAGE = Page(
    name="serve", title="Serve", about="The best layouts to serve a model on given devices", template="served.html",
    answer=answer, form=lambda query: asking.groups(ServeAsk, query), missing=missing, examples=EXAMPLES, planned=plan_of,
)  # fmt: skip
