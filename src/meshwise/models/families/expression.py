"""Expressions of an architecture file: Python's arithmetic and conditions over the keys of a config.json, and nothing else.

An expression cannot read attributes, import, loop or build large objects, so a file from a third party is data.
"""

import ast
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isqrt
from types import CodeType
from typing import Any, cast

from meshwise.errors import UserError, quoted

_ALLOWED = (
    ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.BinOp, ast.Add, ast.Sub, ast.Mult,
    ast.Div, ast.FloorDiv, ast.Mod, ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn,
    ast.Is, ast.IsNot, ast.IfExp, ast.Call, ast.keyword, ast.Name, ast.Load, ast.Constant, ast.Subscript, ast.List,
    ast.Tuple,
)  # fmt: skip


@dataclass(frozen=True)
class Expression:
    """A checked expression, ready to be evaluated."""

    text: str
    code: CodeType
    names: frozenset[str]  # every name it reads, functions included

    def value(self, names: Mapping[str, Any]) -> Any:
        return eval(self.code, {"__builtins__": {}}, _Names(names) if _TIMES in self.code.co_names else names)


_TIMES = "__times"
MAX_ITEMS = 100_000  # items of a list that an expression repeats: one for each layer


def _times(left: Any, right: Any) -> Any:
    """Return a product; a list may be repeated for the layers of a model, and no more."""
    for items, number in ((left, right), (right, left)):
        if (
            isinstance(items, list | tuple | str)
            and isinstance(number, int)
            and len(cast(Sequence[Any], items)) * number > MAX_ITEMS
        ):
            raise UserError(f"an architecture file makes a list of more than {MAX_ITEMS:,} items")
    return left * right


class _Names(dict[str, Any]):
    """Names of an expression, and the function of its products."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        super().__init__({_TIMES: _times})
        self._given = names

    def __missing__(self, name: str) -> Any:
        return self._given[name]


class _Multiplied(ast.NodeTransformer):
    """Replaces products by calls of a function that bounds them."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Mult):
            return node
        return ast.copy_location(ast.Call(ast.Name(_TIMES, ast.Load()), [node.left, node.right], []), node)


@lru_cache(maxsize=4096)
def parse(text: str, where: str = "") -> Expression:
    """Parse an expression; refuse whatever is not arithmetic, a condition, a list, an index or a call of a known function."""
    if text.isidentifier() and not text.startswith("__"):
        return Expression(text, compile(text, where or "<expression>", "eval"), frozenset({text}))
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UserError(f"{where}: {quoted(text, 200)} is not an expression") from None
    names: set[str] = set()
    for node in ast.walk(tree):
        called = isinstance(node, ast.Call) and not isinstance(node.func, ast.Name)
        if called or not isinstance(node, _ALLOWED):
            raise UserError(f"{where}: {quoted(text, 200)} uses {type(node).__name__}, which an architecture file may not")
        if isinstance(node, ast.Name):
            if node.id.startswith("__"):
                raise UserError(f"{where}: {quoted(text, 200)} uses {node.id}, which an architecture file may not")
            names.add(node.id)
    bounded = ast.fix_missing_locations(_Multiplied().visit(tree))
    return Expression(text, compile(bounded, where or "<expression>", "eval"), frozenset(names))


def round_up(value: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is at least `value`."""
    return -(-value // multiple) * multiple


def inside(table: Mapping[str, Any] | None, key: str, default: Any = None) -> Any:
    """Return a key of a table within the config; the default if the table or the key is absent."""
    return default if table is None else table.get(key, default)


def of_layer(table: Mapping[str, Any], layer: int, key: str, default: Any) -> Any:
    """Return a key of the table of one layer, in a table of tables by layer number as text ('5' or '05')."""
    own: Any = next((value for number, value in table.items() if str(number).isdigit() and int(number) == layer), None)
    return cast(dict[str, Any], own).get(key, default) if isinstance(own, dict) else default


def each(value: Any, layer: int) -> Any:
    """Return the value of one layer, where a config has one number for all layers or a list."""
    return cast(tuple[Any, ...], value)[layer] if isinstance(value, tuple) else value


def count(items: Sequence[Any], value: Any) -> int:
    return list(items).count(value)


def before(items: Sequence[Any], value: Any, end: int) -> int:
    """Return how many of the first `end` items are `value`."""
    return list(items[:end]).count(value)


def count_below(items: Sequence[int], limit: int) -> int:
    """Return how many different items are smaller than `limit`."""
    return len({item for item in items if item < limit})


MAX_PRIMES = 1024  # primes that a sum may have: a config that asks for more names no real model, and would take seconds


def _is_prime(value: int) -> bool:
    return value % 2 == 1 and all(value % divisor for divisor in range(3, isqrt(value) + 1, 2))


def sum_of_primes(start: int, skipped: int, number: int) -> int:
    """Return the sum of `number` primes after `skipped` of those from `start` on. Worked: (10, 1, 2) = 13 + 17; 11 is skipped."""
    if not 2 < start < 10**8 or not 0 <= skipped < MAX_PRIMES or not 0 < number < MAX_PRIMES:
        raise ValueError("sizes of hashed tables out of range")
    primes = (value for value in itertools.count(start) if _is_prime(value))
    return sum(itertools.islice(primes, skipped, skipped + number))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": min, "max": max, "len": len, "int": int, "round_up": round_up, "inside": inside, "root": isqrt, "count": count,
    "before": before, "of_layer": of_layer, "each": each, "count_below": count_below, "sum_of_primes": sum_of_primes,
}  # fmt: skip
"""Functions that any expression may call, beside the constructors of Ops."""
CONSTANTS: dict[str, Any] = {"true": True, "false": False, "none": None}
