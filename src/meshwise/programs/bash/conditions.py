"""Tests of the shell: `[ ... ]`, `[[ ... ]]` -> true, false, or None where they cannot be decided without running something."""

import re
from collections.abc import Sequence

from meshwise.programs.bash import arithmetic, automaton, patterns
from meshwise.programs.bash.expansion import Expander
from meshwise.programs.bash.pieces import Value
from meshwise.programs.bash.words import Word

Truth = bool | None
NUMERIC = {"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="}
FILES = ("-e", "-f", "-d", "-s", "-r", "-w", "-x", "-h", "-L", "-b", "-c", "-p", "-S", "-a")
UNARY = ("-z", "-n", "-v", "-o", "-t", *FILES)
BINARY = ("=", "==", "!=", "<", ">", "=~", "-nt", "-ot", "-ef", *NUMERIC)


def negate(truth: Truth) -> Truth:
    """Return the opposite; unknown stays unknown."""
    return None if truth is None else not truth


def both(left: Truth, right: Truth) -> Truth:
    """Return whether both hold."""
    return False if left is False or right is False else None if left is None or right is None else True


def either(left: Truth, right: Truth) -> Truth:
    """Return whether one of them holds."""
    return True if left is True or right is True else None if left is None or right is None else False


class Condition:
    """A test read from left to right. `double`: [[ ]], where words are not split and the right side of == is a pattern."""

    def __init__(self, tokens: Sequence[Word | Value | str], expander: Expander, *, double: bool) -> None:
        self.tokens, self.expander, self.double, self.at = list(tokens), expander, double, 0

    def truth(self) -> Truth:
        """Return whether the test holds."""
        if not self.tokens:
            return False
        found = self._or()
        return found if self.at == len(self.tokens) else None

    def _text(self, offset: int = 0) -> str | None:
        """Return an operator, or the known text of a token of [ ]."""
        if self.at + offset >= len(self.tokens):
            return None
        token = self.tokens[self.at + offset]
        if isinstance(token, Word):
            return token.plain
        return token if isinstance(token, str) else token.text if token.known else None

    def _take(self, *texts: str) -> bool:
        if self._text() in texts:
            self.at += 1
            return True
        return False

    def _or(self) -> Truth:
        found = self._and()
        while self._take("||" if self.double else "-o"):
            found = either(found, self._and())
        return found

    def _and(self) -> Truth:
        found = self._not()
        while self._take("&&" if self.double else "-a"):
            found = both(found, self._not())
        return found

    def _not(self) -> Truth:
        if self._text() == "!" and len(self.tokens) - self.at > 1:
            self.at += 1
            return negate(self._not())
        if self._text() == "(" and self._text(1) not in BINARY:
            self.at += 1
            found = self._or()
            return found if self._take(")") else None
        return self._primary()

    def _value(self) -> Value:
        token = self.tokens[self.at]
        self.at += 1
        value = self.expander.string(token) if isinstance(token, Word) else token if isinstance(token, Value) else Value()
        self.expander.doubt(value)
        return value

    def _primary(self) -> Truth:
        operator = self._text(1)
        if operator in BINARY and self.at + 2 < len(self.tokens):
            return self._compare(operator)
        unary = self._text()
        if unary in UNARY and self.at + 1 < len(self.tokens):
            self.at += 1
            return self._unary(unary)
        if self.at >= len(self.tokens):
            return None
        return _filled(self._value())

    def _unary(self, operator: str) -> Truth:
        value = self._value()
        if operator in ("-z", "-n"):
            filled = False if self.expander.nothing_given and value.outside else _filled(value)
            return filled if operator == "-n" else negate(filled)
        if not value.known:
            return None
        if operator == "-v":
            return True if self.expander.variable(value.text) is not None else None
        if operator in FILES and value.text in self.expander.state.files:
            return operator != "-d"
        return None

    def _compare(self, operator: str) -> Truth:
        left = self._value()
        self.at += 1
        right = self.tokens[self.at] if self.at < len(self.tokens) else ""
        if self.double and operator in ("=", "==", "!=") and isinstance(right, Word):
            self.at += 1
            return self._matches(left, right, operator)
        value = self._value()
        if operator in NUMERIC:
            return self._numbers(left, value, NUMERIC[operator])
        if operator in ("=", "==", "!=") and self.expander.nothing_given and left.given_text == value.given_text:
            return operator != "!="
        if not left.known or not value.known:
            return None
        if operator == "=~":
            return _searched(left.text, value.text)
        if operator in ("=", "==", "!="):
            return (left.text == value.text) == (operator != "!=")
        if operator in ("<", ">"):
            return left.text < value.text if operator == "<" else left.text > value.text
        return None

    def _numbers(self, left: Value, right: Value, operator: str) -> Truth:
        if not left.known or not right.known:
            return None
        if not self.double and not all(re.fullmatch(r"\s*[-+]?\d+\s*", value.text) for value in (left, right)):
            return False
        try:
            return bool(arithmetic.calculate(f"({left.text}) {operator} ({right.text})", self.expander))
        except arithmetic.NotKnown:
            return None

    def _matches(self, left: Value, right: Word, operator: str) -> Truth:
        pattern = self.expander.pattern(right)
        if self.expander.nothing_given and pattern is not None and left.given_text == "".join(text for text, _ in pattern):
            return operator != "!="
        if not left.known or pattern is None:
            return _impossible(left, pattern, operator)
        found = patterns.matches(left.text, pattern, extended=True)
        return None if found is None else found == (operator != "!=")


def _filled(value: Value) -> Truth:
    """Return whether a value is not empty; a known piece in it is enough."""
    if any(piece.filled or (piece.text and not piece.unknown) for piece in value.pieces):
        return True
    return None if not value.known else False


def _impossible(left: Value, pattern: Sequence[tuple[str, bool]] | None, operator: str) -> Truth:
    """Return false where an unknown value cannot equal a text because its known beginning differs."""
    if pattern is None or not left.pieces or left.pieces[0].unknown:
        return None
    text, start = "".join(part for part, _ in pattern), left.pieces[0].text
    if any(not quoted and set(part) & set("*?[") for part, quoted in pattern) or text.startswith(start):
        return None
    return operator == "!="


def _searched(text: str, expression: str) -> Truth:
    found = automaton.regular(expression)
    return None if found is None else automaton.Automaton(found).found_in(text)
