"""Numbers as people and programs print them, with their unit: '1.234,5 ms', '~15,570 tok/s', '67GB', '250k', '44.3%'."""

import math
import re
from typing import NamedTuple

Quantity = str  # a key of UNITS: the kind of value in a column

_THOUSANDS = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12, "": 1.0}
_SECONDS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds", "s/it", "s/iter", "s/step", "sec/it", "sec/iter", "sec/step"), 1.0),
    **dict.fromkeys(("ms", "msec", "millisecond", "milliseconds", "ms/it", "ms/iter", "ms/step"), 1e-3),
    **dict.fromkeys(("us", "µs", "μs"), 1e-6),
    **dict.fromkeys(("min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
}
_BYTES = {
    **dict.fromkeys(("gb", "g", "gigabyte", "gigabytes"), 1e9), **dict.fromkeys(("mb", "m", "megabyte", "megabytes"), 1e6),
    **dict.fromkeys(("b", "bytes", "byte"), 1.0), "kb": 1e3, "tb": 1e12, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30,
}  # fmt: skip
_RATES = ("tok/s", "toks/s", "tokens/s", "token/s", "tokens/sec", "tok/sec", "t/s", "tokenspersecond", "tokenpersecond", "tps")
_PER = {f"{p}{unit}": factor for p, factor in _THOUSANDS.items() for unit in (*_RATES, "samples/s", "samples/sec", "")}
_FLOPS = {
    f"{p}{unit}": factor
    for p, factor in {"g": 1e9, "t": 1e12, "p": 1e15, "e": 1e18}.items()
    for unit in ("flops", "flop/s", "flops/s", "flop/s/gpu", "flops/gpu", "flops/s/gpu", "")
}
_NAMES = (
    "", "parameters", "params", "param", "tokens", "token", "gpus", "gpu", "layers", "heads", "nodes", "steps", "sequences", "samples",
)  # fmt: skip
_COUNTS = {f"{p}{name}": factor for p, factor in _THOUSANDS.items() for name in _NAMES}

UNITS: dict[Quantity, dict[str, float]] = {
    "seconds": _SECONDS,
    "bytes": _BYTES,
    "rate": _PER,
    "flops": _FLOPS,
    "share": {"%": 0.01, "percent": 0.01, "": 1.0},
    "count": _COUNTS,
    "plain": {"": 1.0},
}

_GROUP = "  '’"  # no-break space, thin space, apostrophes
_ABOUT = r"([~≈<>≤≥±]|about |nearly |approx\.? |around |close to |almost )?"
_NUMBER = re.compile(
    rf"{_ABOUT}\s*([+-]?(?:\d{{1,3}}(?:[{_GROUP} ]\d{{3}})+(?!\d)(?:[.,]\d+)?|\d[\d.,_]*\d|\d|\.\d+)"
    r"(?:[eE][+-]?\d{1,3})?)\s*(.*)",
    re.IGNORECASE | re.DOTALL,
)
_PLAIN = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?")
_EMPTY = frozenset(
    {"", "-", "–", "—", "n/a", "na", "nan", "none", "null", "?", "x", "xx", "xxx", "xxxx", "tbd", "gb", "inf", "."}
)


class Amount(NamedTuple):
    value: float
    rough: bool = False
    rest: str = ""  # text that follows the number and its unit


def is_empty(text: str) -> bool:
    """Return whether a cell is blank or a placeholder such as 'n/a'."""
    return text.strip().lower() in _EMPTY


def decimal_mark_of(text: str) -> str:
    """Return the decimal mark that a number reveals: ',' or '.', or '' where it could be either."""
    match = _NUMBER.match(text.strip())
    digits = match[2] if match else ""
    comma, point = digits.rfind(","), digits.rfind(".")
    if comma >= 0 and point >= 0:
        return "," if comma > point else "."
    if max(comma, point) < 0 or digits.count(",") + digits.count(".") > 1:
        return ""
    whole, _, part = digits.replace(",", ".").partition(".")
    if len(part) == 3 and 1 <= len(whole.lstrip("+-")) <= 3 and whole.lstrip("+-0"):
        return ""
    return "," if comma >= 0 else "."


def parse_digits(digits: str, decimal: str) -> float | None:
    """Parse digits with the file's `decimal` mark ('' if unknown: then a comma groups thousands). None if they fit neither notation."""
    text = re.sub(rf"[{_GROUP} _]", "", digits)
    shown = decimal_mark_of(digits) or decimal or "."
    other = "," if shown == "." else "."
    body, exponent = [*re.split(r"[eE]", text, maxsplit=1), ""][:2]
    whole, mark, part = body.partition(shown)
    if shown in part or other in part:
        whole, mark, part = body, "", ""
        other = shown  # '1.234.567': here the mark groups thousands, whatever the file's decimal mark
    if other in whole and not re.fullmatch(rf"[+-]?\d{{1,3}}(?:{re.escape(other)}\d{{3}})+", whole):
        return None
    try:
        return float(f"{whole.replace(other, '') or '0'}{'.' if mark else ''}{part}{'e' if exponent else ''}{exponent}")
    except ValueError:
        return None


def amount(text: str, quantity: Quantity, unit: str = "", decimal: str = "") -> Amount | None:
    """Parse a cell into SI units, by the unit in the cell or else the column's `unit`. None if it is not a number of this quantity."""
    text, factors = text.strip(), UNITS[quantity]
    if decimal != "," and _PLAIN.fullmatch(text):  # most numbers of a log, in a tenth of the time
        value, about, stated, rest = float(text), False, "", ""
    else:
        match = _NUMBER.match(text)
        value = parse_digits(match[2], decimal) if match else None
        if match is None or value is None:
            return None
        about = bool(match[1])
        stated, rest = _unit(match[3], factors)
    if stated is None or not math.isfinite(value):
        return None
    factor = factors[stated] if stated else factors.get(unit.lower(), 1.0)
    if quantity == "share" and not stated and not unit and value > 1.5:
        factor = 0.01  # '44.3' in a column of shares is a percentage: no share exceeds one
    return Amount(value * factor, about, rest)


def _unit(rest: str, factors: dict[str, float]) -> tuple[str | None, str]:
    """Split the text after a number into unit and rest; the unit is None if the words are not a unit of this quantity."""
    words = rest.strip()
    if not words or words[0] in "([|,;*+–—-…":
        return "", words
    joined = re.sub(r"\s*/\s*", "/", words)
    for long in (" per second", " per sec"):
        joined = joined.replace(long, "/s")
    parts = joined.split()
    for taken in (2, 1):
        squeezed = "".join(parts[:taken]).rstrip(".,;:)").lower()
        if len(parts) >= taken and squeezed in factors:
            return squeezed, " ".join(parts[taken:])
        bare = squeezed.split("/")[0]
        if len(parts) >= taken and bare in factors and "/" in squeezed and "/s" not in factors:
            return bare, " ".join(parts[taken:])
    if parts[0].lower() in ("per", "total", "in", "on", "for", "of", "x", "×", "to", "and", "with", "across"):
        return "", joined
    return None, joined


def number_or_nan(text: str) -> float:
    """Parse a plain number that a program printed; NaN if it is garbled."""
    try:
        return float(text)
    except ValueError:
        return math.nan


class Range(NamedTuple):
    low: float
    high: float
    rest: str


def parse_range(text: str) -> Range | None:
    """Parse '5.34-6.87GB' into its two ends and the unit that follows; None if it is not a range."""
    match = re.match(r"[~≈]?\s*(\d+(?:\.\d+)?)\s*(?:[-–]|\.\.|to)\s*(\d+(?:\.\d+)?)(.*)", text.strip(), re.DOTALL)
    return Range(float(match[1]), float(match[2]), match[3].strip()) if match else None
