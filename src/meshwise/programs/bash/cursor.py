"""A position in a script: blanks, comments, line ends and the heredocs after them."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from meshwise.programs.bash import tree
from meshwise.programs.bash.budget import spend
from meshwise.programs.bash.pieces import Source
from meshwise.programs.bash.words import BLANK, META, Literal, Parameter, ShellSyntaxError, Word, WordReader

Nested = Callable[[int], tuple[tuple[object, ...], int]]
"""Parses statements from a position on; returns them, and the position of what ends them."""


class Cursor(ABC):
    """A position in a source, and the heredocs whose lines follow."""

    def __init__(self, source: Source) -> None:
        self.source, self.text, self.at = source, source.text, 0
        self.heredocs: list[tree.Redirect] = []
        self.notes: list[tree.Note] = []

    def line(self) -> int:
        """Return the line of the position."""
        place = self.source.place(self.at, self.at + 1)
        return place.line if place else 0

    def skip_line(self, why: str) -> None:
        """Note what could not be parsed, and go to the next line."""
        place = self.source.place(self.at, self.at + 1)
        self.notes.append(tree.Note(place.file if place else "", place.line if place else 0, why))
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end
        self.heredocs.clear()
        self.newline()

    def blanks(self) -> None:
        """Skip blanks, continued lines and a comment."""
        text = self.text
        while self.at < len(text):
            spend()
            if text[self.at] in BLANK:
                self.at += 1
            elif text.startswith("\\\n", self.at):
                self.at += 2
            elif text.startswith("\\\r\n", self.at):
                self.at += 3
            elif text[self.at] == "#" and (self.at == 0 or text[self.at - 1] in META):
                end = text.find("\n", self.at)
                self.at = len(text) if end < 0 else end
            else:
                return

    def newline(self) -> bool:
        """Pass a line break and the heredocs after it."""
        if not self.text.startswith("\n", self.at):
            return False
        spend()
        self.at += 1
        waiting, self.heredocs = self.heredocs, []
        for redirect in waiting:
            self._heredoc(redirect)
        return True

    def gaps(self) -> None:
        """Skip blanks, comments and line breaks."""
        self.blanks()
        while self.newline():
            self.blanks()

    def starts(self, text: str) -> bool:
        """Return whether a text stands here."""
        return self.text.startswith(text, self.at)

    def peek(self) -> str:
        """Return the plain word that stands here, such as a reserved word."""
        end = self.at
        while end < len(self.text) and self.text[end] not in META:
            end += 1
        return self.text[self.at : end]

    def expect(self, word: str) -> None:
        """Pass a reserved word."""
        self.gaps()
        if self.peek() != word:
            raise ShellSyntaxError(f"{word} is expected", self.at)
        self.at += len(word)

    def character(self, char: str) -> None:
        """Pass a character."""
        self.gaps()
        if not self.starts(char):
            raise ShellSyntaxError(f"{char} is expected", self.at)
        self.at += len(char)

    def _heredoc(self, redirect: tree.Redirect) -> None:
        """Read the lines of a heredoc; with a quoted end they are taken as they are."""
        parts = redirect.target.parts
        end = "".join(p.text for part in parts if isinstance(part, Literal) for p in part.pieces)
        end += "".join(part.spelled for part in parts if isinstance(part, Parameter))
        quoted = any(isinstance(part, Literal) and part.quoted for part in parts)
        tabs = redirect.operator == "<<-"
        begin, kept = self.at, list[tuple[int, int]]()
        while self.at < len(self.text):
            stop = self.text.find("\n", self.at)
            stop = len(self.text) if stop < 0 else stop + 1
            line = self.text[self.at : stop]
            start = self.at + (len(line) - len(line.lstrip("\t")) if tabs else 0)
            self.at = stop
            if self.text[start:stop].rstrip("\r\n") == end:
                break
            kept.append((start, stop))
        else:
            place = self.source.place(begin, begin + 1)
            file, line = (place.file, place.line) if place else ("", 0)
            self.notes.append(tree.Note(file, line, f"the heredoc is not ended by {end}"))
        pieces = tuple(piece for start, stop in kept for piece in self.source.pieces(start, stop))
        redirect.body = Word((Literal(pieces, True),))
        if not quoted:
            body = Source(pieces)
            reader = WordReader(body, self.inner(body))
            reader.escapes = "$`\\"
            try:
                redirect.body = reader.inside(0, "", quoted=True)[0]
            except ShellSyntaxError as error:
                place = body.place(error.at, error.at + 1)
                self.notes.append(tree.Note(place.file if place else "", place.line if place else 0, str(error)))

    @abstractmethod
    def inner(self, source: Source) -> Nested:
        """Return what parses `$(...)` inside a heredoc."""
