"""Patterns of the shell (`*`, `?`, `[a-z]`), and what `${x%pattern}` and its relatives do with them."""

from collections.abc import Sequence

from meshwise.programs.bash.automaton import ANYTHING, Automaton, Either, Expression, Many, One, bracket, letter, reverse
from meshwise.programs.bash.automaton import Sequence as Then
from meshwise.programs.bash.budget import spend

Pattern = Sequence[tuple[str, bool]]  # texts that are quoted, and so taken as they are, or not


def expression(parts: Pattern, *, extended: bool = False) -> Expression | None:
    """Return the expression of a pattern; None if it cannot be translated. `extended`: with `+(a|b)` and its like."""
    characters = [(char, quoted) for text, quoted in parts for char in text]
    groups: list[tuple[str, list[Expression], list[Expression]]] = []
    out: list[Expression] = []
    at = 0
    while at < len(characters):
        spend()
        char, quoted = characters[at]
        following = characters[at + 1] if at + 1 < len(characters) else ("", True)
        at += 1
        if quoted:
            out.append(letter(char))
        elif extended and char in "?*+@!" and following == ("(", False):
            if char == "!" or len(groups) > 20:
                return None
            groups.append((char, out, []))
            out, at = [], at + 1
        elif groups and char in "|)":
            how, before, choices = groups[-1]
            choices.append(Then(tuple(out)))
            out = []
            if char == ")":
                groups.pop()
                group = Either(tuple(choices))
                out = [*before, group if how == "@" else Many(group, how)]
        elif char == "*":
            out.append(ANYTHING)
        elif char == "?":
            out.append(One(lambda _: True))
        elif char == "[":
            inner, at = _bracket(characters, at)
            if inner is None:
                return None
            out.append(inner)
        elif char == "\\" and following[0]:
            out.append(letter(following[0]))
            at += 1
        else:
            out.append(letter(char))
    return None if groups else Then(tuple(out))


def matches(text: str, pattern: Pattern, *, extended: bool = False) -> bool | None:
    """Return whether a text matches a pattern; None where the pattern cannot be translated."""
    found = expression(pattern, extended=extended)
    return None if found is None else Automaton(found).matches(text)


def _bracket(characters: Sequence[tuple[str, bool]], at: int) -> tuple[Expression | None, int]:
    """Translate `[...]`; a bracket that is not closed is a bracket."""
    end = at + (characters[at : at + 1] in ([("!", False)], [("^", False)]))
    end += characters[end : end + 1] == [("]", False)]
    while end < len(characters) and characters[end][0] != "]":
        spend()
        if characters[end][0] == "[" and characters[end + 1 : end + 2] in ([(":", False)], [(":", True)]):
            end += 2
            while end < len(characters) and characters[end][0] != "]":
                end += 1
        end += 1
    if end >= len(characters):
        return letter("["), at
    return bracket("".join(char for char, _ in characters[at:end])), end + 1


def trimmed(text: str, pattern: Pattern, operator: str) -> tuple[int, int] | None:
    """Return the range that `${x#p}`, `${x##p}`, `${x%p}` or `${x%%p}` leaves of a text."""
    found = expression(pattern)
    if found is None:
        return None
    first = len(operator) == 1  # the shortest
    if operator[0] == "#":
        return _end(Automaton(found), text, 0, shortest=first) or 0, len(text)
    return 0, len(text) - (_end(Automaton(reverse(found)), text[::-1], 0, shortest=first) or 0)


def _end(automaton: Automaton, text: str, start: int, *, shortest: bool = False) -> int | None:
    """Return the end of the shortest or longest match at a position; None where there is none."""
    end = None
    for end in automaton.ends(text, start):
        if shortest:
            return end
    return end


def replaced(text: str, pattern: Pattern, new: str, operator: str) -> str | None:
    """Return the result of `${x/p/new}`, `//`, `/#` or `/%`."""
    found = expression(pattern)
    if found is None:
        return None
    if not any(part for part, _ in pattern):
        return {"/#": new + text, "/%": text + new}.get(operator, text)
    if operator == "/#":
        best = _end(Automaton(found), text, 0)
        return text if best is None else new + text[best:]
    if operator == "/%":
        best = _end(Automaton(reverse(found)), text[::-1], 0)
        return text if best is None else text[: len(text) - best] + new
    return _each(text, Automaton(found), new, once=operator == "/")


def _each(text: str, automaton: Automaton, new: str, *, once: bool) -> str:
    """Replace the longest match at each position, as the shell does."""
    if not text:
        return new if automaton.matches("") else ""
    out, at = list[str](), 0
    while at < len(text):
        end = _end(automaton, text, at)
        if end is None or end == at:
            out.append(text[at])
            at += 1
            continue
        spend(len(new))
        out.append(new)
        at = end
        if once:
            break
    return "".join(out) + text[at:]
