"""What of a training question can be varied: each axis turns one Ask into another."""

from dataclasses import replace

from meshwise import units
from meshwise.catalogue import chips, frameworks, rescale
from meshwise.cost.work import OPTIMIZER_BYTES, PRECISIONS, parse_batch
from meshwise.errors import DoesNotFit, UserError, quoted
from meshwise.plan.train.choice import Ask
from meshwise.plan.vary import Axis, Value

COUNT = "how many devices there are"


def _number(text: str, ask: Ask) -> int:
    """A number of nodes or devices."""
    digits = text.strip().replace("_", "")
    if not digits.isdecimal() or not int(digits[:9]) >= 1 or len(digits) > 8:
        raise UserError(f"--vary: {quoted(text)} is no number of nodes or devices; expected 1 or more, such as 8..512")
    return int(digits)


def _rate(text: str, ask: Ask) -> float:
    rate = units.parse(text, "bytes/s")
    if not rate:
        raise UserError(f"--vary: {quoted(text)} is no bandwidth; expected something like 450GB/s or 400Gbps")
    return rate


def _batch(text: str, ask: Ask) -> int:
    """Tokens of a batch, which it has at any sequence length."""
    sequences, length = parse_batch(text, ask.seq)
    if length != ask.seq:
        raise UserError(
            f"--vary: the batch {quoted(text)} says another sequence length than {ask.seq:,}; give it with --seq, or vary seq"
        )
    return sequences * length


def _shown_length(value: Value, otherwise: str) -> str:
    """'4k' where that is exact."""
    text = units.show(float(value), "length")
    return text if units.parse(text, "length") == value else otherwise


def _shown_batch(value: Value, ask: Ask) -> str:
    """'4M', or '1000x4096'."""
    return _shown_length(value, f"{int(value) // ask.seq}x{ask.seq}")


def _with_tokens(ask: Ask, tokens: int, seq: int) -> Ask:
    if tokens % seq:
        raise DoesNotFit(f"a batch of {tokens:,} tokens is no whole number of sequences of {seq:,}")
    return replace(ask, batch=tokens // seq, seq=seq)


def _plain(value: Value, ask: Ask) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _shown_rate(value: Value, ask: Ask) -> str:
    return units.show(float(value), "bytes/s")


def _chip(text: str, ask: Ask) -> str:
    return chips.find_chip(text).key


def _framework(text: str, ask: Ask) -> str:
    return frameworks.find_framework(text).key


def _one_of(what: str, known: tuple[str, ...], text: str) -> str:
    if text not in known:
        raise UserError(f"unknown {what} {quoted(text)}; known: {', '.join(known)}")
    return text


# In the order in which they are applied: the chip before how many of it, a batch before it is cut into other sequences.
_ALL: tuple[Axis[Ask], ...] = (
    Axis(
        "chip",
        "a100-80gb,h100-sxm",
        _chip,
        _plain,
        lambda ask, v: replace(ask, cluster=rescale.with_chip(ask.cluster, str(v))),
        ordered=False,
    ),
    Axis(
        "nodes",
        "8..512",
        _number,
        _plain,
        lambda ask, v: replace(ask, cluster=rescale.with_nodes(ask.cluster, int(v))),
        settles=COUNT,
    ),
    Axis(
        "devices",
        "8..512",
        _number,
        _plain,
        lambda ask, v: replace(ask, cluster=rescale.with_devices(ask.cluster, int(v))),
        settles=COUNT,
    ),
    Axis(
        "link",
        "64GB/s..900GB/s",
        _rate,
        _shown_rate,
        lambda ask, v: replace(ask, link=units.exactly(float(v), "bytes/s")),
        whole=False,
    ),
    Axis(
        "network",
        "100Gbps..3200Gbps",
        _rate,
        _shown_rate,
        lambda ask, v: replace(ask, cluster=rescale.with_network(ask.cluster, float(v))),
        whole=False,
    ),
    Axis("batch", "1M..16M", _batch, _shown_batch, lambda ask, v: _with_tokens(ask, int(v), ask.seq)),
    Axis(
        "seq",
        "4k..128k",
        lambda text, ask: units.whole_length(text),
        lambda v, ask: _shown_length(v, str(v)),
        lambda ask, v: _with_tokens(ask, ask.batch * ask.seq, int(v)),
    ),
    Axis(
        "precision",
        "bf16,fp8",
        lambda text, ask: _one_of("precision", PRECISIONS, text),
        _plain,
        lambda ask, v: replace(ask, precision=str(v)),
        ordered=False,
    ),
    Axis(
        "optimizer",
        "adamw,muon",
        lambda text, ask: _one_of("optimizer", tuple(OPTIMIZER_BYTES), text),
        _plain,
        lambda ask, v: replace(ask, optimizer=str(v)),
        ordered=False,
    ),
    Axis("framework", "megatron,torchtitan", _framework, _plain, lambda ask, v: replace(ask, framework=str(v)), ordered=False),
)

AXES: dict[str, Axis[Ask]] = {axis.name: axis for axis in _ALL} | {"gpus": next(axis for axis in _ALL if axis.name == "devices")}
