"""The fewest and cheapest devices that serve a load: per chip, copies of its best layout, cheapest first."""

import math
from dataclasses import replace

from meshwise.catalogue.chips import Chip, chips, find_chip
from meshwise.cost.serve.question import ServeQuestion
from meshwise.errors import DoesNotFit, UserError
from meshwise.models.model import Model
from meshwise.plan.ask import ServeAsk
from meshwise.plan.axes import with_one_seller
from meshwise.plan.serve import lookup
from meshwise.plan.serve.capacity import max_rate
from meshwise.plan.serve.choice import choice, on_cards
from meshwise.plan.serve.search import Option, meets, search, with_memory, with_speed
from meshwise.plan.serve.vary import ServePoint, ServePoints
from meshwise.plan.vary import Value
from meshwise.units import GIB

DEVICES_PER_HOST = 8  # devices of one host: a replica has at most as many, and replicas may be on any number of hosts
MAX_DEVICES = 4096


def answer(ask: ServeAsk) -> ServePoints:
    """Find the fewest devices of each chip that serve the load within the targets. `on` lists chips (h100-sxm,l40s); without it, all
    accelerators that are rented out are tried. DoesNotFit where none serves it."""
    names = [name.strip() for name in ask.on.split(",") if name.strip()] if ask.on else _rented()
    ask = with_one_seller(ask, [_chip(name).key for name in names])
    found: list[ServePoint] = []
    model: Model | None = None
    for name in names:
        point, model = _fewest(replace(ask, cheapest=False), _chip(name), model)
        found.append(point)
    if not any(point.choice for point in found):
        reasons = "; ".join(f"{point.labels[0]}: {point.refusal}" for point in found[:3])
        raise DoesNotFit(f"no {MAX_DEVICES:,} devices of {', '.join(names)} serve this load: {reasons}")
    found.sort(key=lambda point: (point.choice is None, _hourly(point)))
    return ServePoints(ask=ask, vary=(), axes=("chip", "gpus"), points=tuple(found))


def _hourly(point: ServePoint) -> float:
    """Return dollars per hour; those without a price come last."""
    hourly = point.choice.hourly if point.choice else None
    return math.inf if hourly is None else hourly


def _chip(name: str) -> Chip:
    """Return a chip; a number of devices is refused, since it is what is searched."""
    try:
        return find_chip(name)
    except UserError:
        number, times, rest = name.partition("x")
        if times and number.isdecimal():
            raise UserError(f"--cheapest --on {name}: the number of devices is found; name the chip alone, {rest}") from None
        raise


def _rented() -> list[str]:
    """Return the names of accelerators with a rental price."""
    return [chip.key for chip in chips() if chip.kind == "gpu" and any(price.rent is not None for price in chip.prices)]


def _fewest(ask: ServeAsk, chip: Chip, model: Model | None) -> tuple[ServePoint, Model | None]:
    """Return the layout of the fewest devices of a chip that serve the load, or why there is none; and the model."""
    try:
        q = _on_one_host(ask, chip, model)
    except UserError as error:
        return _point(ask, chip, DEVICES_PER_HOST, refusal=str(error)), model
    found = search(q, pools=False)
    whole = [option for option in found.options if on_cards(option)]
    if not whole:
        missing = f": {found.misses[0].layout.name} lacks {-found.misses[0].spare / GIB:.1f} GiB" if found.misses else ""
        return _point(ask, chip, len(q.cards), refusal=f"does not fit on {len(q.cards)}{missing}"), q.model
    best = _smallest(q, whole)
    if best is None:
        return _point(ask, chip, len(q.cards), refusal=_too_slow(q, whole)), q.model
    return replace(_point(ask, chip, best.layout.devices, len(q.cards)), choice=choice(q, best)), q.model


def _on_one_host(ask: ServeAsk, chip: Chip, model: Model | None) -> ServeQuestion:
    """Return the question of one replica on one host: DEVICES_PER_HOST devices, or one where the chip is a host (GH200)."""
    one = replace(ask, fix=(*ask.fix, "replicas=1"))
    try:
        return lookup.question(replace(one, on=f"{DEVICES_PER_HOST}x{chip.key}"), model)
    except UserError as error:
        if "several hosts" not in str(error):
            raise
        return lookup.question(replace(one, on=f"1x{chip.key}"), model)


def _point(ask: ServeAsk, chip: Chip, devices: int, host: int = DEVICES_PER_HOST, refusal: str = "") -> ServePoint:
    """Return a point of the answer without a layout, on this many devices in hosts of `host`."""
    hosts = -(-devices // host)
    on = f"{hosts}x{host}x{chip.key}" if hosts > 1 else f"{devices}x{chip.key}"
    values: dict[str, Value] = {"chip": chip.key, "gpus": devices}
    return ServePoint(values=values, labels=(chip.key, str(devices)), ask=replace(ask, on=on), refusal=refusal)


def _smallest(q: ServeQuestion, options: list[Option]) -> Option | None:
    """Return the layout whose replicas serve the load within the targets on the fewest devices; the fastest of those. None: none does."""
    best: Option | None = None
    least = {id(option): _least(q, option) for option in options}
    for option in sorted(options, key=lambda option: least[id(option)] * len(option.layout.cards)):
        size = len(option.layout.cards)
        most = (best.layout.devices if best else MAX_DEVICES) // size
        found = _with_fewest_copies(q, option, least[id(option)], min(most, q.load.users or most))
        if found and (best is None or (found.layout.devices, -found.throughput) < (best.layout.devices, -best.throughput)):
            best = found
    return best


def _least(q: ServeQuestion, option: Option) -> int:
    """Return a number of replicas below which a layout cannot serve the rate, whatever its latency."""
    return math.floor(q.load.rate / max_rate(q, option)) + 1 if q.load.rate else 1


def _with_fewest_copies(q: ServeQuestion, option: Option, least: int, most: int) -> Option | None:
    """Return a layout in as few replicas as meet the targets, from `least` to `most`, by bisection; None where no number does."""
    if least > most:
        return None
    first = option if least == option.layout.replicas else _copied(q, option, least)
    if meets(q, first):
        return first
    found = _copied(q, option, most)
    if not meets(q, found):
        return None
    low, high = least, most
    while high - low > 1:
        middle = (low + high) // 2
        tried = _copied(q, option, middle)
        low, high, found = (low, middle, tried) if meets(q, tried) else (middle, high, found)
    return found


def _copied(q: ServeQuestion, option: Option, copies: int) -> Option:
    """Return a layout with this many replicas, each with its share of the load."""
    return with_speed(q, with_memory(q, replace(option.layout, replicas=copies), option))


def _too_slow(q: ServeQuestion, options: list[Option]) -> str:
    """Return in a few words that no number of replicas meets the targets, and how close the best layout comes with one user."""
    light = replace(q, load=replace(q.load, users=1, rate=0.0), work=replace(q.work, users=1))
    alone = [with_speed(light, with_memory(light, option.layout, option), detailed=True) for option in options]
    best = min(alone, key=lambda option: q.targets.missed(option.report) if option.report else math.inf)
    if best.report is None or q.targets.missed(best.report) <= 1:
        return f"takes more than {MAX_DEVICES:,} devices"
    times = [f"{name} {getattr(best.report, name).at(target.quantile):.3g} s" for name, target in q.targets.named.items()]
    return f"too slow for any number: {best.layout.name} alone has {', '.join(times)}"
