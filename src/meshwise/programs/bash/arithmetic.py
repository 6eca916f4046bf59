"""Integer arithmetic of the shell: the expressions of `$((...))`, `((...))` and `let`."""

import re
from typing import Protocol

from meshwise.programs.bash.budget import spend

TOKEN = re.compile(
    r"\s*(?:(\d+#[0-9a-zA-Z]+|0[xX][0-9a-fA-F]+|\d+)|([A-Za-z_]\w*(?:\[[^\]]*\])?)|(<<=|>>=|\*\*|\+\+|--|&&|\|\||<<|>>|[-+*/%&|^<>=!]=|[-+*/%&|^<>=!~?:(),]))"
)
LEVELS = (
    ("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", "<=", ">", ">="), ("<<", ">>"), ("+", "-"),
    ("*", "/", "%"),
)  # fmt: skip
ASSIGNING = ("=", "+=", "-=", "*=", "/=", "%=", "<<=", ">>=", "&=", "|=", "^=")


class NotKnown(Exception):
    """The expression has no known value."""


class Numbers(Protocol):
    """The variables that an expression reads and sets."""

    def number(self, name: str) -> str:
        """Return the text of a variable; raise NotKnown if it is not known."""
        ...

    def assign(self, name: str, value: int) -> None:
        """Set a variable."""
        ...


def calculate(expression: str, numbers: Numbers, depth: int = 0) -> int:
    """Return the value of an expression; raise NotKnown where it is not an expression or depends on something unknown."""
    if depth > 20:
        raise NotKnown
    tokens: list[str] = []
    at = 0
    text = expression.replace('"', "").strip()
    if not text:
        return 0
    while at < len(text):
        spend()
        match = TOKEN.match(text, at)
        if match is None:
            raise NotKnown
        tokens.append(match.group().strip())
        at = match.end()
        if len(tokens) > 2000:
            raise NotKnown
    calculation = _Calculation(tokens, numbers, depth)
    value = calculation.comma()
    if calculation.at < len(tokens):
        raise NotKnown
    return value


class _Calculation:
    """Tokens, and how far they have been read. `live` is off in the branch that `?:`, `&&` or `||` does not take."""

    def __init__(self, tokens: list[str], numbers: Numbers, depth: int) -> None:
        self.tokens, self.numbers, self.depth, self.at, self.live = tokens, numbers, depth, 0, True
        self.brackets = 0

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, *expected: str) -> bool:
        if self.peek() in expected and self.peek():
            self.at += 1
            return True
        return False

    def comma(self) -> int:
        value = self.assignment()
        while self.take(","):
            value = self.assignment()
        return value

    def assignment(self) -> int:
        name = self.peek()
        following = self.tokens[self.at + 1] if self.at + 1 < len(self.tokens) else ""
        if following not in ASSIGNING or not _is_name(name):
            return self.ternary()
        self.at += 2
        value = self.assignment()
        if following != "=":
            value = _binary(following[:-1], self.variable(name), value)
        if self.live:
            self.numbers.assign(name, value)
        return value

    def ternary(self) -> int:
        test = self.binary(0)
        if not self.take("?"):
            return test
        yes = self.branch(self.assignment, bool(test))
        if not self.take(":"):
            raise NotKnown
        no = self.branch(self.assignment, not test)
        return yes if test else no

    def branch(self, read: "_Reader", taken: bool) -> int:
        """Read an operand; one that is not taken may be unknown and sets nothing."""
        before, self.live = self.live, self.live and taken
        value = read()
        self.live = before
        return value

    def binary(self, level: int) -> int:
        if level == len(LEVELS):
            return self.power()
        value = self.binary(level + 1)
        while self.peek() in LEVELS[level]:
            operator = self.peek()
            self.at += 1
            if operator in ("&&", "||"):
                right = self.branch(lambda: self.binary(level + 1), bool(value) == (operator == "&&"))
                value = int(bool(value) and bool(right)) if operator == "&&" else int(bool(value) or bool(right))
            else:
                right = self.binary(level + 1)
                value = _binary(operator, value, right) if self.live else 0
        return value

    def power(self) -> int:
        base = self.unary()
        return _binary("**", base, self.power()) if self.take("**") else base

    def unary(self) -> int:
        operator = self.peek()
        if operator in ("++", "--") and self.at + 1 < len(self.tokens) and _is_name(self.tokens[self.at + 1]):
            self.at += 2
            return self.step(self.tokens[self.at - 1], operator)
        if operator not in ("-", "+", "!", "~"):
            return self.primary()
        self.at += 1
        value = self.unary()
        return {"-": -value, "+": value, "!": int(not value), "~": ~value}[operator]

    def step(self, name: str, operator: str) -> int:
        value = self.variable(name) + (1 if operator == "++" else -1)
        if self.live:
            self.numbers.assign(name, value)
        return value

    def primary(self) -> int:
        if self.take("("):
            self.brackets += 1
            if self.brackets > 50:
                raise NotKnown
            value = self.comma()
            if not self.take(")"):
                raise NotKnown
            self.brackets -= 1
            return value
        token = self.peek()
        self.at += 1
        if _is_name(token):
            if self.peek() in ("++", "--"):
                operator = self.peek()
                self.at += 1
                return self.step(token, operator) - (1 if operator == "++" else -1)
            return self.variable(token)
        return _number(token)

    def variable(self, name: str) -> int:
        if not self.live:
            return 0
        return calculate(self.numbers.number(name), self.numbers, self.depth + 1)


class _Reader(Protocol):
    def __call__(self) -> int: ...


def _is_name(token: str) -> bool:
    return token[:1].isalpha() or token[:1] == "_"


def _number(token: str) -> int:
    try:
        if "#" in token:
            base, digits = token.split("#")
            return int(digits, int(base))
        number = int(token, 0) if token[:2].lower() == "0x" else int(token, 8 if token[0] == "0" and len(token) > 1 else 10)
        return _in_64_bits(number)
    except (ValueError, IndexError) as error:
        raise NotKnown from error


def _binary(operator: str, left: int, right: int) -> int:
    """Apply an operator in 64 bits; division cuts towards zero as in C."""
    if operator in ("/", "%"):
        if right == 0:
            raise NotKnown
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        return _in_64_bits(quotient if operator == "/" else left - quotient * right)
    if operator in ("<<", ">>", "**"):
        if not 0 <= right <= 63:
            raise NotKnown
        return _in_64_bits(left << right if operator == "<<" else left >> right if operator == ">>" else left**right)
    table = {
        "+": left + right, "-": left - right, "*": left * right, "&": left & right, "|": left | right, "^": left ^ right,
        "==": int(left == right), "!=": int(left != right), "<": int(left < right), "<=": int(left <= right),
        ">": int(left > right), ">=": int(left >= right),
    }  # fmt: skip
    return _in_64_bits(table[operator])


def _in_64_bits(number: int) -> int:
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def assigned(expression: str) -> list[str]:
    """Return the variables that an expression sets."""
    return re.findall(r"([A-Za-z_]\w*)\s*(?:[-+*/%&|^]?=(?!=)|\+\+|--)", expression)
