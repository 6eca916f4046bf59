"""Check the rows of a probe: which keys each kind has, and their types and ranges. A file may come from another version or machine."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshwise.errors import UserError, quoted

MAX_VALUE = 1e18  # bytes, FLOPs and sizes are below this
DTYPES = ("bf16", "fp16", "fp32", "tf32", "fp64", "fp8")


def _above_zero(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < MAX_VALUE


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**40


def _flag(value: object) -> bool:
    return isinstance(value, int) and value in (0, 1)


def _text(value: object) -> bool:
    return isinstance(value, str)


def _group(value: object) -> bool:
    return _whole(value) and value != 1


def _date(value: object) -> bool:
    return isinstance(value, str) and re.match(r"[12][0-9]{3}-", value, re.ASCII) is not None


Check = Callable[[object], bool]
WORDS: Mapping[Check, str] = {
    _above_zero: "a number above zero",
    _whole: "a whole number above zero",
    _flag: "0 or 1",
    _text: "text",
    _group: "a whole number above one",
    _date: "a date such as 2026-01-31",
}
_SHAPE: dict[str, Check] = {"m": _whole, "n": _whole, "k": _whole, "flops": _above_zero}
_COPY: dict[str, Check] = {"what": _text, "size": _above_zero, "bytes": _above_zero}
TIMED: dict[str, Check] = {"seconds": _above_zero, "low": _above_zero, "high": _above_zero, "repeats": _whole}
KINDS: dict[str, dict[str, Check]] = {
    "machine": {"device": _text, "name": _text, "date": _date, "ranks": _whole, "nodes": _whole, "memory": _above_zero, "sms": _whole,
        "torch": _text},
    "missing": {"what": _text, "why": _text},
    "power": {"what": _text, "watts": _above_zero, "seconds": _above_zero, "meter": _text},
    "gemm": TIMED | _SHAPE | {"dtype": DTYPES.__contains__},
    "sustained": TIMED | _SHAPE,
    "grouped": TIMED | _SHAPE | {"what": _text, "experts": _whole},
    "memory": TIMED | _COPY,
    "host": TIMED | _COPY,
    "attention": TIMED | {"what": _text, "batch": _whole, "heads": _whole, "seq": _whole, "width": _whole},
    "launch": TIMED | {"what": _text},
    "block": TIMED | {"what": _text, "small": _flag} | dict.fromkeys(("tokens", "seq", "hidden", "heads", "ffn"), _whole),
    "optimizer": TIMED,
    "wire": TIMED | {"what": _text, "group": _group, "nodes": _whole, "size": _above_zero},
}  # fmt: skip
"""Keys of each kind of row that something reads."""


def check(rows: Sequence[Mapping[str, Any]], where: str) -> None:
    """Refuse rows that lack a key or have a value that no probe writes; `where` names their file."""
    for number, row in enumerate(rows, 1):
        kind = row["kind"]
        if not isinstance(kind, str) or kind not in KINDS:
            raise UserError(f"{where}, line {number}: unknown kind {quoted(kind)} of a row; known: {', '.join(KINDS)}")
        for key, fits in KINDS[kind].items():
            if key not in row:
                raise UserError(
                    f"{where}, line {number}: a row of kind {kind} needs the key '{key}'; measure again with 'meshwise probe'"
                )
            if not fits(row[key]):
                raise UserError(
                    f"{where}, line {number}: {key} is {quoted(row[key])}; expected {WORDS.get(fits, ', '.join(DTYPES))}"
                )
        if kind == "machine" and row.get("context") and not _above_zero(row["context"]):
            raise UserError(f"{where}, line {number}: context is {quoted(row['context'])}; expected bytes")
        if "low" in KINDS[kind] and row["low"] > row["high"]:
            raise UserError(f"{where}, line {number}: low is {quoted(row['low'])}, above high, {quoted(row['high'])}")
    if not any(row["kind"] == "gemm" and row["n"] % 8 == 0 == row["k"] % 8 for row in rows):
        raise UserError(f"{where}: no row of kind gemm has n and k in multiples of 8; measure again with 'meshwise probe'")
