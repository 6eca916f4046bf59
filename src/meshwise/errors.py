"""Exceptions that reach the user, and helpers to word them: what was given, what was expected, the nearest valid choice."""

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches


class UserError(Exception):
    """Bad input, explained in one line. The CLI prints it without a traceback and exits with `exit_code`."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        # A name from a file may hold line breaks or control characters; messages are always one printable line.
        super().__init__("".join(c if c.isprintable() else " " for c in message))


class DoesNotFit(UserError):
    """The input is valid, but no answer satisfies it: too little memory, or no layout that meets the limits."""

    exit_code = 1


def quoted(value: object, longest: int = 60) -> str:
    """Return `value` as Python writes it, cut to at most `longest` characters."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, or endlessly nested lists
        text = f"<{type(value).__name__}>"
    return text if len(text) <= longest else text[: longest - 4] + "..." + text[-1]


def nearest(given: str, valid: Iterable[str], canonical: Callable[[str], str | None] = str) -> str:
    """Return "; did you mean ...?" for a misspelt word, or "" when no valid word is close. `canonical` maps an alias to its name."""
    by_lower = {name.lower(): name for name in valid}
    close = get_close_matches(given.lower(), by_lower, n=1, cutoff=0.5)
    return did_you_mean([str(canonical(by_lower[close[0]]))]) if close else ""


def did_you_mean(names: Sequence[str], most: int = 4) -> str:
    """Return "; did you mean 'a', 'b' or 'c'?", or "" without names. Names beyond `most` are counted, not listed."""
    shown = [f"'{name}'" for name in names]
    if len(shown) > most:
        shown = [*shown[: most - 1], f"{len(shown) - most + 1} more"]
    return f"; did you mean {' or '.join(filter(None, [', '.join(shown[:-1]), shown[-1]]))}?" if shown else ""


def one_of(option: str, given: str, valid: Iterable[str]) -> str:
    """Return `given`, or raise a UserError that lists the valid values of an option."""
    known = list(valid)
    if given not in known:
        raise UserError(f"{option} {quoted(given)}: expected one of {', '.join(known)}{nearest(given, known)}")
    return given


def unknown(what: str, given: str, known: Iterable[str], more: str = "") -> UserError:
    """Return the error for a name that is not among `known`: the nearest first, then the whole list. `more` adds to the list."""
    names = list(known)
    close = nearest(given, names)
    return UserError(f"unknown {what} {quoted(given)}{close}{' Known' if close else '; known'}: {', '.join(names)}{more}")
