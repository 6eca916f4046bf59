"""Words of a command line as settings: '--a b', '--a=b', '--a b c', flags alone; and 'a.b=c' of Hydra and MaxText."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import cast

from meshwise.programs.bash.budget import spend
from meshwise.programs.program import Program, plain_key
from meshwise.programs.source import Scalar, Setting, Unknown, Word
from meshwise.runs.run import Span

_FLAG = re.compile(r"--?[A-Za-z]")
_PAIR = re.compile(r"\+{0,2}[A-Za-z_][\w.@/-]*=")
_SUBCOMMAND = re.compile(r"([a-z][a-z-]+):([a-z][a-z-]*)")


POSITIONAL = "positional"  # the key of words that belong to no flag, such as the model of `vllm serve MODEL`


def settings(words: Sequence[Word], takes: Mapping[str, int]) -> list[Setting]:
    """Return the settings of a command line; `takes`: the words of each known flag, -1 for all up to the next, as an unknown one does."""
    found: list[Setting] = []
    i = 0
    while i < len(words):
        word = words[i]
        i += 1
        spend()
        if not _FLAG.match(word.text):
            found += _pair(word)
            continue
        name, equals, value = word.text.partition("=")
        if equals:
            found.append(Setting(name, _value(value, word.unknown), _after_equals(word, len(name) + 1)))
            continue
        most = takes.get(plain_key(name), -1)
        taken: list[Word] = []
        while i < len(words) and (most < 0 or len(taken) < most) and not _begins(words[i].text, most):
            taken.append(words[i])
            i += 1
        found.append(_setting(name, word, taken))
    return [*found, *(member for one in found if str(one.value).startswith("{") for member in _members(one))]


def _members(one: Setting) -> list[Setting]:
    """Return the members of a JSON object, '--a {"b": 1}', as programs name them too: '--a.b 1'."""
    try:
        values: object = json.loads(str(one.value))
    except (ValueError, RecursionError):
        return []
    pairs = cast(dict[str, object], values).items() if isinstance(values, dict) else ()
    span = Span(one.span.file, one.span.line)
    return [Setting(f"{one.key}.{name}", value, span) for name, value in pairs if isinstance(value, int | float | str)]


def _begins(text: str, most: int) -> bool:
    """Return whether a word begins a setting of its own; after a flag that is not known, 'a.b=c' and 'a:b' do too."""
    return bool(_FLAG.match(text) or (most < 0 and (_PAIR.match(text) or _SUBCOMMAND.fullmatch(text))))


def of_file(settings: Sequence[Setting], program: Program) -> list[Setting]:
    """Return the settings of a configuration file; as flags for a program that has flags alone: vLLM's `tensor-parallel-size: 8`."""
    if program.form != "flags" or program.flag_words:
        return list(settings)
    return [Setting(one.key if one.key.startswith("-") else f"--{one.key}", one.value, one.span) for one in settings]


def _setting(name: str, word: Word, taken: Sequence[Word]) -> Setting:
    if not taken:
        return Setting(name, True, word.span)
    unknown = " ".join(value.unknown for value in taken if value.unknown)
    if len(taken) == 1:
        return Setting(name, _value(taken[0].text, unknown), taken[0].span)
    if unknown:
        return Setting(name, Unknown(unknown), taken[0].span)
    return Setting(name, tuple(value.text for value in taken), Span(taken[0].span.file, taken[0].span.line))


def _pair(word: Word) -> list[Setting]:
    """Return the setting of 'model.tensor_model_parallel_size=8', of a subcommand 'activation-checkpoint:full', or of a word alone."""
    match = _PAIR.match(word.text)
    subcommand = _SUBCOMMAND.fullmatch(word.text)
    if subcommand:
        return [Setting(subcommand[1], subcommand[2], _after_equals(word, subcommand.start(2)))]
    if not match:
        return [Setting(POSITIONAL, _value(word.text, word.unknown), word.span)]
    name = match[0][:-1].lstrip("+")
    return [Setting(name, _value(word.text[match.end() :], word.unknown), _after_equals(word, match.end()))]


def _value(text: str, unknown: str) -> Scalar | Unknown:
    """Return the text of a value, or what is not known of it. Whose home '~' is does not matter for the name of a model or a file."""
    if unknown.strip() == "~":
        return text if text.startswith("~") else f"~{text}"
    return Unknown(unknown) if unknown else text


def _after_equals(word: Word, length: int) -> Span:
    """Return the span of the value in '--a=b', where the word is literally in the file."""
    span = word.span
    if not span.writable or span.end - span.start != len(word.text):
        return Span(span.file, span.line)
    return Span(span.file, span.line, span.start + length, span.end)
