"""Axes of `--vary`: what of a question can be varied, and the question that each value makes of another.

A field of the question that names an example in `vary` is an axis as it is; the axes below that change the cluster, or keep the tokens of a
batch, are written out.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from meshwise import units
from meshwise.catalogue import chips, clusters, frameworks, rescale
from meshwise.catalogue.engines import find_engine
from meshwise.cost.work import parse_batch
from meshwise.errors import DoesNotFit, UserError, quoted
from meshwise.models.formats import find_format, split_model_name
from meshwise.plan.ask import ServeAsk, TrainAsk
from meshwise.plan.fields import Ask, field_of, flag_of, spec
from meshwise.plan.vary import Axis, Value

COUNT = "how many devices there are"
Asked = TypeVar("Asked", bound=Ask)


def of_field(cls: type[Asked], name: str, read: Callable[[str], Value] | None = None) -> Axis[Asked]:
    """Return the axis of a field: its values are read and shown as the field's own."""
    about = spec(cls)[name]
    assert field_of(cls, name), name

    def value(text: str, ask: Asked) -> Value:
        try:
            found = read(text) if read else about.kind(text)
        except UserError as error:
            raise UserError(str(error).replace(f"{flag_of(name, about)} ", "--vary: ")) from None
        if about.kind.ordered and not found:
            raise UserError(f"--vary: {quoted(text)} is no {name}; expected something like {about.vary}")
        return found

    def changed(ask: Asked, found: Value) -> Asked:
        return replace(ask, **{name: found})  # pyright: ignore[reportArgumentType, reportUnknownVariableType]

    return Axis(name, about.vary, value, _shown(about.kind.write), changed, about.kind.ordered, whole=about.kind.whole)


def _shown(write: Callable[[Any], str]) -> Callable[[Value, Any], str]:
    return lambda value, ask: f"{value:,}" if isinstance(value, int) and value < 1024 else _spaced(value, write)


def _spaced(value: Value, write: Callable[[Any], str]) -> str:
    return units.show(value, "bytes/s") if isinstance(value, float) and value > 1e6 else write(value)


def _number(most: int) -> Callable[[str, Any], int]:
    """Return a reader of numbers of nodes or devices."""

    def read(text: str, ask: object) -> int:
        digits = text.strip().replace("_", "")
        if not digits.isdecimal() or not int(digits[:9]) >= 1 or len(digits) > len(str(most)):
            raise UserError(f"--vary: {quoted(text)} is no number of nodes or devices; expected 1 or more, such as 8..512")
        return int(digits)

    return read


def _rate(text: str, ask: object) -> float:
    rate = units.parse(text, "bytes/s")
    if not rate:
        raise UserError(f"--vary: {quoted(text)} is no bandwidth; expected something like 450GB/s or 400Gbps")
    return rate


def _shown_rate(value: Value, ask: object) -> str:
    return units.show(float(value), "bytes/s")


def _plain(value: Value, ask: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _chip(text: str, ask: object) -> str:
    return chips.find_chip(text).key


# Training.


def _batch(text: str, ask: TrainAsk) -> int:
    """Return tokens of a batch, which stay the same at any sequence length."""
    sequences, length = parse_batch(text, ask.seq)
    if length != ask.seq:
        raise UserError(
            f"--vary: the batch {quoted(text)} has another sequence length than {ask.seq:,}; give it with --seq, or vary seq"
        )
    return sequences * length


def _shown_batch(value: Value, ask: TrainAsk) -> str:
    """'4M', or '1000x4096' where that is not exact."""
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


# In the order in which they are applied: the chip before how many of it, a batch before it is cut into other sequences.
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
    of_field(TrainAsk, "framework", lambda text: frameworks.find_framework(text).key),
)
TRAIN_AXES: dict[str, Axis[TrainAsk]] = {axis.name: axis for axis in _TRAIN}
TRAIN_AXES["gpus"] = TRAIN_AXES["devices"]

# Serving.


def _with_format(ask: ServeAsk, value: Value) -> ServeAsk:
    return replace(ask, model=f"{split_model_name(ask.model)[0]}:{str(value).lower()}")


def with_cards(ask: ServeAsk, value: Value) -> ServeAsk:
    """Return the host with another number of its devices; several hosts keep their size, and there are more or fewer of them."""
    number, found = int(value), clusters.find_cluster(ask.on)
    if len(found.chips) > 1:
        raise UserError(f"{quoted(ask.on)} mixes devices, so --vary gpus does not say which to add; plan each cluster by itself")
    if found.node_count > 1:
        return replace(ask, on=rescale.with_devices(ask.on, number))
    own, node = found.chip, found.node
    usual = (own.link or own.host) == node.link
    link = ask.link or (node.link.bandwidth if node.link and not usual else 0.0)
    return replace(ask, on=f"1x{number}x{own.key}", link=link)


def with_network(ask: ServeAsk, value: Value) -> ServeAsk:
    if clusters.find_cluster(ask.on).node_count < 2:
        raise DoesNotFit("one host has no network")
    return replace(ask, on=rescale.with_network(ask.on, float(value)))


def with_chip(ask: ServeAsk, value: Value) -> ServeAsk:
    """Return the cluster with as many devices of another kind."""
    found = clusters.find_cluster(ask.on)
    if found.node_count > 1:
        return replace(ask, on=rescale.with_chip(ask.on, str(value)))
    return replace(ask, on=f"1x{found.devices}x{value}")


_SERVE: tuple[Axis[ServeAsk], ...] = (
    Axis("chip", "rtx3090,rtx4090", _chip, _plain, with_chip, ordered=False),
    Axis("gpus", "1..8", _number(10**5), _plain, with_cards, step=1),
    of_field(ServeAsk, "link"),
    Axis("network", "1Gbps,10Gbps,100Gbps", _rate, _shown_rate, with_network, whole=False),
    of_field(ServeAsk, "context"),
    of_field(ServeAsk, "prompt"),
    Axis("quant", "q4_k_m,q6_k,q8_0", lambda text, ask: find_format(text).name, _plain, _with_format, ordered=False),
    of_field(ServeAsk, "kv", str.lower),
    of_field(ServeAsk, "users"),
    of_field(ServeAsk, "engine", lambda text: find_engine(text).name),
)
SERVE_AXES: dict[str, Axis[ServeAsk]] = {axis.name: axis for axis in _SERVE}
SERVE_AXES["devices"] = SERVE_AXES["cards"] = SERVE_AXES["gpus"]
