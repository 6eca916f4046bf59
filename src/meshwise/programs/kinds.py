"""Kinds of values in launch files: how a value of a file becomes the value of a fact, and back."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from meshwise.runs.run import Value

MAX_WHOLE = 10**15  # the largest whole number of a key: the tokens of a training are a hundredth of it
TRUE_WORDS = ("true", "yes", "on", "1")
FALSE_WORDS = ("false", "no", "off", "0")


@dataclass(frozen=True)
class Kind:
    """How values of one key are read and written."""

    read: Callable[[Any], Value | None]
    """Parse a value into the fact's value; None if it carries no information. ValueError if it is malformed."""
    write: Callable[[Any], Any]
    """Return the value of the file; True for a flag without a value, None where the key is not written."""
    expects: str  # expected value, for messages: 'a whole number'
    open: str = ""
    """Meaning of a value such as -1 that leaves the fact open: '-1: what is left of the devices'; '' if it only means "unset"."""
    takes: int = 1  # words that a flag of this kind takes: 0, 1, or -1 for all up to the next flag


def _whole(value: Any) -> int:
    if isinstance(value, bool | tuple):
        raise ValueError("not a number")
    if isinstance(value, int):
        return _bounded(value)
    text = str(value).strip().replace("_", "").replace(",", "")
    if not re.fullmatch(r"[+-]?\d{1,18}", text):
        number = float(text)
        if number != int(number):
            raise ValueError(value)
        return _bounded(int(number))
    return _bounded(int(text))


def _bounded(value: int) -> int:
    """Refuse a number that no file means: those of hundreds of digits fit no array."""
    if abs(value) > MAX_WHOLE:
        raise ValueError("too large")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError(value)
    number = float(str(value).replace("_", ""))
    if number != number or abs(number) == float("inf"):
        raise ValueError(value)
    return number


def _truth(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in TRUE_WORDS:
        return True
    if text in FALSE_WORDS or text in ("none", "null", ""):
        return False
    raise ValueError(value)


def _text(value: Any) -> str:
    if isinstance(value, tuple | bool) or value is None:
        raise ValueError("not a word")
    return str(value)


def _list(value: Any) -> tuple[str, ...]:
    if isinstance(value, tuple):
        return tuple(str(item) for item in value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return tuple(re.sub(r"[\[\]\"',]", " ", str(value)).split())


INT = Kind(_whole, int, "a whole number")
COUNT = Kind(lambda value: int(value) if int(value) > 0 else None, int, "a whole number")
"""A number of steps, of which 0 and -1 say nothing."""
NUMBER = Kind(_number, float, "a number")
BOOL = Kind(_truth, bool, "true or false")
TEXT = Kind(_text, str, "a word")
VERBS = ("serve", "run", "pull", "launch-server")
MODEL = Kind(lambda value: None if value in VERBS else _text(value), str, "a model")
"""A model that stands beside verbs of its program, as in `vllm serve MODEL` and `ollama run MODEL`."""
WORDS = Kind(_list, list, "words", takes=-1)


def flag(value: Value = True) -> Kind:
    """Return the kind of a flag without a value, which sets the fact to `value` and is written if the fact has it."""

    def read(given: Any) -> Value | None:
        return value if given is True or _truth(given) else None

    return Kind(read, lambda known: True if known == value else None, "a flag without a value", takes=0)


def switch(on: Value = True, off: Value | None = None) -> Kind:
    """Return the kind of a boolean key: the fact's value for true and for false (None: no information)."""
    return Kind(
        lambda given: on if _truth(given) else off,
        lambda known: True if known == on else False if known == off else None,
        "true or false",
    )


def word(values: Mapping[Any, str], also: Mapping[str, Value | None] | None = None) -> Kind:
    """Return the kind of a key with a few words: `values` maps values of the fact to them; `also` maps words that are only read."""
    by_word: dict[str, Value | None] = {text.lower(): value for value, text in values.items()}
    by_word |= {text.lower(): value for text, value in (also or {}).items()}

    def read(given: Any) -> Value | None:
        text = str(given).strip().lower()
        if text not in by_word:
            raise ValueError(given)
        return by_word[text]

    return Kind(read, lambda known: values.get(known), f"one of {', '.join(dict.fromkeys(values.values()))}")
