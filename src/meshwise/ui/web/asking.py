"""Questions from query strings, and forms from questions. A form has one input per field of an Ask; an empty one means the default.

No file of the machine is read for a query: models are presets, or were named on the command line; a cluster or calibration is never a file.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlencode

from meshwise import api
from meshwise.catalogue import files
from meshwise.errors import UserError, nearest, quoted
from meshwise.plan.axes import SERVE_AXES, TRAIN_AXES
from meshwise.plan.fields import About, Ask, defaults, field_of, flag_of, given, spec
from meshwise.plan.vary import parse
from meshwise.replay.ask import ReplayAsk
from meshwise.replay.traces.trace import SUFFIX

Pairs = Sequence[tuple[str, str]]  # a query string, decoded
Asked = TypeVar("Asked", bound=Ask)
LISTED_CATALOGUES = ("frameworks", "engines")  # catalogues short enough for a drop-down list
FILES = ("data", "lengths", "read")  # fields that name a file, or say how to read one, which a page does not
MAX_VALUE_CHARS = 300  # characters of one value, at most
MAX_ROWS = 100  # layouts that a page lists, at most
MAX_NODE_COUNTS = 64  # node counts that a page tries for --at-most: each is a search of its own
LABELS = {
    "on": "devices", "top": "rows to list", "seq": "sequence length", "fix": "fixed axes", "allow": "bounds of axes",
    "kv": "KV cache", "ttft": "time to first token", "tpot": "time per token", "e2e": "time of a request", "ram": "host memory",
    "mtbf": "time between failures", "pue": "power of the building", "set": "variables of the file",
}  # fmt: skip
"""Labels of fields whose flag is no word that people use."""
MAX_PAGE_REQUESTS = 50_000  # requests that a page replays, at most; the command line takes 20 million
TRUE_WORDS = ("1", "on", "true", "yes")
PRESSED, RELEASED = "1", "0"


@dataclass(frozen=True)
class Input:
    """One input of a form."""

    name: str
    label: str
    help: str
    kind: str  # text, choice, flag, or search: text with names that the server suggests
    value: str
    placeholder: str
    options: tuple[str, ...] = ()
    catalogue: str = ""  # the catalogue that `search` looks in
    flag: str = ""


@dataclass(frozen=True)
class Group:
    """The inputs under one heading; `opened`: one of them has a value."""

    title: str
    inputs: tuple[Input, ...]

    @property
    def opened(self) -> bool:
        return any(each.value for each in self.inputs)


def words(cls: type[Ask], query: Pairs, others: Collection[str] = ()) -> dict[str, Any]:
    """Return the fields of a question that a query gives, as texts. `others` are parameters of the page itself. UserError for a name
    that is neither."""
    known, found = spec(cls), dict[str, Any]()
    for name, value in query:
        if name in others:
            continue
        if name not in known:
            raise UserError(f"there is no field {quoted(name)}{nearest(name, known)}")
        if len(value) > MAX_VALUE_CHARS or not value.isprintable():
            raise UserError(f"{flag_of(name, known[name])}: the value is too long, or has characters that cannot be printed")
        if not value.strip():
            continue
        if not known[name].kind.metavar:
            found[name] = value.lower() in TRUE_WORDS
        elif known[name].kind.repeated:
            found.setdefault(name, []).append(value)
        else:
            found[name] = value
    return found


def question(cls: type[Asked], query: Pairs, named: Collection[str] = (), others: Collection[str] = ()) -> Asked:
    """Return the question that a query asks. `named`: files that were named on the command line, which may stand for a model."""
    asked = words(cls, query, others)
    for name, value in asked.items():
        if name in FILES:
            raise UserError(f"--{name} {quoted(value)}: the page reads no files; use the command line for one")
        about = spec(cls)[name]
        for text in value if isinstance(value, list) else [value]:  # pyright: ignore[reportUnknownVariableType]
            _refuse_files(str(text), about, flag_of(name, about), named)  # pyright: ignore[reportUnknownArgumentType]
    ask = given(cls, asked)
    _refuse_long_searches(ask)
    return ask


def replayed(query: Pairs, named: Collection[str] = ()) -> ReplayAsk:
    """Return the question of a replay whose trace is built in or made, and short."""
    ask = question(ReplayAsk, query, named)
    known = files.files("traces", SUFFIX)
    if ask.trace and ask.trace not in known:
        raise UserError(f"--trace {quoted(ask.trace)}: the page reads no files; it has {', '.join(known)}, and --make")
    if ask.cheapest:
        raise UserError("--cheapest replays a trace many times: use the command line")
    if ask.rate * ask.hours * 3600 * ask.scale_users > MAX_PAGE_REQUESTS or (ask.trace and ask.scale_users > 4):
        raise UserError(f"a page replays at most {MAX_PAGE_REQUESTS:,} requests; the command line takes more")
    return ask


def _refuse_files(text: str, about: About, flag: str, named: Collection[str]) -> None:
    """Refuse a value for which a file would be read, or the hub be asked."""
    if about.complete == "models" and text not in named and not api.is_preset(text):
        close = nearest(text.partition(":")[0], api.names("models"))
        raise UserError(
            f"{quoted(text)} is not in the catalogue{close}; for a file or a Hugging Face id use the command line: meshwise plan {text}"
        )
    if ".toml" in text.lower():
        raise UserError(f"{flag} {quoted(text)}: the page reads no files; use the command line for one")


def _refuse_long_searches(ask: Ask) -> None:
    if getattr(ask, "top", 0) > MAX_ROWS:
        raise UserError(f"--top {getattr(ask, 'top', 0)}: a page lists at most {MAX_ROWS} layouts; the command line has no limit")
    nodes = "".join(c for c in getattr(ask, "at_most", "") if c.isdecimal())
    if nodes and (len(nodes) > 4 or int(nodes) > MAX_NODE_COUNTS):
        raise UserError(f"--at-most {nodes} nodes: a page tries at most {MAX_NODE_COUNTS}; the command line has no limit")


def groups(cls: type[Ask], query: Pairs, hidden: Collection[str] = (), examples: Mapping[str, str] | None = None) -> list[Group]:
    """Return the form of a question with the values of a query, its inputs in groups; the main inputs come first. `examples` are shown in
    empty inputs instead of defaults."""
    texts: dict[str, str] = {}
    for name, value in query:
        texts[name] = f"{texts[name]}, {value}" if name in texts else value
    inputs: dict[str, list[Input]] = {}
    for name, about in spec(cls).items():
        if name not in hidden and name not in FILES:
            inputs.setdefault(about.group, []).append(
                _input(cls, name, about, texts.get(name, "").strip(), (examples or {}).get(name, ""))
            )
    return [Group(title, tuple(each)) for title, each in inputs.items()]


def _input(cls: type[Ask], name: str, about: About, value: str, example: str) -> Input:
    words, default = about.kind.metavar.split("|"), defaults(cls)[name]
    empty = isinstance(default, bool) or default in (None, "", 0, 0.0, ())
    shown = example or about.shown or ("" if empty else about.kind.write(default))
    kind, options = "text", suggestions(cls, name, about)
    if not about.kind.metavar:
        kind = "flag"
    elif len(words) > 1:
        kind, options = "choice", tuple(word for word in words if word)
    elif about.complete in LISTED_CATALOGUES:
        kind, options = "choice", tuple(api.names(about.complete))
    elif about.complete:
        kind = "search"
    needed, words_of = not field_of(cls, name).kw_only, flag_of(name, about).removeprefix("--").replace("-", " ")
    return Input(
        name=name, label=LABELS.get(name, "model" if needed else words_of), help=about.help,
        kind=kind, value=value, placeholder=shown, options=options, catalogue=about.complete if kind == "search" else "",
        flag=flag_of(name, about) if not needed else "",
    )  # fmt: skip


def suggestions(cls: type[Ask], name: str, about: About) -> tuple[str, ...]:
    """Return values to pick from: the example of the field's axis, spelled out ('4k..128k' is 4k, 8k, 16k, ...)."""
    axes: Any = TRAIN_AXES if cls.verb == "plan" else SERVE_AXES
    asked: Any = cls()
    if not about.vary or name not in axes:
        return ()
    (varied,) = parse([f"{name}={about.vary}"], axes, asked)
    return tuple(varied.axis.show(value, asked) for value in varied.values)


def query_of(ask: Ask) -> list[tuple[str, str]]:
    """Return a question as a query: the fields that differ from their default."""
    pairs: list[tuple[str, str]] = []
    for name, about in spec(type(ask)).items():
        value = getattr(ask, name)
        if value == defaults(type(ask))[name] or value is None:
            continue
        if not about.kind.metavar:
            pairs.append((name, PRESSED if value else RELEASED))
        else:
            pairs += [(name, about.kind.write(item)) for item in (value if about.kind.repeated else (value,))]
    return pairs


def changed(query: Pairs, **values: str) -> str:
    """Return a query string with some parameters replaced; an empty value removes one."""
    kept = [(name, value) for name, value in query if name not in values and value]
    return urlencode([*kept, *((name, value) for name, value in values.items() if value)])


def one(query: Iterable[tuple[str, str]], name: str, default: str = "") -> str:
    """Return the last value of a parameter."""
    return ([value for key, value in query if key == name] or [default])[-1]


def safe_name(name: str) -> str:
    """Return the last part of a file's name, without characters that mean something to a file system."""
    last = name.replace("\\", "/").rpartition("/")[2]
    kept = "".join(c for c in last if c.isalnum() or c in "._- ")[-80:].lstrip(". ")
    return kept or "upload.log"


def number(query: Iterable[tuple[str, str]], name: str, least: int, most: int) -> int | None:
    """Return a whole number of the query; None where it is not given. UserError where it is out of range."""
    text = one(query, name)
    if not text:
        return None
    if not text.isdecimal() or len(text) > 9 or not least <= int(text) <= most:
        raise UserError(f"{name} {quoted(text)}: expected a whole number from {least} to {most}")
    return int(text)
