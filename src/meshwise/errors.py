"""The exceptions for what a user can mend or must be told, and the words that help."""

from collections.abc import Callable, Iterable
from difflib import get_close_matches


class UserError(Exception):
    """Bad input, told in one line. The CLI prints it without a traceback and exits with `exit_code`."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        # A name taken from a file may hold line breaks or control characters; the promise is one line.
        super().__init__("".join(c if c.isprintable() else " " for c in message))


class DoesNotFit(UserError):
    """The question is sound, and the answer is no."""

    exit_code = 1


def quoted(value: object, longest: int = 60) -> str:
    """What the user gave, short enough to stand in a sentence."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, or lists within lists without end
        text = f"<{type(value).__name__}>"
    return text if len(text) <= longest else text[: longest - 4] + "..." + text[-1]


def nearest(given: str, valid: Iterable[str], canonical: Callable[[str], str | None] = str) -> str:
    """'; did you mean ...?' for a misspelt name, or nothing when no valid name is close. `canonical` says what to call it."""
    by_lower = {name.lower(): name for name in valid}
    close = get_close_matches(given.lower(), by_lower, n=1, cutoff=0.5)
    return f"; did you mean '{canonical(by_lower[close[0]])}'?" if close else ""


def one_of(option: str, given: str, valid: Iterable[str]) -> str:
    """`given`, or a UserError that lists the valid choices of an option."""
    known = list(valid)
    if given not in known:
        raise UserError(f"{option} {quoted(given)}: expected one of {', '.join(known)}{nearest(given, known)}")
    return given
