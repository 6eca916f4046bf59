"""Variants: the commands that one command may be, by the tests that cannot be decided."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from meshwise.programs.bash.budget import spend
from meshwise.programs.bash.expansion import Expander
from meshwise.programs.bash.flow import Started
from meshwise.programs.bash.pieces import Piece, Value, joined

MAX_VARIANTS = 24  # variants of one command; what would have more keeps its unknown words


def variants(started: Started, expander: Expander) -> list[Started]:
    """Return a command in every form that undecided tests may give it; itself alone where none changes its words."""
    if _open(started.words) is None:
        return [started]
    found: list[Started] = []
    for one in _followed(started, expander):
        found.append(one)
        if len(found) > MAX_VARIANTS:
            return [started]
    return found


def _followed(started: Started, expander: Expander) -> Iterator[Started]:
    spend(1 + len(started.words))
    piece = _open(started.words)
    if piece is None:
        yield started
        return
    for way in range(len(piece.choices)):
        words = tuple(one for word in started.words for one in expander.chosen(word, piece.fork, way))
        if words:
            environment = {n: joined(expander.chosen(v, piece.fork, way), " ") for n, v in started.environment.items()}
            by = (*started.by, (piece.by, way))
            yield from _followed(replace(started, words=words, environment=environment, certain=False, by=by), expander)


def _open(words: Sequence[Value]) -> Piece | None:
    """Return the first piece that an undecided test chooses."""
    return next((piece for word in words for piece in word.pieces if piece.fork and piece.choices), None)
