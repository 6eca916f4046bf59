"""Flags from questions: `verb` registers a command whose options are the fields of one or several questions (`plan.fields`)."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from meshwise import api
from meshwise.errors import UserError
from meshwise.plan.fields import About, Ask, defaults, field_of, flag_of, spec
from meshwise.ui.cli.help import ALL_VERBS, OUTPUT, Verb

Json = Annotated[bool, Option("--json", help="Print JSON.", rich_help_panel=OUTPUT)]
Csv = Annotated[bool, Option("--csv", help="Print CSV.", rich_help_panel=OUTPUT)]
_REPORT = "Write a report that opens in any browser."
Html = Annotated[Path | None, Option("--html", metavar="FILE", help=_REPORT, rich_help_panel=OUTPUT, show_default=False)]
Verbose = Annotated[bool, Option("--verbose", "-v", help="Print everything.", rich_help_panel=OUTPUT)]


@dataclass(frozen=True)
class Given:
    """The options that were given on the command line, by field name."""

    words: Mapping[str, Any]
    asks: tuple[type[Ask], ...]

    def of(self, cls: type[Ask]) -> dict[str, Any]:
        """Return the given options that are fields of `cls`."""
        return {name: value for name, value in self.words.items() if name in spec(cls)}

    def refuse_others(self, cls: type[Ask], why: str) -> None:
        """Raise UserError for a given option that is not a field of `cls`; `why` completes the message."""
        for name in self.words:
            if name not in spec(cls):
                about = next(spec(ask)[name] for ask in self.asks if name in spec(ask))
                raise UserError(f"{flag_of(name, about)} {why}")


def plain_verb(app: typer.Typer, name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command whose options are the parameters of its function."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        app.command(name, cls=Verb, help=_help(name, function))(function)
        return function

    return decorate


def _help(name: str, function: Callable[..., None]) -> str:
    """Return the help text of a verb: its sentence in the list of verbs, then the docstring of its function."""
    return " ".join([ALL_VERBS[name].sentence, *(function.__doc__ or "").split()])


def verb(
    app: typer.Typer, name: str, *asks: type[Ask], argument: str = "MODEL"
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command whose options are the fields of `asks`. Its function takes the `Given` options, then parameters of its own."""
    fields = {key: (ask, about) for ask in reversed(asks) for key, about in spec(ask).items()}
    order = list(dict.fromkeys(key for ask in asks for key in spec(ask)))

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        first, *own = inspect.signature(function, eval_str=True).parameters.values()

        def command(**values: Any) -> None:
            words = {key: values.pop(key) for key in order}
            function(Given({key: value for key, value in words.items() if value is not None}, asks), **values)

        options = [_parameter(*fields[key], key, argument) for key in order]
        parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in (*options, *own)]
        command.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        assert first.annotation is Given, f"{function.__name__} takes Given first"
        app.command(name, cls=Verb, help=_help(name, function))(command)
        return function

    return decorate


def _parameter(ask: type[Ask], about: About, name: str, argument: str) -> inspect.Parameter:
    """Return the option (or argument) of a field. Its default is None, so that defaults stay in the question."""
    help = about.help + _default(ask, name, about)
    complete = completer(about.complete) if about.complete else among(about.kind.metavar.split("|"))
    if not field_of(ask, name).kw_only:
        info: Any = Argument(metavar=f"[{argument}]", help=help, autocompletion=complete, show_default=False)
        kind: Any = str | None
    else:
        flag = about.flag or flag_of(name, about)
        if not about.kind.metavar and defaults(ask)[name] is not False:
            flag = f"{flag}/--no-{flag.removeprefix('--')}"
        kind = bool | None if not about.kind.metavar else list[str] | None if about.kind.repeated else str | None
        info = Option(
            *flag.split(","), help=help, rich_help_panel=about.group or None, metavar=about.kind.metavar or None,
            autocompletion=complete, show_default=False,
        )  # fmt: skip
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, info])


def _default(ask: type[Ask], name: str, about: About) -> str:
    """Return ' [4k]', the default of a field as help shows it; '' without one."""
    value = defaults(ask)[name]
    empty = isinstance(value, bool) or value in (None, "", 0, 0.0, ())
    shown = about.shown or ("" if empty else about.kind.write(value))
    return f" [{shown}]" if shown else ""


def among(words: Sequence[str]) -> Callable[[str], list[str]] | None:
    """Return a function that completes one of several words; None for a single word, which is a placeholder for any value."""
    return (lambda incomplete: [word for word in words if word.startswith(incomplete)]) if len(words) > 1 else None


def completer(catalogue: str) -> Callable[[str], list[str]]:
    """Return a function that completes the names of one catalogue; for clusters also the chip after '8x'."""

    def complete(incomplete: str) -> list[str]:
        known = api.names(catalogue)
        if catalogue == "clusters":
            head, x, _ = incomplete.rpartition("x")
            known = [*known, *(f"{head}{x}{chip}" for chip in api.names("chips"))]
        return [name for name in known if name.startswith(incomplete)]

    return complete
