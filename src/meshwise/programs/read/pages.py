"""Pages: the commands of a Markdown page as one script, and the lines of an Ollama Modelfile as settings."""

import re

from meshwise.programs.bash.budget import spend
from meshwise.programs.source import Scalar, Setting, Source

SHELLS = ("", "bash", "sh", "shell", "console", "zsh", "shell-session", "terminal", "text")
_FENCE = re.compile(r"\s*(```+|~~~+)\s*([\w-]*)")
_LINE = re.compile(r"\s*(FROM|PARAMETER\s+\w+|ADAPTER|TEMPLATE|SYSTEM|LICENSE|MESSAGE)\s+(.+?)\s*$", re.IGNORECASE)


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
    offset = 0
    for line in source.text.split("\n"):
        spend()
        match = _LINE.match(line)
        if match and not line.lstrip().startswith("#"):
            words = match[1].split()
            key = " ".join([words[0].upper(), *words[1:]])
            value: Scalar = int(match[2]) if re.fullmatch(r"-?\d{1,18}", match[2]) else match[2].strip('"')
            found.append(Setting(key, value, source.span(offset + match.start(2), offset + match.end(2))))
        offset += len(line) + 1
    return found
