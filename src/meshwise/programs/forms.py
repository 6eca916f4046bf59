"""Settings as text: YAML, TOML, JSON, and the words of a command line for a shell."""

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

VARIABLES = ("$NNODES", "$NODE_RANK", "$MASTER_ADDR", "$MASTER_PORT")
"""Shell variables that a launcher sets and that words of a command may hold."""
REQUIRED_VARIABLE = re.compile(r"\$\{([A-Z][A-Z0-9_]*):\?([\w ,.:;/()+-]*)\}")
"""A variable that the user must set, with what it means: words alone, because a shell would expand anything else
in it, and an apostrophe would begin a text that goes on to the next one."""
EXPANDED = re.compile(
    rf"\$(?:NNODES|NODE_RANK|MASTER_ADDR|MASTER_PORT|SLURM[A-Z_]*)\b|\$\{{[A-Z][A-Z0-9_]*\}}|{REQUIRED_VARIABLE.pattern}"
)
"""What a shell expands in the words of a command; every other `$` stands for itself."""
PLACEHOLDER = "REPLACE_ME"  # the start of every placeholder: what a plan cannot know, such as the path of the data


def nested(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return dotted keys as nested tables."""
    root: dict[str, Any] = {}
    for path, value in pairs:
        *parents, last = path.split(".")
        table = root
        for parent in parents:
            table = cast(dict[str, Any], table.setdefault(parent, {}))
        table[last] = list(cast(tuple[Any, ...], value)) if isinstance(value, tuple) else value
    return root


def one_line(text: str) -> str:
    """Return a text without line breaks and control characters, so that it cannot end a comment, a value or a directive."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def comment(header: Sequence[str], mark: str = "#") -> str:
    """Return lines as a comment."""
    return "".join(f"{mark} {one_line(line)}".rstrip() + "\n" for line in header)


def quoted(value: Any) -> str:
    """Return a value in JSON that YAML and TOML read in the same way: both refuse some characters that JSON does not escape."""
    text = json.dumps(value, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" if ord(c) < 0x10000 else f"\\U{ord(c):08x}" for c in text)


def yaml_text(pairs: Iterable[tuple[str, Any]], header: Sequence[str] = ()) -> str:
    """Return settings as YAML under a comment."""
    return comment(header) + "".join(_yaml(nested(pairs), ""))


def _yaml(table: Mapping[str, Any], indent: str) -> Iterable[str]:
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield f"{indent}{key}:\n"
            yield from _yaml(cast(dict[str, Any], value), indent + "  ")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            yield f"{indent}{key}:\n"
            for item in cast(list[dict[str, Any]], value):
                inner = "".join(_yaml(item, indent + "    "))
                yield f"{indent}  - {inner.lstrip()}"
        else:
            yield f"{indent}{key}: {_scalar(value)}\n"


def _scalar(value: Any) -> str:
    """Return a value in JSON, which YAML reads in the same way; plain words without quotes."""
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w./-]*", value) and value.lower() not in _RESERVED_WORDS:
        return value
    if isinstance(value, float) and "e" in (text := repr(value)) and "." not in text:
        return text.replace("e", ".0e")  # YAML 1.1 takes 1e-05 for text
    return quoted(value)


_RESERVED_WORDS = ("true", "false", "yes", "no", "on", "off", "null", "y", "n")


def json_text(pairs: Iterable[tuple[str, Any]]) -> str:
    """Return settings as JSON."""
    return json.dumps(nested(pairs), indent=2, ensure_ascii=False) + "\n"


def toml_text(pairs: Iterable[tuple[str, Any]], header: Sequence[str] = ()) -> str:
    """Return settings as TOML under a comment."""
    lines: list[str] = []
    _toml(nested(pairs), "", lines)
    return comment(header) + "\n".join(lines).strip("\n") + "\n"


def _toml(table: Mapping[str, Any], path: str, lines: list[str]) -> None:
    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    if plain and path:
        lines += ["", f"[{path}]"]
    lines += [f"{key} = {quoted(value)}" for key, value in plain.items()]
    for key, value in table.items():
        if isinstance(value, dict):
            _toml(cast(dict[str, Any], value), f"{path}.{key}" if path else key, lines)


def flag_words(pairs: Iterable[tuple[str, Any]]) -> list[str]:
    """Return settings as the words of a command line; True is a flag alone, a list several words."""
    words: list[str] = []
    for key, value in pairs:
        words.append(key)
        if isinstance(value, list | tuple):
            words += [str(item) for item in cast(Sequence[Any], value)]
        elif value is not True:
            words.append(number(value))
    return words


def pair_words(pairs: Iterable[tuple[str, Any]]) -> list[str]:
    """Return settings as words 'key=value', as Hydra and MaxText read them."""
    return [f"{key}={_plain(value)}" for key, value in pairs]


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(number(item) for item in cast(Sequence[Any], value))}]"
    return number(value)


def number(value: Any) -> str:
    """Return a value as programs read it: floats without an exponent where they are short."""
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def shell_word(word: str) -> str:
    """Return a word quoted for a shell; variables that a launcher sets, and ${NAME:?...}, are still expanded."""
    return f'"{in_double_quotes(word)}"' if EXPANDED.search(word) else shlex.quote(word)


def in_double_quotes(word: str) -> str:
    """Return a word as it stands between double quotes of a shell, which expands EXPANDED in it and nothing else."""
    kept, at = "", 0
    for match in EXPANDED.finditer(word):
        kept += re.sub(r'([\\"`$])', r"\\\1", word[at : match.start()]) + match[0]
        at = match.end()
    return kept + re.sub(r'([\\"`$])', r"\\\1", word[at:])


def shell_lines(words: Sequence[str], indent: str = "    ", *, raw: bool = False) -> list[str]:
    """Return a command as lines, one per flag with its values, all but the last ended by a backslash. `raw`: words are quoted already."""
    groups: list[list[str]] = [[]]
    for word in words:
        if re.match(r"--?[A-Za-z]", word) and groups[-1]:
            groups.append([])
        groups[-1].append(word if raw else shell_word(word))
    lines = [" ".join(group) for group in groups]
    return [line if i == 0 else indent + line for i, line in enumerate(_continued(lines))]


def _continued(lines: Sequence[str]) -> list[str]:
    return [f"{line} \\" for line in lines[:-1]] + list(lines[-1:])


def printed(lines: Iterable[str], file: str) -> str:
    """Return the shell line that writes lines to a file."""
    text = "".join(line.replace("\\", "\\\\").replace("%", "%%") + "\\n" for line in lines)
    return f"printf {shlex.quote(text)} > {file}"
