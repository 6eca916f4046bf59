"""Help that fits a screen: usage, three examples, the main options, and the names of the others; `--help-all` lists every option."""

import textwrap
import tomllib
from collections.abc import Iterator
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from meshwise.catalogue.files import BUILT_IN


class Described(NamedTuple):
    """A verb: the module that defines it, imported when the verb is used, the sentence that help shows, and examples."""

    module: str
    sentence: str
    examples: list[str]


_TABLES = tomllib.loads((BUILT_IN / "verbs.toml").read_text(encoding="utf-8"))
VERBS = {group: {name: Described(**facts) for name, facts in verbs.items()} for group, verbs in _TABLES.items()}
ALL_VERBS = {name: about for group in VERBS.values() for name, about in group.items()}
OUTPUT = "Output"
MAX_WIDTH = 100
FLAG_COLUMN_WIDTH = 24  # width of the column of flags


class Verb(TyperCommand):
    """A command that prints its help in our own format."""

    @property
    def examples(self) -> list[str]:
        return ALL_VERBS[str(self.name)].examples

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--help-all" in args and not ctx.resilient_parsing:
            typer.echo("\n".join(self.lines(ctx, whole=True)))
            raise typer.Exit
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write("\n".join(self.lines(ctx, whole=False)) + "\n")

    def lines(self, ctx: Any, *, whole: bool) -> Iterator[str]:
        """Yield the help of a verb; `whole` lists the options of every group."""
        width = min(MAX_WIDTH, typer.get_terminal_size((MAX_WIDTH, 24)).columns)
        options = [param for param in self.params if param.param_type_name == "option" and not getattr(param, "hidden", False)]
        arguments = [param for param in self.params if param.param_type_name == "argument"]
        yield " ".join(["Usage:", ctx.command_path, *(_metavar(argument) for argument in arguments), "[OPTIONS]"])
        yield ""
        yield from _wrapped(" ".join((self.help or "").split()), width)
        if self.examples:
            yield from ("", "Examples:", *(f"  {example}" for example in self.examples))
        yield from ("", "Options:")
        for param in [*arguments, *(option for option in options if not _group(option))]:
            yield from _entry(param, width)
        groups = dict.fromkeys(_group(option) for option in options if _group(option))
        for group in [name for name in groups if name == OUTPUT or whole]:
            yield from ("", f"{group}:")
            for option in options:
                if _group(option) == group:
                    yield from _entry(option, width)
        left = [name for name in groups if name != OUTPUT]
        if left and not whole:
            yield from ("", "More, described by --help-all:")
            for group in left:
                flags = " ".join(option.opts[0] for option in options if _group(option) == group)
                yield from _wrapped(f"{group}: {flags}", width, "  ", "    ")


def _wrapped(text: str, width: int, first: str = "", others: str = "") -> list[str]:
    """Return lines that break between words, and never inside a name such as hai-llm."""
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=others, break_on_hyphens=False)


def _group(option: Any) -> str:
    return getattr(option, "rich_help_panel", None) or ""


def _metavar(param: Any) -> str:
    return str(param.metavar or param.name.upper())


def _broken(head: str, width: int) -> Iterator[str]:
    """Yield a flag with its choices, broken after a '|' where the line would be too long."""
    while len(head) > width and "|" in head[:width]:
        end = head.rindex("|", 0, width) + 1
        yield head[:end]
        head = "    " + head[end:]
    yield head


def _entry(param: Any, width: int) -> Iterator[str]:
    """Yield the lines of one option: '  --batch BATCH   Global batch: ...', the help wrapped beside the flag."""
    if param.param_type_name == "argument":
        head = _metavar(param).replace("[", "").replace("]", "")
    else:
        names = [*sorted(param.opts, key=len), *param.secondary_opts]
        head = ", ".join(names) + (f" {param.metavar}" if param.metavar and not param.is_flag else "")
    lines = _wrapped(param.help or "", max(30, width - FLAG_COLUMN_WIDTH - 2)) or [""]
    head = f"  {head}"
    if len(head) > FLAG_COLUMN_WIDTH:
        yield from _broken(head, width)
        head = ""
    yield f"{head:<{FLAG_COLUMN_WIDTH}}  {lines[0]}".rstrip()
    yield from (" " * (FLAG_COLUMN_WIDTH + 2) + line for line in lines[1:])


class Verbs(TyperGroup):
    """The program itself: its verbs in groups, each imported when it is used."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(ALL_VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in ALL_VERBS:
            return None
        module = import_module(f"meshwise.ui.cli.{ALL_VERBS[cmd_name].module}")
        return next(_built(info) for info in module.app.registered_commands if info.name == cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write("\n".join(self.lines()) + "\n")

    def lines(self) -> Iterator[str]:
        """Yield the help of the program."""
        yield from ("Usage: meshwise VERB [OPTIONS]", "", self.help or "")
        for group, verbs in VERBS.items():
            yield from ("", f"{group}:", *(f"  {name:<10}  {about.sentence}" for name, about in verbs.items()))
        yield from (
            "",
            "Examples:",
            "  meshwise plan llama-3-70b --on 64x8xh100-sxm --batch 4M",
            "  meshwise serve llama-3.3-70b:q4_k_m --on 4xrtx4060ti-16gb --context 16k",
            "  meshwise run llama-debug",
            "",
            "'meshwise VERB --help' describes a verb. Also: --version, --install-completion.",
        )


def _built(info: Any) -> Any:
    """Return the command that typer builds from a registered function."""
    from typer.main import get_command_from_info

    return get_command_from_info(info, pretty_exceptions_short=True, rich_markup_mode=None)
