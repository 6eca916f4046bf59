"""The page What-if: one question at many points."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meshwise import api, units
from meshwise.errors import UserError, nearest, quoted
from meshwise.plan.ask import ServeAsk, TrainAsk
from meshwise.plan.axes import SERVE_AXES, TRAIN_AXES
from meshwise.plan.fields import PRICE
from meshwise.plan.serve import lookup as serve_lookup
from meshwise.plan.serve.choice import ServeChoice
from meshwise.plan.serve.words import target_words
from meshwise.plan.train import lookup as train_lookup
from meshwise.plan.train.choice import Choice
from meshwise.plan.vary import Axis, Points, Value
from meshwise.ui.views.plan import name_cell
from meshwise.ui.views.tables import Table, grid
from meshwise.ui.web import asking
from meshwise.ui.web.asking import Pairs
from meshwise.ui.web.pages import plan as planned
from meshwise.ui.web.pages import serve as served
from meshwise.ui.web.pages.page import Page, Reply, Site, examples_of
from meshwise.units import GIB

SERVING = "serve"  # the value of `of` for a serving question
SLIDER_PREFIX = "at."  # prefix of the parameters of sliders: at.nodes=64
OTHER_PARAMETERS = ("of", "x", "y", "show")
STEPS = (-3, -2, -1, 0, 1, 2, 3)  # positions of a slider, in doublings of the question's own value
HEAT_MAP_STEPS = STEPS[1:-1]  # values of each axis of a heat map
HIDDEN = ("top", "measured", "measured_of", "cheapest")  # fields of a question that only a single plan has
AnyAsk = TrainAsk | ServeAsk


@dataclass(frozen=True)
class Metric:
    """A figure that curves show."""

    name: str
    title: str
    value: Callable[[Any], float | None]
    better: str = "more"


@dataclass(frozen=True)
class Slider:
    """A slider: its axis, the labels of its positions, and the position of the question."""

    name: str
    title: str
    labels: tuple[str, ...]
    position: int
    moved: bool


def _gib(value: float) -> float:
    return value / GIB


TRAINED = (
    Metric("tokens", "tokens/s", lambda c: c.tokens_per_second),
    Metric("days", "days", lambda c: c.total_days, "less"),
    Metric("cost", "dollars", lambda c: c.total_dollars, "less"),
    Metric("mfu", "MFU, %", lambda c: 100 * c.mfu),
    Metric("step", "seconds per step", lambda c: c.step, "less"),
    Metric("memory", "GiB per device", lambda c: _gib(c.peak), "less"),
)
SERVE_METRICS = (
    Metric("each", "tokens/s of each request", lambda c: c.per_user),
    Metric("all", "tokens/s of all requests, prompts included", lambda c: c.throughput),
    Metric("ttft", "seconds to the first token, p95", lambda c: c.ttft.p95, "less"),
    Metric("request", "seconds of a whole request, p95", lambda c: c.e2e.p95, "less"),
    Metric("cost", "dollars per million output tokens", lambda c: c.dollars_per_million_out, "less"),
    Metric("free", "GiB free on the fullest device", lambda c: _gib(c.spare)),
)
SLIDER_AXES = {
    "plan": ("nodes", "batch", "seq", "network", "price"),
    "serve": ("gpus", "users", "rate", "context", "prompt", "depth", "price"),
}
"""Axes with a slider."""
TITLES = {
    "seq": "sequence length", "gpus": "devices", "users": "users at a time", "rate": "requests per second",
    "depth": "cached tokens before the prompt", "network": "network of a node", "price": "price of a device",
}  # fmt: skip


PRICE_AXIS: Axis[Any] = Axis(
    "price", "$1/h..$8/h", lambda text, ask: PRICE(text), lambda value, ask: units.exactly(float(value), "dollars/s"),
    lambda ask, value: replace(ask, price=float(value)), whole=False,
)  # fmt: skip
"""A price changes no layout, so it is no axis of --vary, but a slider of the page."""


def axes_of(verb: str) -> Mapping[str, Axis[Any]]:
    known: Mapping[str, Axis[Any]] = TRAIN_AXES if verb == "plan" else SERVE_AXES  # pyright: ignore[reportAssignmentType]
    return {name: axis for name, axis in known.items() if name == axis.name} | {"price": PRICE_AXIS}


def question(site: Site, query: Pairs) -> tuple[AnyAsk, AnyAsk]:
    """Return the question of the form, and the question where the sliders stand."""
    serving = asking.one(query, "of") == SERVING
    cls = ServeAsk if serving else TrainAsk
    plain = [(name, value) for name, value in query if not name.startswith(SLIDER_PREFIX) and name not in OTHER_PARAMETERS]
    base = asking.question(cls, plain, site.named.models)
    moved: AnyAsk = base
    known = axes_of(cls.verb)
    for name, value in query:
        if name.startswith(SLIDER_PREFIX) and value:
            axis = known.get(name.removeprefix(SLIDER_PREFIX))
            if axis is None:
                raise UserError(f"there is no slider {quoted(name)}{nearest(name.removeprefix(SLIDER_PREFIX), known)}")
            moved = axis.change(moved, axis.read(value, moved))
    return base, moved


def current(ask: AnyAsk) -> dict[str, Value]:
    """Return where a question stands on the axes that have a slider."""
    own: dict[str, Value]
    if isinstance(ask, TrainAsk):
        cluster = train_lookup.question(ask).cluster
        own = {"batch": ask.batch * ask.seq, "seq": ask.seq}
    else:
        q = serve_lookup.question(ask)
        cluster = q.cluster
        own = {"rate": ask.rate} if ask.rate else {"users": ask.users}
        own |= {"context": q.work.context, "prompt": ask.prompt, "depth": ask.depth}
    where: dict[str, Value] = {"nodes": cluster.node_count, "gpus": cluster.devices}
    if cluster.network and cluster.node_count > 1:
        where["network"] = cluster.network.bandwidth
    if cluster.rent is not None:
        where["price"] = cluster.rent / cluster.devices
    return where | own


def positions(axis: Axis[Any], value: Value, steps: Sequence[int] = STEPS) -> list[Value]:
    """Return the values around one, by doubling; whole numbers stay whole, and none is below 1."""
    around = [float(value) * 2.0**step for step in steps]
    if axis.whole:
        return [int(each) for each in around if each >= 1 and each == int(each)]
    return list(around)


def sliders(base: AnyAsk, moved: AnyAsk) -> list[Slider]:
    """Return a slider for every axis that the question has a value on."""
    here, there, shown = current(base), current(moved), list[Slider]()
    for name in SLIDER_AXES[base.verb]:
        axis = axes_of(base.verb)[name]
        if name not in here or not here[name]:
            continue
        values = positions(axis, here[name])
        at = min(range(len(values)), key=lambda i: abs(math.log(float(values[i]) / float(there.get(name) or here[name]))))
        labels = tuple(axis.show(value, base).replace(",", "") for value in values)
        own = next(i for i, value in enumerate(values) if value == here[name])
        shown.append(Slider(name, TITLES.get(name, name), labels, at, at != own))
    return shown


def values_along(axis: Axis[Any], ask: AnyAsk, steps: Sequence[int]) -> str:
    """Return the values of an axis to compute, as --vary takes them: around the question's own, or the axis's example."""
    where = current(ask)
    if axis.ordered and axis.name in where and where[axis.name]:
        values = positions(axis, where[axis.name], steps)
        return ",".join(axis.show(value, ask).replace(",", "").replace(" ", "") for value in values)
    return axis.example


def points_of(site: Site, ask: AnyAsk, names: Sequence[str]) -> Points[Any, Any]:
    """Answer the question at every point along one or two axes."""
    known = axes_of(ask.verb)
    steps = STEPS if len(names) == 1 else HEAT_MAP_STEPS
    texts = [f"{name}={values_along(known[name], ask, steps)}" for name in names]
    if isinstance(ask, ServeAsk):
        return site.kept.get(("vary", ask, tuple(texts)), lambda: api.vary_serve(ask, *texts))
    return site.kept.get(("vary", ask, tuple(texts)), lambda: api.vary(ask, *texts))


def axes_asked(query: Pairs, verb: str) -> list[str]:
    """Return the axes of the curves: x, and y before it for a heat map."""
    known = [name for name in axes_of(verb) if name != "price"]
    x, y = asking.one(query, "x") or SLIDER_AXES[verb][0], asking.one(query, "y")
    for name in filter(None, (x, y)):
        if name not in known:
            raise UserError(f"there is no axis {quoted(name)}{nearest(name, known)}")
    return [y, x] if y and y != x else [x]


def answer(site: Site, query: Pairs) -> Reply | None:
    base, moved = question(site, query)
    names = axes_asked(query, base.verb)
    points = points_of(site, moved, names)
    metrics = TRAINED if base.verb == "plan" else SERVE_METRICS
    shown = [metric for metric in metrics if any(_of(metric, point.choice) is not None for point in points)]
    chosen = asking.one(query, "show") or shown[0].name
    if chosen not in [metric.name for metric in shown]:
        raise UserError(f"show {quoted(chosen)}: expected one of {', '.join(metric.name for metric in shown)}")
    values = {
        "title": f"{moved.model} on {moved.on}", "serving": base.verb == "serve",
        "axes": [name for name in axes_of(base.verb) if name != "price"], "names": names, "sliders": sliders(base, moved),
        "metrics": shown, "chosen": next(metric for metric in shown if metric.name == chosen),
        "chart": chart(points, shown, chosen, moved), "table": table(points, shown),
        "reasons": [f"{' '.join(point.labels)}: {point.why}" for point in points if getattr(point, "why", "")],
        "lessons": getattr(points, "lessons", []), "command": points.command,
        "front": f"/what-if/front?{asking.changed(query, x='', y='', show='')}" if base.verb == "serve" else "",
        "question": f"/{base.verb}?{asking.changed(asking.query_of(moved))}",
        "reset": asking.changed([(name, value) for name, value in query if not name.startswith(SLIDER_PREFIX)]),
    }  # fmt: skip
    return Reply(values, points.to_json(), points.rows(), f"What if: {moved.model} on {moved.on}")


def _of(metric: Metric, choice: Choice | ServeChoice | None) -> float | None:
    return None if choice is None else metric.value(choice)


def chart(points: Points[Any, Any], metrics: Sequence[Metric], chosen: str, ask: AnyAsk) -> dict[str, Any]:
    """Return the points as the charts read them."""
    known, here = axes_of(ask.verb), current(ask)
    rows = [
        {
            "labels": list(point.labels),
            "values": [point.values[name] for name in points.axes],
            "layout": _named(point),
            "fits": point.choice is not None,
            **{metric.name: _of(metric, point.choice) for metric in metrics},
        }
        for point in points
    ]
    return {
        "points": rows,
        "axes": [{"name": name, "ordered": known[name].ordered, "here": here.get(name)} for name in points.axes],
        "metrics": [{"name": metric.name, "title": metric.title, "better": metric.better} for metric in metrics],
        "chosen": chosen,
    }


def table(points: Points[Any, Any], metrics: Sequence[Metric]) -> Table[Sequence[str]]:
    titles = (*points.axes, "layout", *(metric.title for metric in metrics), *(["meets"] if asks_for_more(points.ask) else []))
    names = [_named(point) for point in points]
    figures = [[_shown(_of(metric, point.choice)) for metric in metrics] for point in points]
    meets = [[_meets(point)] if asks_for_more(points.ask) else [] for point in points]
    rows = [(*point.labels, name, *cells, *met) for point, name, cells, met in zip(points, names, figures, meets, strict=True)]
    return grid(titles, rows, words=(len(points.axes),))


def asks_for_more(ask: AnyAsk) -> bool:
    """Return whether a question has a deadline or latency targets."""
    return bool(ask.within if isinstance(ask, TrainAsk) else target_words(ask))


def _named(point: Any) -> str:
    """Return the name of a point's layout, with '!' where it may not fit, or why there is none."""
    if point.choice is None:
        return point.refusal
    return name_cell(point.choice) if isinstance(point.choice, Choice) else point.choice.name


def _meets(point: Any) -> str:
    if point.choice is None or point.ask is None:
        return ""
    met = point.choice.meets if isinstance(point.choice, ServeChoice) else point.meets(point.ask.within)
    return "yes" if met else "no"


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def front(site: Site, query: Pairs) -> Reply:
    """Return the Pareto front over all layouts and numbers of users: the speed of each against the throughput of a device."""
    _, moved = question(site, query)
    if not isinstance(moved, ServeAsk):
        raise UserError("the front is one of serving: of=serve")
    ask = replace(moved, users=1, rate=0.0, burst=1.0, measured=0.0)
    made = site.kept.get(("front", ask), lambda: api.front_serve(ask))
    rows = [
        {
            "users": point.users, "layout": point.name, "each": point.per_user, "all": point.per_device,
            "because": f"{point.bound} {point.share:.0%}", "front": on_front,
        }
        for on_front, points in ((False, made.dominated), (True, made.points))
        for point in points
    ]  # fmt: skip
    return Reply({}, {"points": rows}, rows)


def form(query: Pairs) -> list[asking.Group]:
    return asking.groups(ServeAsk if asking.one(query, "of") == SERVING else TrainAsk, query, hidden=HIDDEN)


def missing(query: Pairs) -> list[str]:
    return (served if asking.one(query, "of") == SERVING else planned).PAGE.missing(query)


PAGE = Page(
    name="what-if", title="What if", about="What changes with more nodes, a larger batch, another network or chip",
    template="whatif.html", answer=answer, form=form, missing=missing,
    examples=examples_of("what-if"),
)  # fmt: skip
