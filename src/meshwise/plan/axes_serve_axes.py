"""What of a question about serving can be varied: each axis turns one ServeAsk into another."""

from dataclasses import replace

from meshwise import units
from meshwise.catalogue import chips, clusters, rescale
from meshwise.catalogue.engines import find_engine
from meshwise.errors import DoesNotFit, UserError, quoted
from meshwise.models.formats import find_format, split_model_name
from meshwise.plan.ask import ServeAsk
from meshwise.plan.vary import Axis, Value


def _number(text: str, ask: ServeAsk) -> int:
    digits = text.strip().replace("_", "")
    if not digits.isdecimal() or not int(digits[:9]) >= 1 or len(digits) > 6:
        raise UserError(f"--vary: {quoted(text)} is no number; expected 1 or more, such as 1..8")
    return int(digits)


def _rate(text: str, ask: ServeAsk) -> float:
    rate = units.parse(text, "bytes/s")
    if not rate:
        raise UserError(f"--vary: {quoted(text)} is no bandwidth; expected something like 16GB/s or 10Gbps")
    return rate


def _length(value: Value, ask: ServeAsk) -> str:
    text = units.show(float(value), "length")
    return text if units.parse(text, "length") == value else str(value)


def _plain(value: Value, ask: ServeAsk) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _shown_rate(value: Value, ask: ServeAsk) -> str:
    return units.show(float(value), "bytes/s")


def _with_format(ask: ServeAsk, name: str) -> ServeAsk:
    return replace(ask, model=f"{split_model_name(ask.model)[0]}:{name.lower()}")


def with_cards(ask: ServeAsk, number: int) -> ServeAsk:
    """The same host with another number of its cards; several hosts keep their size, and there are more or fewer of them."""
    found = clusters.find_cluster(ask.cluster)
    if len(found.chips) > 1:
        raise UserError(
            f"{quoted(ask.cluster)} mixes cards; which of them would there be more of? write each rig out, and plan it"
        )
    node = found.node
    if found.node_count > 1:
        return replace(ask, cluster=rescale.with_devices(ask.cluster, number))
    link = ask.link or (units.exactly(node.link.bandwidth, "bytes/s") if node.link else "")
    own = node.chips[0][1]
    usual = (own.link or own.host) == node.link
    return replace(ask, cluster=f"1x{number}x{own.key}", link=ask.link if usual else link)


def with_network(ask: ServeAsk, rate: float) -> ServeAsk:
    if clusters.find_cluster(ask.cluster).node_count < 2:
        raise DoesNotFit("one host has no network")
    return replace(ask, cluster=rescale.with_network(ask.cluster, rate))


def with_chip(ask: ServeAsk, key: str) -> ServeAsk:
    """As many cards of another kind."""
    found = clusters.find_cluster(ask.cluster)
    if found.node_count > 1:
        return replace(ask, cluster=rescale.with_chip(ask.cluster, key))
    return replace(ask, cluster=f"1x{found.devices}x{key}")


# In the order in which they are applied.
_ALL: tuple[Axis[ServeAsk], ...] = (
    Axis(
        "chip",
        "rtx3090,rtx4090",
        lambda text, ask: chips.find_chip(text).key,
        _plain,
        lambda ask, v: with_chip(ask, str(v)),
        False,
    ),
    Axis("gpus", "1..8", _number, _plain, lambda ask, v: with_cards(ask, int(v)), step=1),
    Axis(
        "link",
        "2GB/s,16GB/s,450GB/s",
        _rate,
        _shown_rate,
        lambda ask, v: replace(ask, link=units.exactly(float(v), "bytes/s")),
        whole=False,
    ),
    Axis("network", "1Gbps,10Gbps,100Gbps", _rate, _shown_rate, lambda ask, v: with_network(ask, float(v)), whole=False),
    Axis(
        "context",
        "4k..128k",
        lambda text, ask: units.whole_length(text),
        _length,
        lambda ask, v: replace(ask, context=int(v)),
    ),
    Axis("prompt", "512..32k", lambda text, ask: units.whole_length(text), _length, lambda ask, v: replace(ask, prompt=int(v))),
    Axis(
        "quant",
        "q4_k_m,q6_k,q8_0",
        lambda text, ask: find_format(text).name,
        _plain,
        lambda ask, v: _with_format(ask, str(v)),
        False,
    ),
    Axis("kv", "f16,q8_0,q4_0", lambda text, ask: text.lower(), _plain, lambda ask, v: replace(ask, kv=str(v)), False),
    Axis("users", "1..64", _number, _plain, lambda ask, v: replace(ask, users=int(v))),
    Axis(
        "engine",
        "llama.cpp,vllm",
        lambda text, ask: find_engine(text).name,
        _plain,
        lambda ask, v: replace(ask, engine=str(v)),
        False,
    ),
)

_NAMED = {axis.name: axis for axis in _ALL}
AXES: dict[str, Axis[ServeAsk]] = _NAMED | dict.fromkeys(("devices", "cards"), _NAMED["gpus"])
