"""The manual page, from the help of all verbs: python tools/manpage.py > meshwise.1; man ./meshwise.1"""

from collections.abc import Iterator

from typer.main import get_command

from meshwise.ui.cli.help import VERBS, Verbs
from meshwise.ui.cli.main import app
from meshwise.version import VERSION

EXITS = {"0": "It fits, holds, was measured or written.", "1": "It does not fit or hold, or nothing was measured.",
         "2": "Bad input: one line says what was expected.", "130": "Stopped by Ctrl-C."}  # fmt: skip


def roff(text: str) -> str:
    """Return text without characters that mean something to roff."""
    safe = text.replace("\\", "\\\\").replace("-", "\\-")
    return f"\\&{safe}" if safe.startswith((".", "'")) else safe


def lines() -> Iterator[str]:
    """Yield the lines of the page."""
    group = get_command(app)
    assert isinstance(group, Verbs)
    yield f'.TH MESHWISE 1 "" "meshwise {VERSION}" "User Commands"'
    yield from (".SH NAME", "meshwise \\- " + roff((group.help or "").rstrip(".").lower()))
    yield from (".SH SYNOPSIS", ".B meshwise", ".I VERB", "[\\fIOPTIONS\\fR]", ".SH VERBS")
    for title, verbs in VERBS.items():
        yield f".SS {roff(title)}"
        for name, about in verbs.items():
            yield from (".TP", f".B {roff(name)}", roff(about.sentence))
    for verbs in VERBS.values():
        for name in verbs:
            yield from of_verb(group, name)
    yield ".SH EXIT STATUS"
    for code, meaning in EXITS.items():
        yield from (".TP", f".B {code}", roff(meaning))
    yield from (
        ".SH FILES",
        ".TP",
        ".I ~/.config/meshwise",
        "Data of your own, before the built\\-in; \\fBMESHWISE_HOME\\fR names another folder.",
    )


def of_verb(group: Verbs, name: str) -> Iterator[str]:
    """Yield the section of one verb: its sentences, examples and options."""
    command = group.get_command(None, name)
    yield from (f".SH MESHWISE {roff(name.upper())}", roff(" ".join((command.help or "").split())))
    for example in command.examples:
        yield from (".PP", ".nf", f".B {roff(example)}", ".fi")
    for param in command.params:
        if getattr(param, "hidden", False):
            continue
        flags = (
            ", ".join([*param.opts, *param.secondary_opts])
            if param.param_type_name == "option"
            else str(param.metavar or param.name)
        )
        value = (
            f" \\fI{roff(param.metavar)}\\fR" if param.param_type_name == "option" and param.metavar and not param.is_flag else ""
        )
        yield from (".TP", f"\\fB{roff(flags)}\\fR{value}", roff(" ".join((param.help or "").split())))


if __name__ == "__main__":
    print("\n".join(lines()))
