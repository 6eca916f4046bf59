"""Patterns of a script, matched by an automaton that follows all ways at once: Python's `re` can take for ever on a foreign one."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from meshwise.programs.bash.budget import spend

Test = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class One:
    """One character that satisfies a test."""

    test: Test


@dataclass(frozen=True, slots=True)
class Sequence:
    """Expressions one after the other."""

    parts: tuple["Expression", ...]


@dataclass(frozen=True, slots=True)
class Either:
    """One of several expressions."""

    parts: tuple["Expression", ...]


@dataclass(frozen=True, slots=True)
class Many:
    """An expression several times: `?` is none or once, `*` any number, `+` at least once."""

    part: "Expression"
    how: str


@dataclass(frozen=True, slots=True)
class Edge:
    """The beginning (`^`) or the end (`$`) of the text."""

    sign: str


Expression = One | Sequence | Either | Many | Edge
CLASSES: dict[str, Test] = {
    "alpha": str.isalpha, "digit": str.isdecimal, "alnum": str.isalnum, "upper": str.isupper, "lower": str.islower,
    "space": str.isspace, "xdigit": lambda c: c in "0123456789abcdefABCDEF", "blank": lambda c: c in " \t",
}  # fmt: skip
ANYTHING = Many(One(lambda _: True), "*")


def letter(char: str) -> One:
    return One(lambda other: other == char)


def bracket(inner: str) -> One | None:
    """Return the expression of the inside of `[...]`; None for a class that is not known."""
    negated = inner[:1] in ("!", "^")
    at, tests = int(negated), list[Test]()
    while at < len(inner):
        end = inner.find(":]", at) if inner.startswith("[:", at) else -1
        if end > 0:
            known = CLASSES.get(inner[at + 2 : end])
            if known is None:
                return None
            tests.append(known)
            at = end + 2
        elif inner[at + 1 : at + 2] == "-" and at + 2 < len(inner):
            tests.append(lambda c, low=inner[at], high=inner[at + 2]: low <= c <= high)
            at += 3
        else:
            tests.append(lambda c, same=inner[at]: c == same)
            at += 1
    return One(lambda c: any(test(c) for test in tests) != negated)


def reverse(expression: Expression) -> Expression:
    """Return the expression of the same texts read backwards."""
    if isinstance(expression, Sequence):
        return Sequence(tuple(reverse(part) for part in reversed(expression.parts)))
    if isinstance(expression, Either):
        return Either(tuple(reverse(part) for part in expression.parts))
    return Many(reverse(expression.part), expression.how) if isinstance(expression, Many) else expression


class Automaton:
    """States of an expression: each has a test of the next character, an edge, or neither; and the states after it."""

    def __init__(self, expression: Expression) -> None:
        self._tests: list[Test | str | None] = [None]
        self._after: list[list[int]] = [[]]
        self._start = self._link(expression, 0)  # state 0 accepts

    def _state(self, test: Test | str | None, after: list[int]) -> int:
        spend()
        self._tests.append(test)
        self._after.append(after)
        return len(self._tests) - 1

    def _link(self, expression: Expression, target: int) -> int:
        """Add the states of an expression in front of a state; return the first of them."""
        if isinstance(expression, One):
            return self._state(expression.test, [target])
        if isinstance(expression, Edge):
            return self._state(expression.sign, [target])
        if isinstance(expression, Sequence):
            for part in reversed(expression.parts):
                target = self._link(part, target)
            return target
        if isinstance(expression, Either):
            return self._state(None, [self._link(part, target) for part in expression.parts])
        split = self._state(None, [target])
        first = self._link(expression.part, split if expression.how in "*+" else target)
        self._after[split].append(first)
        return first if expression.how == "+" else split

    def _reached(self, states: set[int], text: str, at: int) -> set[int]:
        """Return states with those that follow without a character."""
        found, left = set(states), list(states)
        while left:
            state = left.pop()
            test = self._tests[state]
            if test is None or (test == "^" and at == 0) or (test == "$" and at == len(text)):
                more = [one for one in self._after[state] if one not in found]
                found.update(more)
                left += more
        spend(len(found))
        return found

    def ends(self, text: str, start: int = 0) -> Iterator[int]:
        """Yield the end of every match that begins at `start`, the shortest first."""
        states = self._reached({self._start}, text, start)
        for at in range(start, len(text) + 1):
            if 0 in states:
                yield at
            if not states or at == len(text):
                return
            after = {n for one in states if callable(test := self._tests[one]) and test(text[at]) for n in self._after[one]}
            states = self._reached(after, text, at + 1)

    def matches(self, text: str) -> bool:
        """Return whether the whole text matches."""
        return len(text) in self.ends(text)

    def found_in(self, text: str) -> bool:
        """Return whether a part of the text matches."""
        return any(True for start in range(len(text) + 1) for _ in self.ends(text, start))


def regular(text: str) -> Expression | None:
    """Return the expression of `[[ x =~ text ]]`, an extended regular expression; None for what it may hold beyond the usual."""
    reader = _Reader(text)
    found = reader.either(0)
    return found if found is not None and reader.at == len(text) else None


class _Reader:
    """An extended regular expression, read from left to right."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def either(self, depth: int) -> Expression | None:
        parts: list[Expression] = []
        while depth < 20:
            part = self._sequence(depth)
            if part is None:
                return None
            parts.append(part)
            if self.text[self.at : self.at + 1] != "|":
                return Either(tuple(parts))
            self.at += 1
        return None

    def _sequence(self, depth: int) -> Expression | None:
        parts: list[Expression] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            spend()
            part = self._atom(depth)
            while part is not None and self.text[self.at : self.at + 1] in ("*", "+", "?"):
                part = Many(part, self.text[self.at])
                self.at += 1
            if part is None:
                return None
            parts.append(part)
        return Sequence(tuple(parts))

    def _atom(self, depth: int) -> Expression | None:
        char = self.text[self.at]
        self.at += 1
        if char in "*+?{":
            return None
        if char in "^$":
            return Edge(char)
        if char == ".":
            return One(lambda _: True)
        if char == "\\":
            escaped = self.text[self.at : self.at + 1]
            self.at += 1
            return letter(escaped) if escaped and not escaped.isalnum() else None
        if char == "(":
            found = self.either(depth + 1)
            closed = self.text[self.at : self.at + 1] == ")"
            self.at += 1
            return found if closed else None
        if char == "[":
            return self._bracket()
        return letter(char)

    def _bracket(self) -> Expression | None:
        """Read `[...]`, whose first character may be a bracket, and which may hold `[:classes:]`."""
        end = self.at + (self.text[self.at : self.at + 1] == "^")
        end += self.text[end : end + 1] == "]"
        while end < len(self.text) and self.text[end] != "]":
            closed = self.text.find(":]", end) if self.text.startswith("[:", end) else -1
            end = closed + 2 if closed > 0 else end + 1
        inner, self.at = self.text[self.at : end], end + 1
        return bracket(inner) if end < len(self.text) and not inner.startswith("!") else None
