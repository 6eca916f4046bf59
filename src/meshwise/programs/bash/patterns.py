"""Patterns of the shell (`*`, `?`, `[a-z]`) as regular expressions, and what `${x%pattern}` and its relatives do with them."""

import re
from collections.abc import Sequence

CLASSES = {
    "alpha": "a-zA-Z", "digit": "0-9", "alnum": "a-zA-Z0-9", "upper": "A-Z", "lower": "a-z", "space": r"\s",
    "xdigit": "0-9a-fA-F",
}  # fmt: skip
QUANTIFIER_OF_EXTGLOB = {"?": "?", "*": "*", "+": "+", "@": ""}


def regex(parts: Sequence[tuple[str, bool]], *, shortest: bool = False, extended: bool = False) -> re.Pattern[str] | None:
    """Return the expression of a pattern, given as texts that are quoted (taken as they are) or not; None if it cannot be translated."""
    characters = [(char, quoted) for text, quoted in parts for char in text]
    if characters.count(("*", False)) > 8:  # could take for ever on some texts
        return None
    out, at, groups = "", 0, list[str]()
    star = ".*?" if shortest else ".*"
    while at < len(characters):
        char, quoted = characters[at]
        following = characters[at + 1] if at + 1 < len(characters) else ("", True)
        at += 1
        if quoted:
            out += re.escape(char)
        elif extended and char in "?*+@!" and following == ("(", False):
            if char == "!":
                return None
            groups.append(QUANTIFIER_OF_EXTGLOB[char])
            out, at = out + "(?:", at + 1
        elif groups and char in "|)":
            out += "|" if char == "|" else ")" + groups.pop()
        elif char == "*":
            out += star
        elif char == "?":
            out += "."
        elif char == "[":
            inner, at = _bracket(characters, at)
            out += inner
        elif char == "\\" and following[0]:
            out += re.escape(following[0])
            at += 1
        else:
            out += re.escape(char)
    try:
        return re.compile(out, re.DOTALL)
    except re.error:
        return None


def _bracket(characters: Sequence[tuple[str, bool]], at: int) -> tuple[str, int]:
    """Translate `[...]`; a bracket that is not closed is a bracket."""
    end = at + (characters[at : at + 1] in ([("!", False)], [("^", False)]))
    end += characters[end : end + 1] == [("]", False)]
    while end < len(characters) and characters[end][0] != "]":
        if "".join(char for char, _ in characters[end : end + 2]) == "[:":
            end += 2
            while end < len(characters) and characters[end][0] != "]":
                end += 1
        end += 1
    if end >= len(characters):
        return r"\[", at
    inner = "".join(char for char, _ in characters[at:end])
    negated = inner[:1] in ("!", "^")
    inner = inner[1:] if negated else inner
    inner = inner.replace("\\", "\\\\").replace("[", "\\[") if "[:" not in inner else inner
    inner = re.sub(r"\[:(\w+):\]", lambda match: CLASSES.get(match.group(1), ""), inner)
    return f"[{'^' if negated else ''}{inner.replace(']', chr(92) + ']')}]", end + 1


def trimmed(text: str, pattern: Sequence[tuple[str, bool]], operator: str) -> tuple[int, int] | None:
    """Return the range that `${x#p}`, `${x##p}`, `${x%p}` or `${x%%p}` leaves of a text."""
    expression = regex(pattern)
    if expression is None:
        return None
    if operator[0] == "#":
        ends = range(len(text) + 1) if len(operator) == 1 else range(len(text), -1, -1)
        found = next((end for end in ends if expression.fullmatch(text, 0, end)), None)
        return (found or 0, len(text))
    starts = range(len(text), -1, -1) if len(operator) == 1 else range(len(text) + 1)
    found = next((start for start in starts if expression.fullmatch(text, start)), None)
    return (0, len(text) if found is None else found)


def replaced(text: str, pattern: Sequence[tuple[str, bool]], new: str, operator: str) -> str | None:
    """Return the result of `${x/p/new}`, `//`, `/#` or `/%`."""
    expression = regex(pattern)
    if expression is None:
        return None
    if not any(part for part, _ in pattern):
        return {"/#": new + text, "/%": text + new}.get(operator, text)
    if operator == "/#":
        best = next((end for end in range(len(text), -1, -1) if expression.fullmatch(text, 0, end)), None)
        return text if best is None else new + text[best:]
    if operator == "/%":
        best = next((start for start in range(len(text) + 1) if expression.fullmatch(text, start)), None)
        return text if best is None else text[:best] + new
    return _each(text, expression, new, once=operator == "/")


def _each(text: str, expression: re.Pattern[str], new: str, *, once: bool) -> str:
    """Replace the longest match at each position, as the shell does."""
    out, at = "", 0
    while at < len(text):
        end = next((end for end in range(len(text), at, -1) if expression.fullmatch(text, at, end)), None)
        if end is None:
            out, at = out + text[at], at + 1
            continue
        out, at = out + new, end
        if once:
            return out + text[at:]
    return out
