"""`sed "s/CONFIG_MBSIZE/4/g"`: the way templates of configurations are filled in. Only texts without special characters are replaced."""

import re
from collections.abc import Sequence

from meshwise.programs.bash.budget import spend
from meshwise.programs.bash.pieces import EMPTY, Piece, Value, joined

SUBSTITUTION = re.compile(r"s(.)(.*?)\1(.*?)\1(g?)")
FIRST_PLACEHOLDER = 0xE000
"""First of the characters that stand for unknown pieces of a rule, which may hold the rule's own delimiter."""


def replaced(words: Sequence[Value], stdin: Value | None) -> Value | None:
    """Return what sed prints; None where a rule is not a plain replacement. A replacement may be unknown, and then is so in the result."""
    if stdin is None:
        return None
    text = stdin
    for word in words:
        if word.text == "-e":
            continue
        for rule, hidden in _rules(word):
            match = SUBSTITUTION.fullmatch(rule)
            if match is None or re.search(r"[][.*^$\\+?(){}]", match[2]) or re.search(r"[\\&]", match[3]):
                return None
            spend(len(text.text) // 100)
            text = _each_line(text, match[2], _shown(match[3], hidden), every=bool(match[4]))
    return text


def _rules(word: Value) -> list[tuple[str, dict[str, Piece]]]:
    """Return the rules of a word, and what its hidden characters stand for."""
    hidden: dict[str, Piece] = {}
    spelled = ""
    for piece in word.pieces:
        if piece.unknown:
            sign = chr(FIRST_PLACEHOLDER + len(hidden))
            hidden[sign] = piece
            spelled += sign
        else:
            spelled += piece.text
    return [(part.strip(), hidden) for part in spelled.split(";") if part.strip()]


def _shown(text: str, hidden: dict[str, Piece]) -> Value:
    pieces = [hidden[char] if char in hidden else Piece(char, exact=False) for char in text]
    return Value(tuple(pieces)) if hidden else Value((Piece(text, exact=False),)) if text else EMPTY


def _each_line(text: Value, old: str, new: Value, *, every: bool) -> Value:
    """Replace the first match of each line, or every one. Places of the rest of the text are kept."""
    parts: list[Value] = []
    at = done = 0
    whole = text.text
    while old and (found := whole.find(old, at)) >= 0:
        spend(1 + len(new.text))
        parts += [text.cut(done, found), new]
        done = at = found + len(old)
        if not every:
            end = whole.find("\n", at)
            at = len(whole) if end < 0 else end
    return joined([*parts, text.cut(done, len(whole))])
