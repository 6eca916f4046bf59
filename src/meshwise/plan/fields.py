"""Fields of a question: each defines once how its values are parsed and printed, its help text and the heading under which help lists it.

A question (`TrainAsk`, `ServeAsk`, `TrainRun`, ...) is a frozen dataclass of such fields. The flags of the command line, the command that
reproduces a plan, the JSON, the axes of `--vary` and the keywords of the API are derived from them.
"""

import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from functools import cache
from os import PathLike
from typing import Any, ClassVar, Generic, TypeVar, dataclass_transform

from meshwise import units
from meshwise.catalogue import files
from meshwise.errors import UserError, nearest, quoted

In = TypeVar("In")
Out = TypeVar("Out")
Question = TypeVar("Question")
AskType = TypeVar("AskType", bound="Ask")


@dataclass(frozen=True)
class Kind(Generic[In, Out]):
    """How a field's values are parsed and printed: `read` takes text or a parsed value; `write` returns text that `read` accepts."""

    read: Callable[[In], Out]
    write: Callable[[Any], str]
    metavar: str = "TEXT"  # placeholder for a value in help; '' for a flag that takes none
    ordered: bool = False  # whether values are numbers, so that a range of them can be varied
    whole: bool = True  # whether those numbers are whole
    repeated: bool = False  # whether a flag may be given several times

    def __call__(self, value: In, /) -> Out:
        return self.read(value)


@dataclass(frozen=True)
class About:
    """Everything about one field of a question: its kind of values, help text, group, flag and default."""

    kind: Kind[Any, Any]
    help: str
    group: str = ""  # the heading in help; '' for the main options
    flag: str = ""  # its flag, where that is not --name; several are separated by commas
    complete: str = ""  # the catalogue that shell completion takes names from: models, chips, clusters, frameworks, engines
    vary: str = ""  # an example of values for `--vary`; '' where it cannot be varied
    shown: str = ""  # the default in words, where the value alone does not explain it


def asked(*, default: In, converter: Kind[In, Out], help: str = "", shown: str = "", kw_only: bool = True) -> Out:
    """Return a field of a question; `default` may be text. data/questions.toml holds its other words, such as its group."""
    about = About(converter, help, shown=shown)
    return field(default=converter(default), metadata={"asked": about}, kw_only=kw_only)


@cache
def _words() -> dict[str, dict[str, dict[str, str]]]:
    """Return the words of fields by question and field."""
    return tomllib.loads((files.BUILT_IN / "questions.toml").read_text(encoding="utf-8"))


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(asked,))
def question(cls: type[Question]) -> type[Question]:
    """Turn a class into a frozen dataclass of `asked` fields, whose constructor parses text values."""
    for name, words in _words().get(cls.__name__, {}).items():
        asked_field = vars(cls)[name]
        asked_field.metadata = {"asked": replace(asked_field.metadata["asked"], **words)}
    return dataclass(frozen=True, kw_only=True)(cls)


class Ask:
    """The base class of every question. Subclasses are made with `@question`."""

    verb: ClassVar[str] = ""  # the verb of the command line that takes these flags

    def __post_init__(self) -> None:
        for name, about in spec(type(self)).items():
            try:
                object.__setattr__(self, name, about.kind(getattr(self, name)))
            except UserError as error:
                text = str(error)
                raise UserError(text if text.startswith("--") else f"{flag_of(name, about)} {text}") from None

    def words(self) -> list[str]:
        """Return the command-line arguments of this question: the fields that differ from their default."""
        arguments: list[str] = []
        for name, about in spec(type(self)).items():
            value = getattr(self, name)
            if value == defaults(type(self))[name]:
                continue
            if not field_of(type(self), name).kw_only:
                arguments.append(about.kind.write(value))
            elif not about.kind.metavar:
                arguments.append(flag_of(name, about) if value else flag_of(name, about).replace("--", "--no-", 1))
            else:
                for item in value if about.kind.repeated else (value,):
                    arguments += [flag_of(name, about), about.kind.write(item)]
        return arguments

    def command(self, *more: str) -> str:
        """Return the command that reproduces this question, followed by `more` arguments."""
        return shlex.join(["meshwise", self.verb, *self.words(), *more])


def spec(cls: type[Any]) -> dict[str, About]:
    """Return the fields of a question by name, in order: its arguments, then its flags."""
    return {f.name: f.metadata["asked"] for f in sorted(fields(cls), key=lambda f: f.kw_only is True) if "asked" in f.metadata}


def defaults(cls: type[Any]) -> dict[str, Any]:
    return {f.name: f.default for f in fields(cls) if f.default is not MISSING}


def field_of(cls: type[Any], name: str) -> Field[Any]:
    return next(f for f in fields(cls) if f.name == name)


def flag_of(name: str, about: About) -> str:
    """Return the flag of a field: '--at-most' for at_most; the first where a field has several."""
    return about.flag.partition(",")[0] or "--" + name.replace("_", "-")


def given(cls: type[AskType], words: Mapping[str, Any]) -> AskType:
    """Return a question from keywords. UserError with the nearest name where a keyword is unknown."""
    known = spec(cls)
    for name in words:
        if name not in known:
            raise UserError(f"{cls.__name__} has no {quoted(name)}{nearest(name, known) or '; known: ' + ', '.join(known)}")
    return cls(**words)


def parameters(cls: type[Any]) -> Iterator[str]:
    """Yield one line per keyword, for docstrings."""
    for name, about in spec(cls).items():
        yield f"{name}: {about.help}"


# Kinds of values.


_METAVARS = {
    "seconds": "TIME", "bytes/s": "RATE", "share": "SHARE", "count": "COUNT", "dollars/s": "PRICE", "bytes": "SIZE",
    "FLOP/s": "RATE",
}  # fmt: skip


def quantity(name: str, *, least: float = 0.0, positive: bool = False, metavar: str = "") -> Kind[str | float, float]:
    """Return the kind of a number with a unit, in SI; 0 where nothing is given."""

    def read(value: str | float) -> float:
        number = units.parse(value, name) if value != "" else 0.0
        if positive and value not in ("", 0.0, 0) and not number > least:
            raise UserError(f"{quoted(value)}: expected more than {least:g}")
        return number

    return Kind(read, lambda value: units.exactly(value, name), metavar or _METAVARS[name], ordered=True, whole=False)


def _write_length(value: int) -> str:
    text = units.show(float(value), "length")
    return text if value and units.parse(text, "length") == value else str(value)


def _text(value: "str | PathLike[str]") -> str:
    if not isinstance(value, str | PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers of the API may pass anything
        raise UserError(f"expected a text, found {quoted(value)}")
    return str(value).strip()


def whole(least: int = 1, most: int = 10**6) -> Kind[str | int, int]:
    """Return the kind of a whole number from `least` to `most`; 0 where nothing is given."""

    def read(value: str | int) -> int:
        digits = str(value).strip().replace("_", "").replace(",", "")
        number = int(digits) if digits.isdecimal() and len(digits) < 12 else -1
        if value == "" or (not isinstance(value, str) and value == 0):
            return 0
        if not least <= number <= most:
            raise UserError(f"{quoted(value)}: expected a whole number from {least:,} to {most:,}")
        return number

    return Kind(read, str, "N", ordered=True)


def number(least: float, most: float) -> Kind[str | float, float]:
    """Return the kind of a number without a unit, from `least` to `most`."""

    def read(value: str | float) -> float:
        try:
            parsed = float(value)
        except ValueError:
            parsed = float("nan")
        if not least <= parsed <= most:
            raise UserError(f"{quoted(value)}: expected a number from {least:g} to {most:g}")
        return parsed

    return Kind(read, lambda value: f"{value:g}" if float(f"{value:g}") == value else repr(value), "X", ordered=True, whole=False)


def optional(kind: Kind[In, Out]) -> Kind[In | None, Out | None]:
    """Return a kind whose values may also be None: not given."""
    return Kind(
        lambda value: None if value is None or value == "" else kind(value),
        kind.write, kind.metavar, kind.ordered, kind.whole, kind.repeated,
    )  # fmt: skip


def choice(*valid: str) -> Kind[str, str]:
    """Return the kind of a value that is one of `valid`; '' where nothing is given."""

    def read(value: str) -> str:
        if value and value not in valid:
            raise UserError(f"{quoted(value)}: expected one of {', '.join(valid)}{nearest(value, valid)}")
        return value

    return Kind(read, str, "|".join(valid))


TEXT: "Kind[str | PathLike[str], str]" = Kind(_text, str)
TEXTS: "Kind[str | list[str] | tuple[str, ...], tuple[str, ...]]" = Kind(
    lambda value: (value,) if isinstance(value, str) and value else tuple(value), str, repeated=True
)
LENGTH: Kind[str | int, int] = Kind(
    lambda value: units.whole_length(value) if value else 0, _write_length, "TOKENS", ordered=True
)
FLAG: Kind[bool, bool] = Kind(bool, str, "")
SECONDS = quantity("seconds")
RATE = quantity("bytes/s", positive=True)
SHARE = quantity("share")
COUNT = quantity("count")
PRICE = quantity("dollars/s", positive=True)
