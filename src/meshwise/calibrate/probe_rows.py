"""Check the rows of a probe: which keys each kind has, and their types and ranges. A file may come from another version or machine."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshwise.errors import UserError, quoted

MAX_VALUE = 1e18  # bytes, FLOPs and sizes are below this
DTYPES = ("bf16", "fp16", "fp32", "tf32", "fp64", "fp8")


NUMBER, WHOLE, GROUP, FLAG = "a number above zero", "a whole number above zero", "a whole number above one", "0 or 1"
TEXT, DATE, DTYPE = "text", "a date such as 2026-01-31", ", ".join(DTYPES)
FITS: Mapping[str, Callable[[Any], bool]] = {
    NUMBER: lambda value: isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < MAX_VALUE,
    WHOLE: lambda value: isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**40,
    GROUP: lambda value: FITS[WHOLE](value) and value != 1,
    FLAG: lambda value: isinstance(value, int) and value in (0, 1),
    TEXT: lambda value: isinstance(value, str),
    DATE: lambda value: isinstance(value, str) and re.match(r"[12][0-9]{3}-", value, re.ASCII) is not None,
    DTYPE: DTYPES.__contains__,
}
"""Whether a value is what these words say."""
_SHAPE = {"m": WHOLE, "n": WHOLE, "k": WHOLE, "flops": NUMBER}
_COPY = {"what": TEXT, "size": NUMBER, "bytes": NUMBER}
TIMED = {"seconds": NUMBER, "low": NUMBER, "high": NUMBER, "repeats": WHOLE}
KINDS: dict[str, dict[str, str]] = {
    "machine": {"device": TEXT, "name": TEXT, "date": DATE, "ranks": WHOLE, "nodes": WHOLE, "memory": NUMBER, "sms": WHOLE,
        "torch": TEXT},
    "missing": {"what": TEXT, "why": TEXT},
    "power": {"what": TEXT, "watts": NUMBER, "seconds": NUMBER, "meter": TEXT},
    "gemm": TIMED | _SHAPE | {"dtype": DTYPE},
    "sustained": TIMED | _SHAPE,
    "grouped": TIMED | _SHAPE | {"what": TEXT, "experts": WHOLE},
    "memory": TIMED | _COPY,
    "host": TIMED | _COPY,
    "attention": TIMED | {"what": TEXT, "batch": WHOLE, "heads": WHOLE, "seq": WHOLE, "width": WHOLE},
    "launch": TIMED | {"what": TEXT},
    "block": TIMED | {"what": TEXT, "small": FLAG} | dict.fromkeys(("tokens", "seq", "hidden", "heads", "ffn"), WHOLE),
    "optimizer": TIMED,
    "wire": TIMED | {"what": TEXT, "group": GROUP, "nodes": WHOLE, "size": NUMBER},
}  # fmt: skip
"""Keys of each kind of row that something reads."""


def check(rows: Sequence[Mapping[str, Any]], where: str) -> None:
    """Refuse rows that lack a key or have a value that no probe writes; `where` names their file."""
    for number, row in enumerate(rows, 1):
        kind = row["kind"]
        if not isinstance(kind, str) or kind not in KINDS:
            raise UserError(f"{where}, line {number}: unknown kind {quoted(kind)} of a row; known: {', '.join(KINDS)}")
        for key, words in KINDS[kind].items():
            if key not in row:
                raise UserError(
                    f"{where}, line {number}: a row of kind {kind} needs the key '{key}'; measure again with 'meshwise probe'"
                )
            if not FITS[words](row[key]):
                raise UserError(f"{where}, line {number}: {key} is {quoted(row[key])}; expected {words}")
        if kind == "machine" and row.get("context") and not FITS[NUMBER](row["context"]):
            raise UserError(f"{where}, line {number}: context is {quoted(row['context'])}; expected bytes")
        if "low" in KINDS[kind] and row["low"] > row["high"]:
            raise UserError(f"{where}, line {number}: low is {quoted(row['low'])}, above high, {quoted(row['high'])}")
    if not any(row["kind"] == "gemm" and row["n"] % 8 == 0 == row["k"] % 8 for row in rows):
        raise UserError(f"{where}: no row of kind gemm has n and k in multiples of 8; measure again with 'meshwise probe'")
