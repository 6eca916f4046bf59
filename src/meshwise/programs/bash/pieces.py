"""Text that knows where it was written: a flag read from `--tp $TP` points to the line of `TP=8`, where it can be changed."""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace

from meshwise.programs.bash.budget import spend


@dataclass(frozen=True, slots=True)
class Place:
    """A range of characters in a file, and its line counted from 1."""

    file: str
    line: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a value. An unknown piece shows how the script spells it, such as `$1`."""

    text: str
    place: Place | None = None
    unknown: str = ""  # why the text is not known; empty for a known piece
    outside: bool = False
    """Unknown because it comes from outside the script (an argument, the environment), and empty if it is not given."""
    exact: bool = True  # whether the text stands at its place character for character; a computed number does not
    filled: bool = False  # unknown, but certainly not empty: the number of a job
    choices: "tuple[Value | None, ...]" = ()
    """Possible values of an unknown piece, one for each way that an undecided test may go; None: there is no such word."""
    fork: int = 0  # number of that test, so that pieces of one test are chosen together
    by: str = ""  # what that test depends on, and where it stands: '$1 (train.sh:3)'
    loose: bool = False  # whether it stands without quotes in a command, so that its value may be several words, or none

    def cut(self, start: int, end: int) -> "Piece":
        """Return a part of a known piece, at its own place if the piece is exact."""
        if start == 0 and end == len(self.text):
            return self
        spend(1 + len(self.text) // 1000)
        if self.place is None or not self.exact:
            return replace(self, text=self.text[start:end])
        place = self.place
        line = place.line + self.text.count("\n", 0, start)
        return replace(self, text=self.text[start:end], place=Place(place.file, line, place.start + start, place.start + end))


@dataclass(frozen=True, slots=True)
class Value:
    """A string made of pieces."""

    pieces: tuple[Piece, ...] = ()

    @property
    def text(self) -> str:
        """The characters; unknown pieces as the script spells them."""
        spend(len(self.pieces) // 10)
        return "".join(piece.text for piece in self.pieces)

    @property
    def known(self) -> bool:
        """Whether every piece is known."""
        return not any(piece.unknown for piece in self.pieces)

    @property
    def unknown(self) -> tuple[Piece, ...]:
        """The pieces that are not known."""
        return tuple(piece for piece in self.pieces if piece.unknown)

    @property
    def place(self) -> Place | None:
        """Where the first piece with a place stands."""
        return next((piece.place for piece in self.pieces if piece.place is not None), None)

    @property
    def outside(self) -> bool:
        """Whether the value is nothing but pieces that come from outside the script."""
        return bool(self.pieces) and all(piece.outside for piece in self.pieces)

    @property
    def given_text(self) -> str | None:
        """Text with outside variables taken as empty; None if another piece is unknown."""
        if any(piece.unknown and not piece.outside for piece in self.pieces):
            return None
        return "".join(piece.text for piece in self.pieces if not piece.unknown)

    def __add__(self, other: "Value") -> "Value":
        spend(len(self.pieces) // 10)
        return Value(self.pieces + other.pieces)

    def cut(self, start: int, end: int) -> "Value":
        """Return the characters from start to end of a value; an unknown piece is kept whole if the range touches it."""
        parts: list[Piece] = []
        at = 0
        spend(len(self.pieces) // 10)
        for piece in self.pieces:
            low, high = max(start - at, 0), min(end - at, len(piece.text))
            at += len(piece.text)
            if low < high:
                parts.append(piece if piece.unknown else piece.cut(low, high))
        return Value(tuple(parts))

    def stripped(self, characters: str) -> "Value":
        """Return the value without these characters at its end."""
        end = len(self.text.rstrip(characters)) if self.known else sum(len(p.text) for p in self.pieces)
        return self.cut(0, end)


EMPTY = Value()


def said(text: str, place: Place | None = None) -> Value:
    """Return a known value that was computed, not written: its place is the expression that made it."""
    return Value((Piece(text, place, exact=False),))


def not_known(spelled: str, why: str, place: Place | None = None, *, outside: bool = False) -> Value:
    """Return a value of one unknown piece."""
    return Value((Piece(spelled, place, unknown=why, outside=outside, exact=False),))


def joined(values: Iterable[Value], separator: str = "") -> Value:
    """Return the values joined by a separator."""
    parts: list[Piece] = []
    for i, value in enumerate(values):
        if i and separator:
            parts.append(Piece(separator))
        parts += value.pieces
        spend(1 + len(value.pieces))
    return Value(tuple(parts))


class Source:
    """Characters to parse: a file, or the text of a value such as the argument of `bash -c`. Says for each range where it was written."""

    def __init__(self, pieces: Iterable[Piece], *, end: Place | None = None) -> None:
        self._pieces = tuple(pieces)
        self._starts: list[int] = []
        at = 0
        for piece in self._pieces:
            self._starts.append(at)
            at += len(piece.text)
        self.text = "".join(piece.text for piece in self._pieces)
        self._end = end

    def pieces(self, start: int, end: int) -> tuple[Piece, ...]:
        """Return the pieces of a range."""
        found: list[Piece] = []
        index = max(0, bisect_right(self._starts, start) - 1)
        while index < len(self._pieces) and self._starts[index] < end:
            piece, at = self._pieces[index], self._starts[index]
            low, high = max(0, start - at), min(len(piece.text), end - at)
            if low < high:
                found.append(piece if piece.unknown else piece.cut(low, high))
            index += 1
        return tuple(found)

    def unknown(self, at: int) -> tuple[int, int] | None:
        """Return the range of the unknown piece that begins at or contains this character; None where the character is known."""
        index = bisect_right(self._starts, at) - 1
        if index < 0 or index >= len(self._pieces) or not self._pieces[index].unknown:
            return None
        return self._starts[index], self._starts[index] + len(self._pieces[index].text)

    def place(self, start: int, end: int) -> Place | None:
        """Return the place of a range, if it was written in one file."""
        found = [piece.place for piece in self.pieces(start, max(end, start + 1)) if piece.place is not None]
        if not found:
            return self._end
        first, last = found[0], found[-1]
        follows = last.file == first.file and last.end >= first.start
        return Place(first.file, first.line, first.start, last.end if follows else first.end)
