"""Units: '4M tokens', '80GiB', '400Gbps', '1.5us', '989T', '2%', '$2.5/h'  <->  a float in SI.

Units are parsed once on input and printed once on output. In between, every number is in tokens, bytes, bytes/s, seconds,
FLOP/s, watts, hertz, dollars, dollars/s or shares.
"""

import math
import re
from dataclasses import dataclass
from typing import Annotated

from meshwise.errors import UserError, quoted

Count = Annotated[float, "count"]
Bytes = Annotated[float, "bytes"]
BytesPerSecond = Annotated[float, "bytes/s"]
Seconds = Annotated[float, "seconds"]
FlopsPerSecond = Annotated[float, "FLOP/s"]
Watts = Annotated[float, "watts"]
Hertz = Annotated[float, "hertz"]

GIB = 2.0**30
MIB = 2.0**20
_LARGE_PREFIXES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
_SMALL_PREFIXES = {"": 1.0, "m": 1e-3, "u": 1e-6, "µ": 1e-6, "μ": 1e-6, "n": 1e-9}
# Counts are case-insensitive, so that '70b parameters' and '125m' work: m is always million, never thousandth.
_COUNT = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12, "p": 1e15}
# A context of '128k' has 131072 tokens in every model's config.
_LENGTH = {"": 1.0, "k": 2.0**10, "ki": 2.0**10, "m": 2.0**20, "mi": 2.0**20}


@dataclass(frozen=True)
class Quantity:
    """A physical quantity: its name and examples for errors, its units and their prefixes."""

    what: str
    examples: str
    units: dict[str, float]
    prefixes: dict[str, float]
    any_case: bool = False  # whether upper and lower case mean the same
    bare: tuple[str, ...] = ()  # units that take no prefix, such as hours


_TOKENS = {"": 1.0, "tokens": 1.0, "token": 1.0, "params": 1.0, "parameters": 1.0}
_BYTES_PER_BIT = 1 / 8

QUANTITIES: dict[str, Quantity] = {
    "count": Quantity("a count", "4M, 15T, 4M tokens", _TOKENS, _COUNT, any_case=True),
    "length": Quantity("a length in tokens", "4096, 4k, 128k", _TOKENS, _LENGTH, any_case=True),
    "bytes": Quantity("a size in bytes", "80GiB, 80GB", {"B": 1.0, "bit": _BYTES_PER_BIT}, _LARGE_PREFIXES | _BINARY),
    "bytes/s": Quantity("a bandwidth", "3.35TB/s, 400Gbps",
        {"B/s": 1.0, "bps": _BYTES_PER_BIT, "b/s": _BYTES_PER_BIT, "bit/s": _BYTES_PER_BIT}, _LARGE_PREFIXES | _BINARY),
    "seconds": Quantity("a time", "1.5us, 20ms, 7.5s, 30d",
        {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}, _SMALL_PREFIXES, bare=("min", "h", "d")),
    "FLOP/s": Quantity("a compute rate", "989T, 989TFLOP/s",
        {"": 1.0, "FLOP/s": 1.0, "FLOPS": 1.0, "FLOPs": 1.0, "FLOPs/s": 1.0, "OP/s": 1.0, "OPS": 1.0}, _LARGE_PREFIXES),
    "watts": Quantity("a power", "300W, 1.2kW", {"W": 1.0}, _LARGE_PREFIXES),
    "hertz": Quantity("a frequency", "1.98GHz", {"Hz": 1.0}, _LARGE_PREFIXES),
    "share": Quantity("a share", "40%, 0.4", {"": 1.0, "%": 0.01}, {"": 1.0}),
    "dollars": Quantity("a price in dollars", "$1599, $30k", {"$": 1.0}, _LARGE_PREFIXES),
    "dollars/s": Quantity("a price per hour", "2.50/h",
        {"$/s": 1.0} | dict.fromkeys(("$/hr", "$/h", "$", "/hr", "/h", ""), 1 / 3600), {"": 1.0}),
}  # fmt: skip

# A comma groups thousands: '1,5us' is refused instead of being read as fifteen.
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d[\d_]*)(?:\.\d*)?|\.\d+"
_NUMBER = re.compile(rf"([+-]?(?:{_DIGITS})(?:[eE][+-]?\d+)?)\s*([^\d.,].*)?", re.DOTALL)


def parse(text: object, quantity: str) -> float:
    """Parse a quantity and return it in SI. A plain number is in SI already."""
    kind = QUANTITIES[quantity]
    value = _read(text, kind) if isinstance(text, str) else _plain(text, kind)
    if not math.isfinite(value) or value < 0:
        raise UserError(f"{quoted(text)} is not {kind.what}: it must be finite and not negative, such as {kind.examples}")
    return value


def _plain(value: object, kind: Quantity) -> float:
    """Return an int or float as a float; refuse any other type."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{quoted(value)} is not {kind.what} (such as {kind.examples})")
    try:
        return float(value)
    except OverflowError:
        raise UserError(f"{quoted(value)} is too large for {kind.what}") from None


def _read(text: str, kind: Quantity) -> float:
    """Parse text as a number with a unit and return it in SI."""
    stripped = text.strip()
    if kind is QUANTITIES["dollars/s"] and stripped.startswith("."):  # what a shell leaves of $2.50/h, since $2 is empty
        raise UserError(f"{quoted(text)} is not {kind.what}: a shell reads $2 as a variable; write 2.50/h, or 0{stripped}")
    if stripped.startswith("$"):  # rewrite '$2.5/h' as '2.5$/h', which the code below reads
        stripped = re.sub(r"^\$\s*([\d.,_]+(?:[eE]\d+)?\s*[kKMGT]?)(.*)$", r"\1$\2", stripped, flags=re.DOTALL)
    match = _NUMBER.fullmatch(stripped)
    if match is None:
        raise UserError(f"{quoted(text)} is not {kind.what} (such as {kind.examples})")
    factor = _factor((match[2] or "").strip(), kind)
    if factor is None:
        raise UserError(_wrong_unit(text, match[2] or "", kind))
    return float(match[1].replace(",", "").replace("_", "")) * factor


def _factor(suffix: str, kind: Quantity) -> float | None:
    """Return the factor that a unit with its prefix stands for; None if it is not a unit of this quantity."""
    if kind.any_case:
        suffix = suffix.lower()
    for unit in sorted(kind.units, key=len, reverse=True):
        if not suffix.endswith(unit):
            continue
        prefix = suffix.removesuffix(unit).strip()
        if prefix in kind.prefixes and (not prefix or unit not in kind.bare):
            return kind.prefixes[prefix] * kind.units[unit]
    return None


def _wrong_unit(text: str, suffix: str, kind: Quantity) -> str:
    """Return an error with the given text, the expected unit, and the likely mistake."""
    given = f"{quoted(text)} is not {kind.what}"
    for other in QUANTITIES.values():
        if other is not kind and suffix.strip() and _factor(suffix.strip(), other) is not None:
            return f"{given} but {other.what}; expected something like {kind.examples}"
    if not suffix.strip():
        return f"{given}: it has no unit; expected something like {kind.examples}"
    if re.search(r"b(/s)?$", suffix, re.IGNORECASE):
        return f"{given}: write B for bytes or bit for bits; expected something like {kind.examples}"
    return f"{given}: unknown unit {quoted(suffix.strip())}; expected something like {kind.examples}"


def whole_length(text: str | int) -> int:
    """Parse a sequence length: '4k' is 4,096."""
    value = parse(text, "length")
    if value != int(value) or not 1 <= value <= 2**40:
        raise UserError(
            f"{quoted(text)} is not a sequence length: expected a whole number of tokens, 1 or more, such as 4096 or 128k"
        )
    return int(value)


def training_tokens(text: str | float) -> float:
    """Parse a number of training tokens: '15T' is 15e12."""
    value = parse(text, "count")
    if value > 1e18:  # 60,000 times the tokens of Llama 3; far beyond, FLOPs are no longer finite
        raise UserError(f"{quoted(text)} is too many tokens to train on: expected at most 1e18, such as 15T")
    return value


def show(value: float, quantity: str, *, binary: bool = False, digits: int = 4) -> str:
    """Format `value` for people; `parse` reads it back to within the digits shown."""
    kind = QUANTITIES[quantity]
    if quantity == "dollars":
        return f"${value:,.2f}".removesuffix(".00")
    if quantity == "dollars/s":
        return f"${value * 3600:,.2f}/h"
    if quantity == "seconds":
        return _show_seconds(value, digits)
    if quantity == "share":
        return f"{_significant(100 * value, digits)}%"
    prefixes = _BINARY if binary else {"count": _COUNT, "length": _LENGTH}.get(quantity, _LARGE_PREFIXES)
    unit = {"bytes": "B", "bytes/s": "B/s", "watts": "W", "hertz": "Hz", "FLOP/s": "FLOP/s"}.get(quantity, "")
    best = "" if binary else min(prefixes, key=lambda p: prefixes[p])
    for prefix, factor in sorted(prefixes.items(), key=lambda item: item[1]):
        if value >= factor and prefix not in ("K", "g", "p", "ki", "mi"):
            best = prefix
    if kind.any_case:
        best = best.upper().replace("K", "k")
    scale = kind.prefixes[best.lower() if kind.any_case else best]
    number = _significant(value / scale, digits)
    return f"{number} {best}{unit}".strip() if unit else f"{number}{best}"


def figure(value: float, digits: int = 3) -> str:
    """Format a number for people: '7.6', '0.0123', '1,230', never '1.23e+03'."""
    text = f"{value:.{digits}g}"
    return f"{float(text):,.0f}" if abs(float(text)) >= 1000 else text


_TIMES = (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("us", 1e-6))


def _show_seconds(value: float, digits: int) -> str:
    for unit, factor in _TIMES:
        if value >= factor * (2 if factor > 1 else 1):
            return f"{_significant(value / factor, digits)} {unit}"
    return f"{_significant(value * 1e9, digits)} ns"


def _significant(value: float, digits: int) -> str:
    """Format with `digits` significant digits, without an exponent and without trailing zeros."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _texts(value: float, quantity: str, digits: int) -> list[str]:
    """Return `value` with this many digits, in every unit that is worth a try."""
    if quantity == "dollars/s":  # `show` would round it to cents
        return [f"${_significant(3600 * value, digits)}/h"] if math.isfinite(3600 * value) else []
    others = [f"{_significant(value / factor, digits)}{unit}" for unit, factor in _TIMES if value >= factor]
    return [show(value, quantity, digits=digits).replace(" ", ""), *(others if quantity == "seconds" else [])]


def exactly(value: float, quantity: str) -> str:
    """Format `value` as the shortest text that `parse` reads back to the same number, without spaces: 400Gbps becomes '50GB/s'."""
    for digits in range(4, 18):
        for text in _texts(value, quantity, digits):
            if parse(text, quantity) == value:
                return text
    unit = next(unit for unit, factor in QUANTITIES[quantity].units.items() if factor == 1)
    return f"{value:.17g}{unit}"
