"""Axes of `--vary`: which parts of a question can vary, and how each value changes the question."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from meshwise import units
from meshwise.catalogue import chips, clusters, frameworks, rescale
from meshwise.catalogue.engines import find_engine
from meshwise.catalogue.prices import common_seller
from meshwise.cost.work import parse_batch
from meshwise.errors import DoesNotFit, UserError, quoted
from meshwise.models.formats import find_format, split_model_name
from meshwise.plan.ask import ServeAsk, TrainAsk
from meshwise.plan.fields import Ask, field_of, flag_of, spec
from meshwise.plan.vary import Axis, Value

COUNT = "the number of devices"
Asked = TypeVar("Asked", bound=Ask)


def of_field(cls: type[Asked], name: str, read: Callable[[str], Value] | None = None) -> Axis[Asked]:
    """Return the axis of a field, whose values are parsed and printed like the field's."""
    about = spec(cls)[name]
    assert field_of(cls, name), name

    def parse_value(text: str, ask: Asked) -> Value:
        try:
            value = read(text) if read else about.kind(text)
        except UserError as error:
            raise UserError(str(error).replace(f"{flag_of(name, about)} ", "--vary: ")) from None
        if about.kind.ordered and not value:
            raise UserError(f"--vary: {quoted(text)} is not a valid {name}; expected something like {about.vary}")
        return value

    def change(ask: Asked, value: Value) -> Asked:
        return replace(ask, **{name: value})  # pyright: ignore[reportArgumentType, reportUnknownVariableType]

    return Axis(name, about.vary, parse_value, _label(about.kind.write), change, about.kind.ordered, whole=about.kind.whole)


def _label(write: Callable[[Any], str]) -> Callable[[Value, Any], str]:
    """Return a function that labels a point: small counts with commas, bandwidths with a space, other values as `write` prints them."""

    def label(value: Value, ask: Any) -> str:
        if isinstance(value, int) and value < 1024:
            return f"{value:,}"
        return units.show(value, "bytes/s") if isinstance(value, float) and value > 1e6 else write(value)

    return label


def _number(most: int) -> Callable[[str, Any], int]:
    """Return a function that parses a number of nodes or devices, at most about `most`."""

    def read(text: str, ask: object) -> int:
        digits = text.strip().replace("_", "")
        if not digits.isdecimal() or not int(digits[:9]) >= 1 or len(digits) > len(str(most)):
            raise UserError(f"--vary: {quoted(text)} is not a number of nodes or devices; expected 1 or more, such as 8..512")
        return int(digits)

    return read


def _rate(text: str, ask: object) -> float:
    rate = units.parse(text, "bytes/s")
    if not rate:
        raise UserError(f"--vary: {quoted(text)} is not a bandwidth; expected something like 450GB/s or 400Gbps")
    return rate


def _shown_rate(value: Value, ask: object) -> str:
    return f"{units.show(float(value), 'bytes/s')} a node"


def _plain(value: Value, ask: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _chip(text: str, ask: object) -> str:
    """Return the name of a chip, with its memory where it is not the catalogue's, or of a box in the catalogue of clusters."""
    known = chips.known_chip(text)
    if known is None and clusters.find_file(text):
        return text.strip().lower()
    chip = known or chips.find_chip(text)
    return chip.key if chips.find_chip(chip.key).memory == chip.memory else text.strip().lower()


Priced = TypeVar("Priced", TrainAsk, ServeAsk)


def with_one_seller(ask: Priced, clusters_of: Sequence[str]) -> Priced:
    """Return the question with the prices of one seller for clusters of several chips, the one who rents out most of them, so that prices
    compare. A question that names a price or a provider stays as it is."""
    found = {(c := clusters.find_cluster(text)).chip.key: (*c.prices, *c.chip.prices) for text in clusters_of}
    if ask.price or ask.provider or len(found) < 2:
        return ask
    return replace(ask, provider=common_seller(list(found.values())))


# Training.


def _batch(text: str, ask: TrainAsk) -> int:
    """Return the tokens of a batch: a batch keeps its tokens at every sequence length."""
    sequences, length = parse_batch(text, ask.seq)
    if length != ask.seq:
        raise UserError(
            f"--vary: the batch {quoted(text)} has another sequence length than {ask.seq:,}; give it with --seq, or vary seq"
        )
    return sequences * length


def _shown_batch(value: Value, ask: TrainAsk) -> str:
    """Return '4M', or '1000x4096' where a round number of tokens is not exact."""
    text = units.show(float(value), "length")
    return text if units.parse(text, "length") == value else f"{int(value) // ask.seq}x{ask.seq}"


def _with_tokens(ask: TrainAsk, tokens: int, seq: int) -> TrainAsk:
    if tokens % seq:
        raise DoesNotFit(f"a batch of {tokens:,} tokens is not a whole number of sequences of {seq:,}")
    return replace(ask, batch=tokens // seq, seq=seq)


def _with_seq(ask: TrainAsk, value: Value) -> TrainAsk:
    return _with_tokens(ask, ask.batch * ask.seq, int(value))


def _with_cluster(change: Callable[[str, Any], str]) -> Callable[[TrainAsk, Value], TrainAsk]:
    return lambda ask, value: replace(ask, on=change(ask.on, value))


# In the order of application: the chip before the number of nodes, the batch before the sequence length that divides it.
_TRAIN: tuple[Axis[TrainAsk], ...] = (
    Axis("chip", "a100-80gb,h100-sxm", _chip, _plain, _with_cluster(rescale.with_chip), ordered=False),
    Axis("nodes", "8..512", _number(10**7), _plain, _with_cluster(rescale.with_nodes), settles=COUNT),
    Axis("devices", "8..512", _number(10**7), _plain, _with_cluster(rescale.with_devices), settles=COUNT),
    of_field(TrainAsk, "link"),
    Axis("network", "100Gbps..3200Gbps", _rate, _shown_rate, _with_cluster(rescale.with_network), whole=False),
    Axis("batch", "1M..16M", _batch, _shown_batch, lambda ask, value: _with_tokens(ask, int(value), ask.seq)),
    replace(of_field(TrainAsk, "seq"), change=_with_seq),
    of_field(TrainAsk, "precision"),
    of_field(TrainAsk, "optimizer"),
    *(of_field(TrainAsk, name) for name in ("release", "attention", "loss", "graphs", "gradients")),
    of_field(TrainAsk, "framework", lambda text: frameworks.find_framework(text).program),
)
TRAIN_AXES: dict[str, Axis[TrainAsk]] = {axis.name: axis for axis in _TRAIN}
TRAIN_AXES["gpus"] = TRAIN_AXES["devices"]

# Serving.


def _with_format(ask: ServeAsk, value: Value) -> ServeAsk:
    return replace(ask, model=f"{split_model_name(ask.model)[0]}:{str(value).lower()}")


def with_cards(ask: ServeAsk, value: Value) -> ServeAsk:
    """Return the question with another number of devices: in the host, or, where there are several, with more or fewer hosts."""
    number, cluster = int(value), clusters.find_cluster(ask.on)
    if len(cluster.chips) > 1:
        raise UserError(f"{quoted(ask.on)} mixes devices, so --vary gpus does not say which to add; plan each cluster separately")
    if cluster.node_count > 1:
        return replace(ask, on=rescale.with_devices(ask.on, number))
    chip, node = cluster.chip, cluster.node
    default_link = (chip.link or chip.host) == node.link
    link = ask.link or (node.link.bandwidth if node.link and not default_link else 0.0)
    return replace(ask, on=f"1x{number}x{chip.key}", link=link)


def with_network(ask: ServeAsk, value: Value) -> ServeAsk:
    if clusters.find_cluster(ask.on).node_count < 2:
        raise DoesNotFit("one host has no network")
    return replace(ask, on=rescale.with_network(ask.on, float(value)))


def with_chip(ask: ServeAsk, value: Value) -> ServeAsk:
    """Return the question with as many devices of another chip; one box of a chip whose memory is its host's, since no host has two."""
    cluster, chip = clusters.find_cluster(ask.on), chips.known_chip(str(value))
    if cluster.node_count > 1 or chip is None:
        return replace(ask, on=rescale.with_chip(ask.on, str(value)))
    return replace(ask, on=f"1x{1 if chip.shares_memory else cluster.devices}x{value}")


_SERVE: tuple[Axis[ServeAsk], ...] = (
    Axis("chip", "rtx3090,rtx4090", _chip, _plain, with_chip, ordered=False),
    Axis("gpus", "1..8", _number(10**5), _plain, with_cards, step=1), of_field(ServeAsk, "link"),
    Axis("network", "1Gbps,10Gbps,100Gbps", _rate, _shown_rate, with_network, whole=False), of_field(ServeAsk, "context"),
    of_field(ServeAsk, "prompt"),
    Axis("quant", "q4_k_m,q6_k,q8_0", lambda text, ask: find_format(text).name, _plain, _with_format, ordered=False),
    of_field(ServeAsk, "kv", str.lower), of_field(ServeAsk, "users"), of_field(ServeAsk, "rate"), of_field(ServeAsk, "depth"),
    of_field(ServeAsk, "engine", lambda text: find_engine(text).name),
)  # fmt: skip
SERVE_AXES: dict[str, Axis[ServeAsk]] = {axis.name: axis for axis in _SERVE}
SERVE_AXES["devices"] = SERVE_AXES["cards"] = SERVE_AXES["gpus"]
