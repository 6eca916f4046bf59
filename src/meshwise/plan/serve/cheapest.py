"""The fewest and cheapest devices that serve a load: each chip with the fewest devices that meet the targets, the cheapest first."""

from dataclasses import replace

from meshwise.catalogue.chips import Chip, chips, find_chip
from meshwise.errors import DoesNotFit, UserError
from meshwise.models.model import Model
from meshwise.plan.ask import ServeAsk
from meshwise.plan.serve.choice import choice
from meshwise.plan.serve.plan import refuse
from meshwise.plan.serve.search import meets, search
from meshwise.plan.serve.vary import ServePoint, ServePoints
from meshwise.plan.vary import Value

COUNTS = (1, 2, 4, 8)
"""Devices of one host that are tried, in this order."""


def answer(ask: ServeAsk) -> ServePoints:
    """Find the fewest devices of each chip that serve the load within the targets. `on` lists chips (h100-sxm,l40s); without it, all
    accelerators that are rented out are tried. DoesNotFit where none serves it."""
    names = [name.strip() for name in ask.on.split(",") if name.strip()] if ask.on else _rented()
    found: list[ServePoint] = []
    model: Model | None = None
    for name in names:
        point, model = _fewest(replace(ask, cheapest=False), find_chip(name), model)
        found.append(point)
    if not any(point.choice for point in found):
        raise DoesNotFit(f"no {max(COUNTS)} devices of {', '.join(names)} serve it: {found[0].refusal}")
    found.sort(key=lambda point: (point.choice is None, (point.choice.hourly or 0.0) if point.choice else 0.0))
    return ServePoints(ask=ask, vary=(), axes=("chip", "gpus"), points=tuple(found))


def _rented() -> list[str]:
    """Return the names of accelerators with a rental price."""
    return [chip.key for chip in chips() if chip.kind == "gpu" and any(price.rent is not None for price in chip.prices)]


def _fewest(ask: ServeAsk, chip: Chip, model: Model | None) -> tuple[ServePoint, Model | None]:
    """Return the cheapest layout on the fewest devices of a chip that serve the load, or why there is none."""
    refusal = "no layout"
    for count in COUNTS:
        asked = replace(ask, on=f"{count}x{chip.key}")
        values: dict[str, Value] = {"chip": chip.key, "gpus": count}
        labels = (chip.key, str(count))
        try:
            q = asked.question(model)
        except UserError as error:
            return ServePoint(values=values, labels=labels, ask=asked, refusal=str(error)), model
        model, result = q.model, search(q)
        fitting = [option for option in result.options if meets(q, option)]
        if fitting:
            best = min(fitting, key=lambda option: (option.layout.devices, -option.throughput))
            return ServePoint(values=values, labels=labels, ask=asked, choice=choice(q, best)), model
        refusal = str(refuse(q, result))
    most: dict[str, Value] = {"chip": chip.key, "gpus": max(COUNTS)}
    return ServePoint(values=most, labels=(chip.key, str(max(COUNTS))), ask=ask, refusal=refusal), model
