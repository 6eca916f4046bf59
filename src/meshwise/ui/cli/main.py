"""The program `meshwise`: runs a verb, and reports an error that a user can fix in one line on standard error."""

import io
import os
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Annotated, Any, NoReturn, TextIO

import typer
from typer import Option

from meshwise.errors import UserError
from meshwise.output import flush, say, silence
from meshwise.ui.cli.help import ALL_VERBS, Verbs
from meshwise.version import VERSION

TWINS = {"plan": "serve", "serve": "plan"}  # verbs whose options are easily mixed up
STOPPED_EXIT_CODE = 130  # exit code after Ctrl-C

app = typer.Typer(
    name="meshwise", cls=Verbs, help="Find the fastest way to train or serve a model on the accelerators you have.",
    pretty_exceptions_enable=False, rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip


@app.callback(invoke_without_command=True)
def root(context: typer.Context, version: Annotated[bool, Option("--version", help="Print the version.")] = False) -> None:
    if version:
        from meshwise.catalogue.installed import built

        commit, date = built()
        typer.echo(f"meshwise {VERSION} (commit {commit}, data of {date})")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _words(arguments: list[str]) -> list[str]:
    """Return the arguments; 'help' and 'help plan' are '--help' and 'plan --help'."""
    return [*arguments[1:2], "--help"] if arguments[:1] == ["help"] else arguments


def main() -> None:
    """Run a verb, and report an error that a user can fix in one line on standard error."""
    open_closed_streams()
    try:
        code = app(_words(sys.argv[1:]), standalone_mode=False, prog_name="meshwise") or 0
        if code == STOPPED_EXIT_CODE:  # typer turns Ctrl-C into an exit code
            raise KeyboardInterrupt
        sys.exit(code)
    except UserError as error:
        fail(str(error), error.exit_code)
    except typer.TyperException as error:  # a misspelt verb or option, a missing argument
        fail(_usage(error), error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        fail("stopped", STOPPED_EXIT_CODE)
    except BrokenPipeError:  # head or less has read enough
        silence(sys.stdout)
        sys.exit(1)
    except OSError as error:  # no output, or a disk or file system that fails
        where = f"{error.filename}: " if error.filename else "cannot write the output: "
        fail(f"{where}{error.strerror or error}", 1)
    finally:
        flush()


def open_closed_streams() -> None:
    """Open standard streams that are closed (`>&-`): the next file to be opened would take their numbers, and get what is printed."""
    for number, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)  # takes the lowest free number
    # what is written to an output that can only be read is an error, as on a full disk: a result must not be lost in silence
    sys.stdout = sys.stdout or _writer(1)
    sys.stderr = sys.stderr or _writer(2)


def _writer(number: int) -> TextIO:
    return io.TextIOWrapper(io.FileIO(number, "w", closefd=False), encoding="utf-8")


def _usage(error: Any) -> str:
    """Return the message for a usage error: the option or verb that was typed, the nearest that exists, and the command for help."""
    context = getattr(error, "ctx", None)
    path = (
        context.command_path
        if context is not None
        else " ".join(["meshwise", *(word for word in sys.argv[1:2] if word in ALL_VERBS)])
    )
    option, message = getattr(error, "option_name", None), " ".join(error.format_message().split())
    if option and "No such option" in message:
        return f"unknown option {option}{_option_hint(option, context)} ({path} --help)"
    if option and "requires an argument" in message:
        return f"{option} needs a value ({path} --help)"
    if message.startswith("Missing ") and getattr(error, "param", None):
        param = error.param
        return f"missing {param.opts[0] if param.param_type_name == 'option' else param.metavar or param.name.upper()} ({path} --help)"
    if message.startswith("No such command"):
        name = message.split("'")[1] if "'" in message else ""
        return f"unknown verb {name!r}{_alike(name, ALL_VERBS)} (meshwise --help)"
    return f"{message} ({path} --help)"


def _option_hint(given: str, context: Any) -> str:
    """Return a hint for an unknown option: it is a verb, another verb has it, or the nearest option of this verb."""
    if (verb := given.lstrip("-")) in ALL_VERBS:
        longer = [name for name in _options(context.command) if name.endswith(verb)] if context else []  # --finetune for --tune
        return _alike(given, longer) or f"; it is a verb: 'meshwise {verb}'"
    if context is None:
        return ""
    other = TWINS.get(context.command.name)
    if other and given in _options(context.parent.command.get_command(context.parent, other)):
        return f"; 'meshwise {other}' has it"
    return _alike(given, _options(context.command))


def _options(command: Any) -> list[str]:
    return [name for param in command.params for name in param.opts if name.startswith("--")]


def _alike(given: str, known: Iterable[str]) -> str:
    """Return '; did you mean ...?' for a similar option or verb. Leading dashes are ignored, since every option has them."""
    names = {name.lstrip("-"): name for name in known}
    close = get_close_matches(given.lstrip("-"), names, n=1, cutoff=0.6)
    return f"; did you mean '{names[close[0]]}'?" if close else ""


def fail(message: str, code: int) -> NoReturn:
    """Print an error in one line and exit."""
    say(f"meshwise: {message}", sys.stderr)
    sys.exit(code)
