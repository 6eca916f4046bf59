"""Verbs as tools for agents: input from the fields of a question, a short text, and the command and resource behind it."""

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from rich.console import Console

from meshwise import api
from meshwise.audit.ask import AuditAsk
from meshwise.audit.check.ask import CheckAsk
from meshwise.catalogue import files
from meshwise.errors import UserError, nearest, one_of, quoted
from meshwise.models import find
from meshwise.plan.ask import ServeAsk, TrainAsk
from meshwise.plan.fields import Ask, spec
from meshwise.plan.train.plan import TrainPlan
from meshwise.replay.ask import ReplayAsk
from meshwise.ui import views
from meshwise.ui.views.tables import as_json
from meshwise.ui.web import asking
from meshwise.ui.web.answers import Kept

Words = Mapping[str, Any]
WIDTH = 110  # columns of a text
MAX_TEXT_CHARS = 8000  # characters of an answer, so that it does not fill an agent's context; the resource has the rest
MAX_ROWS = 3  # layouts of a plan, unless `top` asks for more
MAX_FILES, MAX_FILES_CHARS = 16, 2_000_000
MAX_LISTED = 40  # entries of a catalogue that one answer lists
MAX_RESULTS = 64  # answers that stay readable as resources
RESULT = "meshwise://results/"
TABLE = "meshwise://tables/"
FILES = {
    "type": "object", "additionalProperties": {"type": "string"}, "maxProperties": MAX_FILES,
    "description": "The text of each file, by its name.",
}  # fmt: skip
FORM = {
    "type": "object",
    "properties": {
        "command": {"type": "string", "description": "The command line that gives the same answer; '' where there is none."},
        "resource": {"type": "string", "description": "URI of the whole answer as JSON; '' where there is none."},
        "exit_code": {"type": "integer", "description": "0: it fits or holds; 1: it does not."},
    },
    "required": ["command", "resource", "exit_code"],
}


@dataclass(frozen=True)
class Answer:
    """A short text, and the result that it shows; no result where nothing more is to be read."""

    text: str
    result: Any = None
    code: int = 0


@dataclass
class Desk:
    """The results of one server by number, and answers that are kept by question."""

    kept: Kept = field(default_factory=Kept)
    results: dict[str, Any] = field(default_factory=dict[str, Any])
    count: int = 0

    def keep(self, result: Any) -> str:
        """Keep a result, and return its URI. The oldest goes first."""
        for uri, other in self.results.items():
            if other is result:
                return uri
        self.count += 1
        self.results[f"{RESULT}{self.count}"] = result
        while len(self.results) > MAX_RESULTS:
            del self.results[next(iter(self.results))]
        return f"{RESULT}{self.count}"

    def find(self, uri: str) -> Any:
        if uri not in self.results:
            raise UserError(f"there is no result {quoted(uri)}; known: {', '.join(self.results) or 'none yet'}")
        return self.results[uri]


@dataclass(frozen=True)
class Tool:
    """One tool: its description, the JSON Schema of its input, and its answer."""

    about: str
    schema: dict[str, Any]
    answer: Callable[[Desk, Words], Answer]


def schema(cls: type[Ask], required: tuple[str, ...] = (), hidden: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    """Return the JSON Schema of a question's fields, with further properties."""
    inputs = [each for group in asking.groups(cls, [], hidden) for each in group.inputs]
    return {"type": "object", "properties": {each.name: _property(cls, each) for each in inputs} | more, "required": list(required),
            "additionalProperties": False}  # fmt: skip


def _property(cls: type[Ask], shown: asking.Input) -> dict[str, Any]:
    kind = spec(cls)[shown.name].kind
    about = shown.help + (f" Default: {shown.placeholder}." if shown.placeholder else "")
    if not kind.metavar:
        return {"type": "boolean", "description": about}
    if kind.repeated:
        return {"type": "array", "items": {"type": "string"}, "description": about}
    return {"type": ["string", "number"], "description": about} | ({"examples": list(shown.options)} if shown.options else {})


def pairs(words: Words) -> list[tuple[str, str]]:
    """Return arguments as the query of a page, so that they are read under its limits."""
    found: list[tuple[str, str]] = []
    for name, value in words.items():
        items = cast(list[Any], value) if isinstance(value, list) else [value]
        found += [(name, str(int(item)) if isinstance(item, bool) else str(item)) for item in items]
    return found


def text(result: Any, **options: Any) -> str:
    """Return the view of a result without colours, cut at MAX_TEXT_CHARS."""
    view = views.of(result, WIDTH, **options)
    out = io.StringIO()
    Console(file=out, width=WIDTH, color_system=None, markup=False, emoji=False, highlight=False).print(view, soft_wrap=True)
    lines = "\n".join(line.rstrip() for line in out.getvalue().splitlines())
    return lines if len(lines) <= MAX_TEXT_CHARS else lines[:MAX_TEXT_CHARS] + "\n... (cut; the resource has all of it)"


def plan(desk: Desk, words: Words) -> Answer:
    ask = asking.question(TrainAsk, pairs({"top": MAX_ROWS, **words}))
    made = desk.kept.get(("plan", ask), lambda: api.plan(**vars(ask)))
    return Answer(text(made, why=api.explain(made), verbose=False), made)


def serve(desk: Desk, words: Words) -> Answer:
    ask = asking.question(ServeAsk, pairs({"top": MAX_ROWS, **words}))
    made = desk.kept.get(("serve", ask), lambda: api.serve(**vars(ask)))
    commands = [line for lines in made.commands.values() for line in lines]
    return Answer("\n".join([text(made, verbose=False), "start:", *commands]), made)


def explain(desk: Desk, words: Words) -> Answer:
    made = desk.find(words["plan"])
    if not isinstance(made, TrainPlan):
        raise UserError(f"{words['plan']}: expected the resource of a training plan")
    explained = api.explain(made, words.get("versus", ""))
    return Answer("\n".join(explained.reasons), explained)


def replay(desk: Desk, words: Words) -> Answer:
    ask = asking.replayed(pairs(words))
    given = {name: value for name, value in vars(ask).items() if name not in ("model", "trace")}
    result = desk.kept.get(("replay", ask), lambda: api.replay(ask.model, trace=ask.trace, **given))
    return Answer(text(result), result, int(bool(result.targets) and not result.figures.holds))


def count(desk: Desk, words: Words) -> Answer:
    model = str(words["model"])
    if ".toml" in str(words.get("on", "")).lower():
        raise UserError(f"on {quoted(words['on'])}: no file is read here; use the command line for one")
    if not api.is_preset(model):
        raise UserError(f"{quoted(model)} is not in the catalogue{nearest(model, api.names('models'))} (tool show, models)")
    made = api.count(**{name: str(value) for name, value in words.items()})  # pyright: ignore[reportArgumentType]
    return Answer(text([made]), made)


@find.catalogue_alone()
def check(desk: Desk, words: Words) -> Answer:
    ask = asking.question(CheckAsk, pairs({name: value for name, value in words.items() if name != "files"}))
    verdict = api.check(_texts(words), **vars(ask))
    return Answer(f"{verdict.line}\n{text(verdict, verbose=False)}", verdict, verdict.code)


@find.catalogue_alone()
def audit(desk: Desk, words: Words) -> Answer:
    texts = _texts(words)
    ask = asking.question(AuditAsk, pairs({name: value for name, value in words.items() if name != "files"}))
    figures = {name: value for name, value in vars(ask).items() if value not in ("", 0, 0.0, None)}
    with TemporaryDirectory(prefix="meshwise-") as folder:  # readers of logs take files
        paths = [Path(folder, asking.safe_name(name)) for name in texts]
        for path, content in zip(paths, texts.values(), strict=True):
            path.write_text(content, encoding="utf-8")
        result = api.audit(*paths, **figures)
    return Answer(text(result).replace(f"{folder}/", ""), result)


def _texts(words: Words) -> dict[str, str]:
    texts = cast(dict[str, str], words.get("files", {}))
    if len(texts) > MAX_FILES or sum(map(len, texts.values())) > MAX_FILES_CHARS:
        raise UserError(
            f"files: expected at most {MAX_FILES} files of {MAX_FILES_CHARS:,} characters in all; use the command line"
        )
    return texts


def show(desk: Desk, words: Words) -> Answer:
    catalogue, name = one_of("catalogue", str(words["catalogue"]), api.CATALOGUES), str(words.get("name", ""))
    if ".toml" in name.lower() or "/" in name:
        raise UserError(f"{quoted(name)}: no file is read here; use the command line for one")
    entry = api.look_up(catalogue, name) if name and (catalogue != "models" or api.is_preset(name)) else None
    if entry is not None:
        return Answer(text(entry, name=name))
    rows = [row for row in api.names(catalogue) if name.lower() in row.lower()]
    more = f"\n... and {len(rows) - MAX_LISTED} more: give a part of the name" if len(rows) > MAX_LISTED else ""
    return Answer("\n".join(rows[:MAX_LISTED]) + more if rows else f"no name in {catalogue} contains {quoted(name)}")


def _object(required: tuple[str, ...], **properties: str) -> dict[str, Any]:
    """Return the JSON Schema of a few texts, by their descriptions."""
    shown = {name: {"type": ["string", "number"], "description": about} for name, about in properties.items()}
    return {"type": "object", "properties": shown, "required": list(required), "additionalProperties": False}


def tools() -> dict[str, Tool]:
    """Return the tools by name."""
    hidden = ("measured", "measured_of", "cheapest", "by")
    return {
        "plan": Tool("Find the fastest layouts to train or fine-tune a model on a cluster, with time, memory, MFU and cost.",
                     schema(TrainAsk, ("model", "on", "batch")), plan),
        "serve": Tool("Find the best layouts to serve a model on devices: does it fit, how fast, and the commands that start it.",
                      schema(ServeAsk, ("model", "on"), hidden), serve),
        "count": Tool("Count parameters, FLOPs, caches and bytes of a model; with 'on' and 'batch', the time of training on a cluster.",
                      _object(("model",), model="A preset, such as llama-3-8b.", seq="Sequence length: 4k.", tokens="Tokens: 15T.",
                              on="Cluster: 8xh100-sxm.", batch="Sequences, or tokens: 4M.", mfu="Assumed MFU: 40%."), count),
        "check": Tool("Check launch scripts or configurations of training and serving programs: do they start, fit, run fast?",
                      schema(CheckAsk, ("files",), files=FILES), check),
        "audit": Tool("Check reported results (texts of logs and tables, or figures): derived figures, contradictions, what to try next.",
                      schema(AuditAsk, files=FILES), audit),
        "explain": Tool("Explain why the best layout of a training plan won, against the runner-up or another, and what would change it.",
                        _object(("plan",), plan="Resource of a plan.", versus="A layout to compare with: tp=8,pp=4."), explain),
        "replay": Tool("Replay built-in or made traffic through a served model: latency, goodput, cost.",
                       schema(ReplayAsk, ("model", "on"), hidden), replay),
        "show": Tool("List the names of a catalogue that contain a text, or show the facts of one entry.",
                     _object(("catalogue",), catalogue=f"One of {', '.join(api.CATALOGUES)}.", name="A name, or a part of one."), show),
    }  # fmt: skip


def resources(desk: Desk) -> dict[str, str]:
    """Return what can be read beside the results: their URIs with a sentence each."""
    made = {uri: repr(result) for uri, result in desk.results.items()}
    return made | {f"{TABLE}{name}": f"Table of measurements: {name}." for name in api.names("measurements")}


def read(desk: Desk, uri: str) -> tuple[str, str]:
    """Return a resource and its media type."""
    if uri.startswith(TABLE):
        name = uri.removeprefix(TABLE)
        if name not in api.names("measurements"):
            raise UserError(f"there is no table {quoted(name)}{nearest(name, api.names('measurements'))}")
        return files.text_of(files.files("measurements", ".csv")[name]), "text/csv"
    return as_json(desk.find(uri).to_json()), "application/json"
