"""Pages: the commands of a Markdown page, a systemd unit or llama-server's presets as one script; an Ollama Modelfile as settings."""

import re
import shlex

from meshwise.programs.bash.budget import spend
from meshwise.programs.source import Scalar, Setting, Source

SHELLS = ("", "bash", "sh", "shell", "console", "zsh", "shell-session", "terminal", "text")
_FENCE = re.compile(r"\s*(```+|~~~+)\s*([\w-]*)")
_LINE = re.compile(r"\s*(FROM|PARAMETER\s+\w+|ADAPTER|TEMPLATE|SYSTEM|LICENSE|MESSAGE)\s+(.+?)\s*$", re.IGNORECASE)
_HEAD = re.compile(r"\s*\[([^\]\n]+)\]\s*$")
MAX_SHORT = 4  # letters of the short names of llama-server's options: c, ngl, ctk, ncmoe is written out


def commands(source: Source) -> Source:
    """Return the fenced code of a page as a script: other lines are empty, prompts ('$ ') are taken off."""
    lines: list[str] = []
    starts: list[int] = []
    inside, shell, offset = "", False, 0
    for line in source.text.split("\n"):
        spend()
        fence = _FENCE.match(line)
        kept, start = "", -1
        if fence and (not inside or fence[1].startswith(inside)):
            inside, shell = ("", False) if inside else (fence[1], fence[2].lower() in SHELLS)
        elif inside and shell:
            prompt = re.match(r"\s*\$ ", line)
            cut = prompt.end() if prompt else 0
            kept, start = line[cut:], offset + cut
        lines.append(kept)
        starts.append(source.span(start, start).start if start >= 0 else -1)
        offset += len(line) + 1
    return Source(source.file, "\n".join(lines), source.name, source.line, tuple(starts))


def modelfile(source: Source) -> list[Setting]:
    """Return the lines of a Modelfile as settings: FROM, and 'PARAMETER num_ctx'."""
    found: list[Setting] = []
    offset, inside = 0, False
    for line in source.text.split("\n"):
        spend()
        match = None if inside else _LINE.match(line)
        inside ^= line.count('"""') % 2 == 1  # a text of several lines
        if match and not line.lstrip().startswith("#"):
            words = match[1].split()
            key = " ".join([words[0].upper(), *words[1:]])
            value: Scalar = int(match[2]) if re.fullmatch(r"-?\d{1,18}", match[2]) else match[2].strip('"')
            found.append(Setting(key, value, source.span(offset + match.start(2), offset + match.end(2))))
        offset += len(line) + 1
    return found


def unit(source: Source) -> Source:
    """Return what a systemd unit starts as a script: its variables, and the commands of ExecStart."""
    lines: list[str] = []
    starts: list[int] = []
    first: list[str] = []  # variables, which may stand behind the command
    offset, goes_on = 0, False
    for line in source.text.split("\n"):
        spend()
        name, _, value = line.partition("=")
        kept, start = (
            (line, offset) if goes_on else (value.lstrip("-+@!:"), offset + len(name) + 1) if name == "ExecStart" else ("", -1)
        )
        if name in ("Environment", "EnvironmentFile"):
            first.append(f"export {value}" if name == "Environment" else f". {value.lstrip('-')}")
        goes_on = bool(kept) and line.rstrip().endswith("\\")
        lines.append(kept)
        starts.append(source.span(start, start).start if start >= 0 and line[start - offset :] == kept else -1)
        offset += len(line) + 1
    return Source(source.file, "\n".join(["; ".join(first), *lines]), source.name, max(1, source.line - 1), (-1, *starts))


def presets(source: Source) -> list[tuple[str, Source]]:
    """Return the models of llama-server's --models-preset by name, each as the command that it stands for; `[*]` is said of all."""
    sections: dict[str, list[tuple[str, str, int]]] = {"*": []}
    name, offset = "*", 0
    for line in source.text.split("\n"):
        spend()
        head, (key, equals, value) = _HEAD.match(line), line.partition("=")
        if head:
            name = head[1]
            sections.setdefault(name, [])
        elif equals and not line.lstrip().startswith((";", "#")) and not (name == "*" and key.strip() == "version"):
            start = offset + len(key) + 1 + len(value) - len(value.lstrip())
            sections[name].append((key.strip(), value.strip(), source.span(start, start).start))
        offset += len(line) + 1
    return [(name, _preset(source, name, [*sections["*"], *own])) for name, own in sections.items() if name != "*"]


def _preset(source: Source, name: str, pairs: list[tuple[str, str, int]]) -> Source:
    """Return the command of a preset: a value a line, each at its place; a section that names no model is one of Hugging Face."""
    named = any(key in ("model", "m", "hf", "hf-repo", "hfr") for key, _, _ in pairs)
    lines, starts = ["llama-server \\" if named else f"llama-server -hf {shlex.quote(name)} \\"], [-1]
    for key, value, start in pairs:
        lines += [f"{'-' if len(key) <= MAX_SHORT else '--'}{key} \\", f"{shlex.quote(value)} \\"]
        starts += [-1, start if shlex.quote(value) == value else -1]
    return Source(source.file, "\n".join([*lines, ""]), "", source.line, (*starts, -1))
