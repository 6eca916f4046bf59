"""A better layout as changes in the file's own words, and the file with these changes, everything else byte for byte."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from meshwise.programs import forms
from meshwise.programs.program import KERNELS, Key, Program, Setup
from meshwise.runs.fields import BY_NAME
from meshwise.runs.run import ENVIRONMENT, Run, Span, Stated, Value

CHANGEABLE_GROUPS = ("layout", "stages", "batch")
"""Groups of facts that a better layout changes; the model, the task and the machine stay."""


@dataclass(frozen=True)
class Change:
    """One key of a file that a better layout says otherwise."""

    action: Literal["replace", "insert", "remove"]
    key: str
    old: str
    new: str
    span: Span | None  # where the old value is; None for a key that is not in the file

    def __str__(self) -> str:
        if self.action == "insert":
            return f"add {self.key} {self.new}".strip()
        if self.action == "remove":
            return f"remove {self.key} {self.old}".strip()
        return f"{self.key} {self.old} -> {self.new}"


def changes(programs: Sequence[Program], facts: Run, own: Setup | None, better: Setup, *, old: bool = False) -> list[Change]:
    """Return the changes of keys that turn the facts of files, `own`, into a better layout's; `old`: also remove keys no longer written."""
    found: dict[str, Change] = {}
    main = programs[0]
    for number, program in enumerate(programs):
        wanted = {**program.wording(better), **main.wording(better)}
        words = {**program.wording(own), **main.wording(own)} if own is not None else {}
        for name in dict.fromkeys(row.fact for row in program.keys if _changeable(row.fact)):
            if name not in wanted and name not in words and not old:
                continue  # neither layout says it
            same = own is not None and words.get(name) == wanted.get(name)
            if same and not (facts.says(name) and facts.value(name) != wanted.get(name)):
                continue
            for change in _of_fact(program, facts, name, wanted.get(name)):
                if number == 0 or change.span is not None:
                    found.setdefault(change.key, change)
    if found and facts.value("batch") is None:  # it follows from the ranks and micro-batches, which change
        for change in _of_fact(main, facts, "batch", main.wording(better).get("batch")):
            found.setdefault(change.key, change)
    return [change for change in found.values() if change.old != change.new or change.action != "replace"]


OF_THE_MODEL = frozenset([
    "tokenizer", "vocab_file", "grouped_gemm", "latent", "layer_kinds", "grouped", "rotary", "microsoft", "batch_schedule",
    "embedding_norm", "family", "flavor", "converters", "module", "config", "config_file", "deepspeed", "deepspeed_file",
])  # fmt: skip
"""Facts of programs' own about the model, the data and further files, which no better layout changes."""


def _changeable(name: str) -> bool:
    if name in BY_NAME:
        return BY_NAME[name].group in CHANGEABLE_GROUPS
    return not name.startswith(KERNELS) and name not in OF_THE_MODEL


def _of_fact(program: Program, facts: Run, name: str, value: Value | None) -> Iterator[Change]:
    """Yield the change of the key that says one fact."""
    rows = [row for row in program.keys if row.fact == name]
    stated = facts.get(name)
    default = next((row.default for row in rows if row.default is not None), None)
    now = stated.value if stated is not None else default
    then = value if value is not None else default
    if now == then or (now is None and then is None):
        return
    said = stated if stated is not None and stated.span is not None and stated.how != "derived" else None
    if said is not None and said.note.startswith("auto"):
        return  # another file fills it in
    row = _row(rows, said, then)
    if row is None:
        return
    text = _text(row, then)
    if said is None:
        if text is not None and (row.write != "never") and then != default:
            yield Change("insert", row.key, "", "" if text is True else str(text), None)
    elif row.kind.takes == 0 or text is None:
        yield Change("remove", said.key, "", "", said.span)
    else:
        yield Change("replace", said.key, _shown(row, said), str(text), said.span)


def _row(rows: Sequence[Key], said: Stated | None, value: Value | None) -> Key | None:
    """Return the row that says a fact in the file, where it can say the new value; else the one that is written."""
    if said is not None:
        own = said.key.lstrip("-").replace("_", "-")
        return next((row for row in rows if own in [name.lstrip("-").replace("_", "-") for name in (row.key, *row.also)]), None)
    return next((row for row in rows if row.write != "never" and _text(row, value) is not None), None)


def _text(row: Key, value: Value | None) -> Any:
    """Return what a row writes for a value: True for a flag alone, None where it is not written."""
    if value is None:
        return None
    try:
        written = row.kind.write(value)
    except (TypeError, ValueError):
        return None
    if isinstance(written, list | tuple):
        return " ".join(str(item) for item in written)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if row.kind.takes == 0 or written is None:
        return written
    return str(written).lower() if isinstance(written, bool) else forms.number(written)


def _shown(row: Key, said: Stated) -> str:
    if said.value is None:
        return said.note.partition(":")[0]
    text = _text(row, said.value)
    return "" if text in (None, True) else str(text)


# The patched text.

MAX_ADDED_LINES = 16  # keys that are added to one file, at most


def patched(texts: Mapping[str, str], facts: Run, wanted: Sequence[Change]) -> dict[str, str]:
    """Return the texts of changed files; a change that has no place is left out, so the caller must read the result again and compare."""
    result = dict(texts)
    inserted = [change for change in wanted if change.action == "insert"]
    for file, text in texts.items():
        own = [change for change in wanted if change.span is not None and change.span.file == file and change.span.writable]
        for change in sorted(own, key=lambda change: -change.span.start if change.span else 0):
            assert change.span is not None
            start = _flag_start(text, change) if change.action == "remove" else change.span.start
            text = text[:start] + change.new + text[change.span.end :]
        result[file] = text
    for change in inserted:
        for file in result:
            done = _inserted(result[file], change, file, facts)
            if done is not None:
                result[file] = done
                break
    return {file: text for file, text in result.items() if text != texts[file]}


def _flag_start(text: str, change: Change) -> int:
    """Return where a key begins that is removed: at the flag before its value, where it is there."""
    assert change.span is not None
    before = re.search(rf"{re.escape(change.key)}(=|\s|\\\n|[\"'])+$", text[: change.span.start])
    return before.start() if before else change.span.start


def _inserted(text: str, change: Change, file: str, facts: Run) -> str | None:
    """Return a text with a key that it did not have, beside a key that it has; None where there is no place for it."""
    said = [one for one in facts if one.how == "said" and one.key and not one.fact.startswith(ENVIRONMENT)]
    anchors = [one for one in said if one.span is not None and one.span.file == file]
    flags = [one.key for one in anchors if one.key.startswith("-")]
    if change.key.startswith("-") or (flags and len(flags) == len(anchors) and "." not in change.key):
        key = change.key if change.key.startswith("-") else f"--{change.key}"  # a word of a YAML that is also a flag
        return _flag(text, f"{key} {change.new}".strip(), flags)
    parent, _, last = change.key.rpartition(".")
    siblings = [one for one in anchors if one.key.rpartition(".")[0] == parent and not one.key.startswith("-")]
    pairs = [one.key for one in anchors if not one.key.startswith("-")]
    pair = next((key for key in pairs if re.search(rf"(?<![\w.-]){re.escape(key)}=", text)), "")
    if pair:
        return re.sub(rf"(?<![\w.-]){re.escape(pair)}=", f"{change.key}={change.new} {pair}=", text, count=1)
    for one in siblings:
        done = _beside(text, one, last, change.new)
        if done is not None:
            return done
    return _section(text, parent, last, change.new, file) if pairs else None


def _flag(text: str, words: str, keys: Sequence[str]) -> str | None:
    """Return a text with a flag before the first flag that it has literally, outside comments."""
    for key in keys:
        for match in re.finditer(rf"(?<![\w-]){re.escape(key)}(?=[\s=\"'\\]|$)", text):
            line = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
            if "#" not in line:
                return f"{text[: match.start()]}{words} {text[match.start() :]}"
    return None


def _beside(text: str, sibling: Stated, name: str, value: str) -> str | None:
    """Return a text with a key on a line of its own before the line of its sibling."""
    assert sibling.span is not None
    lines = text.split("\n")
    key = re.compile(rf"(\s*)(\"?){re.escape(sibling.key.rpartition('.')[2])}\"?\s*([:=])")
    first = max(0, sibling.span.line - 1)  # keys that were added before it may have moved it down
    number = next((i for i in range(first, min(len(lines), first + MAX_ADDED_LINES)) if key.match(lines[i])), -1)
    match = key.match(lines[number]) if number >= 0 else None
    if match is None:
        return None
    indent, quote, sign = match[1], match[2], match[3]
    literal = value if re.fullmatch(r"-?[\d.]+|true|false", value) else json.dumps(value)
    if quote:
        line = f'{indent}"{name}": {literal},'
    elif sign == "=":
        line = f"{indent}{name} = {literal}"
    else:
        line = f"{indent}{name}: {literal}"
    return "\n".join([*lines[:number], line, *lines[number:]])


def _section(text: str, parent: str, name: str, value: str, file: str) -> str | None:
    """Return a text with a new section at its end; None where the file has that section already, or is JSON."""
    literal = value if re.fullmatch(r"-?[\d.]+|true|false", value) else json.dumps(value)
    end = "" if text.endswith("\n") else "\n"
    if file.endswith(".toml"):
        return f"{text}{end}\n[{parent}]\n{name} = {literal}\n" if f"[{parent}]" not in text else None
    if text.lstrip().startswith("{") or re.search(rf"^{re.escape(parent.split('.')[0])}:", text, re.MULTILINE):
        return None
    body = "".join(f"{'  ' * depth}{part}:\n" for depth, part in enumerate(parent.split("."))) if parent else ""
    depth = len(parent.split(".")) if parent else 0
    return f"{text}{end}{body}{'  ' * depth}{name}: {literal}\n"


Reread = Callable[[Mapping[str, str]], Mapping[str, Value | None]]


def applied(
    texts: Mapping[str, str], facts: Run, wanted: Sequence[Change], reread: Reread, layout: Mapping[str, Value | None]
) -> dict[str, str]:
    """Return the files that change, where reading them again gives the wanted layout and the same task; {} where it does not."""
    done = patched(texts, facts, wanted)
    if not done:
        return {}
    return done if reread({**texts, **done}) == layout else {}
