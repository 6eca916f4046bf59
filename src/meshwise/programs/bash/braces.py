"""Brace expansion: `a{b,c}` and `{1..8}` as several words."""

import re
from itertools import pairwise

from meshwise.programs.bash.budget import spend
from meshwise.programs.bash.pieces import Piece
from meshwise.programs.bash.words import Literal, Part, Word


def braces(word: Word) -> list[Word]:
    """Return the words of `a{b,c}` and `{1..3}`; a word without such braces is returned alone."""
    written = "".join(p.text for part in word.parts if isinstance(part, Literal) and not part.quoted for p in part.pieces)
    if "{" not in written or "}" not in written:
        return [word]
    tokens: list[Part] = []
    for part in word.parts:
        if isinstance(part, Literal) and not part.quoted:
            for piece in part.pieces:
                cuts = [piece] if piece.unknown else [piece.cut(i, i + 1) for i in range(len(piece.text))]
                tokens += [Literal((cut,), False) for cut in cuts]
        else:
            tokens.append(part)
    return [Word(tuple(parts), word.place) for parts in _alternatives(tokens)]


def _char(part: Part) -> str:
    known = isinstance(part, Literal) and not part.quoted and len(part.pieces) == 1 and not part.pieces[0].unknown
    return part.pieces[0].text if known and isinstance(part, Literal) else ""


def _alternatives(tokens: list[Part]) -> list[list[Part]]:
    for start, token in enumerate(tokens):
        spend()
        if _char(token) != "{":
            continue
        level, commas, end = 0, [start], None
        for at in range(start, len(tokens)):
            spend()
            char = _char(tokens[at])
            level += (char == "{") - (char == "}")
            if char == "," and level == 1:
                commas.append(at)
            if level == 0:
                end = at
                break
        if end is None:
            continue
        inner = _sequence("".join(_char(t) or "\0" for t in tokens[start + 1 : end]), tokens[start])
        if inner is None and len(commas) > 1:
            bounds = [*commas, end]
            inner = [tokens[a + 1 : b] for a, b in pairwise(bounds)]
        if inner is not None:
            heads = [each for middle in inner for each in _alternatives(middle)]
            tails = _alternatives(tokens[end + 1 :])
            spend(len(heads) * len(tails) * (len(tokens) + 1))
            return [[*tokens[:start], *head, *tail] for head in heads for tail in tails]
    return [tokens]


def _sequence(text: str, token: Part) -> list[list[Part]] | None:
    """Return the numbers of `1..8` or `0..8..2`, each as a word."""
    match = re.fullmatch(r"(-?\d{1,18})\.\.(-?\d{1,18})(?:\.\.(-?\d{1,18}))?", text)
    if match is None or not isinstance(token, Literal):
        return None
    first, last, step = int(match.group(1)), int(match.group(2)), abs(int(match.group(3) or 1)) or 1
    if abs(last - first) // step > 10_000:
        return None
    padded = any(re.match(r"-?0\d", end) for end in match.groups()[:2])
    width = max(len(match.group(1)), len(match.group(2))) if padded else 0
    numbers = range(first, last + 1, step) if last >= first else range(first, last - 1, -step)
    return [[Literal((Piece(f"{n:0{width}d}", token.pieces[0].place, exact=False),), False)] for n in numbers]
