"""Scripts inside commands: `bash -c '...'`, `srun bash train.sh`, `ssh host '...'`, `sbatch <<EOF`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from meshwise.programs.bash.directives import directives, variables
from meshwise.programs.bash.flow import Leave, Status
from meshwise.programs.bash.pieces import Source, Value, joined
from meshwise.programs.bash.shell import Shell
from meshwise.programs.bash.state import State
from meshwise.programs.bash.statements import parse

SHELLS = ("bash", "sh", "zsh", "dash", "/bin/bash", "/bin/sh", "/usr/bin/bash", "/usr/bin/env bash")
RUNNERS = (
    "srun", "sbatch", "salloc", "mpirun", "nohup", "env", "time", "timeout", "docker", "podman", "singularity", "apptainer", "pdsh",
    "sudo", "exec",
)  # fmt: skip
REMOTE = ("ssh", "pdsh")


@dataclass(frozen=True, slots=True)
class Inner:
    """A script that a command starts, with the words before it and the arguments after it."""

    prefix: tuple[Value, ...]
    source: Source
    arguments: tuple[Value, ...]
    name: str = ""


def script(words: Sequence[Value], stdin: Value | None, beside: Callable[[Value], Source | None]) -> Inner | None:
    """Return the script that a command starts, if it is known."""
    for number, word in enumerate(words):
        if word.text in SHELLS:
            found = _shell(words, number, stdin, beside)
            if found is not None:
                return found
    handed = next((i for i, word in enumerate(words) if word.text.partition("=")[0] == "--command"), None)
    if handed is not None:  # a submitter, such as xpk or gcloud, that starts a script elsewhere
        text = words[handed].text
        body = words[handed].cut(len("--command="), len(text)) if "=" in text else joined(words[handed + 1 : handed + 2], " ")
        return Inner((), Source(body.pieces), ()) if " " in body.text else None
    name = words[0].text.rpartition("/")[2]
    if name == "sbatch":
        return _submitted(words, stdin, beside)
    if name in REMOTE and len(words) > 2 and " " in joined(words[2:], " ").text:
        host = next((i for i in range(1, len(words)) if not words[i].text.startswith("-")), 0)
        there = words[host + 1 :]
        return Inner(tuple(words[: host + 1]), Source(joined(there, " ").pieces), ()) if there else None
    for number, word in enumerate(words[:8] if name in RUNNERS else words[:1]):
        source = beside(word) if word.text.endswith((".sh", ".sbatch", ".slurm", ".bash")) else None
        if source is not None:
            return Inner(tuple(words[:number]), source, tuple(words[number + 1 :]), word.text)
    if name == "srun" and " " in words[-1].text.strip() and not words[-1].text.startswith("-"):
        return Inner(tuple(words[:-1]), Source(words[-1].pieces), ())
    return None


def _shell(words: Sequence[Value], number: int, stdin: Value | None, beside: Callable[[Value], Source | None]) -> Inner | None:
    """Return the script of `bash -c '...'`, `bash file` or `bash <<EOF`."""
    at = number + 1
    while at < len(words) and words[at].text.startswith(("-", "+")):
        option = words[at].text
        at += 1
        if not option.startswith("--") and "c" in option:
            if at >= len(words):
                return None
            return Inner(tuple(words[:number]), Source(words[at].pieces), tuple(words[at + 2 :]))
        at += option in ("-o", "--rcfile", "--init-file")
    if at < len(words):
        source = beside(words[at])
        return Inner(tuple(words[:number]), source, tuple(words[at + 1 :]), words[at].text) if source is not None else None
    return Inner(tuple(words[:number]), Source(stdin.pieces), ()) if stdin is not None and stdin.pieces else None


def _submitted(words: Sequence[Value], stdin: Value | None, beside: Callable[[Value], Source | None]) -> Inner | None:
    for number, word in enumerate(words[1:], start=1):
        if word.text.startswith("--wrap"):
            body = words[number + 1] if word.text == "--wrap" and number + 1 < len(words) else word.cut(7, len(word.text))
            return Inner(tuple(words[:number]), Source(body.pieces), ())
        source = beside(word) if not word.text.startswith("-") else None
        if source is not None:
            return Inner(tuple(words[:number]), source, tuple(words[number + 1 :]), word.text)
    return Inner(tuple(words), Source(stdin.pieces), ()) if stdin is not None and stdin.pieces else None


def statements(shell: Shell, source: Source) -> Status:
    """Follow the statements of a text in the shell's own state."""
    parsed = parse(source)
    shell.notes += [str(note) for note in parsed.notes]
    return shell.block(parsed.block)


def follow(shell: Shell, found: Inner, environment: Mapping[str, Value]) -> Status:
    """Follow a script that starts as a process of its own: it sees exported variables, others are unknown, and it changes none of ours."""
    outer, before, stdin = shell.state.copy(), len(shell.started), shell.stdin
    found_directives = directives(found.source)
    shell.directives += found_directives
    inside = State(found.name or outer.script, dict(environment), set(environment), list(found.arguments), {}, outer.files)
    inside.variables |= {name: value for name, value in variables(found_directives).items() if name not in inside.variables}
    inside.variables |= {name: value for name, value in outer.variables.items() if name.startswith("SLURM_")}
    shell.state.take(inside)
    shell.stdin = None
    script_name, shell.state.script = shell.state.script, found.name or outer.script
    try:
        statements(shell, found.source)
    except Leave:
        pass
    finally:
        files, shell.stdin = shell.state.files, stdin
        shell.state.take(outer)
        shell.state.files, shell.state.script = files, script_name
    if len(found.prefix):
        shell.started[before:] = [replace(one, words=(*found.prefix, *one.words)) for one in shell.started[before:]]
    return "ran"
