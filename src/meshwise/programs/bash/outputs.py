"""Commands whose output follows from their words alone, such as echo, seq and tr; none of them is run."""

import re
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath

from meshwise.programs.bash.arithmetic import NotKnown, calculate
from meshwise.programs.bash.budget import spend
from meshwise.programs.bash.pieces import EMPTY, Piece, Value, joined, said

MAX_SEQ_LINES = 10_000  # lines of `seq`; more are refused
NEWLINE = Value((Piece("\n"),))
ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", "r": "\r", '"': '"', "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


def output(name: str, words: Sequence[Value], stdin: Value | None) -> Value | None:
    """Return the output of a pure command; None if the command or its output is not known."""
    if name == "echo":
        return _echo(words)
    if name == "printf":
        return _printf(words)
    if not all(word.known for word in words):
        return None
    texts = [word.text for word in words]
    if name in PURE_COMMANDS:
        printed = PURE_COMMANDS[name](texts)
        return None if printed is None else said(printed + "\n", words[0].place if words else None)
    if name in FILTERS and stdin is not None and stdin.known:
        printed = FILTERS[name](texts, stdin.text)
        return None if printed is None else said(printed, stdin.place)
    return None


def _echo(words: Sequence[Value]) -> Value:
    flags = 0
    while flags < len(words) and re.fullmatch(r"-[neE]+", words[flags].text):
        flags += 1
    options = "".join(word.text for word in words[:flags])
    line = joined(words[flags:], " ")
    if "e" in options:
        line = _unescaped(line)
    return line if "n" in options else line + NEWLINE


def _unescaped(value: Value) -> Value:
    """Return a value with \\n and its like replaced; texts without a backslash keep their places."""
    pieces: list[Piece] = []
    for piece in value.pieces:
        if pieces and pieces[-1].text.endswith("\\") and not piece.unknown and not pieces[-1].unknown:
            piece = Piece(
                pieces.pop().text + piece.text, piece.place, exact=False
            )  # between double quotes a backslash is a piece
        pieces.append(piece)
    kept = (one.unknown or "\\" not in one.text for one in pieces)
    changed = (one if keep else Piece(_escapes(one.text), one.place, exact=False) for one, keep in zip(pieces, kept, strict=True))
    return Value(tuple(changed))


def _escapes(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: ESCAPES.get(match.group(1), match.group()), text)


def _printf(words: Sequence[Value]) -> Value | None:
    """Format words; the format is used again while words are left, as printf does."""
    words = words[1:] if words and words[0].text == "--" else words
    if not words or not words[0].known or words[0].text.startswith("-v"):
        return None
    shape, rest, out = words[0], list(words[1:]), list[Value]()
    places = re.split(r"(%%|%[-0 #+]{0,5}\d{0,3}(?:\.\d{1,3})?[sdifgxXbq])", shape.text)
    if "%" in "".join(places[::2]):
        return None
    while True:
        for text in places:
            spend()
            if not text.startswith("%") or text == "%%":
                out.append(said(_escapes(text).replace("%%", "%"), shape.place))
                continue
            word = rest.pop(0) if rest else EMPTY
            formatted = _formatted(text, word)
            if formatted is None:
                return None
            out.append(formatted)
        if not rest or len(places) == 1:
            return joined(out)


def _formatted(shape: str, word: Value) -> Value | None:
    if shape in ("%s", "%b"):
        return _unescaped(word) if shape == "%b" else word
    if not word.known or shape[-1] == "q":
        return None
    try:
        if shape[-1] in "sb":
            return said(shape.replace("b", "s") % word.text, word.place)
        if shape[-1] in "dixX":
            return said(shape.replace("i", "d") % int(word.text or "0", 0), word.place)
        return said(shape % float(word.text or 0), word.place)
    except (ValueError, TypeError, OverflowError):
        return None


def _basename(texts: list[str]) -> str | None:
    if not texts or texts[0].startswith("-"):
        return None
    name = texts[0].rstrip("/").rpartition("/")[2]
    return name[: -len(texts[1])] if len(texts) > 1 and texts[1] and name.endswith(texts[1]) and name != texts[1] else name


def _dirname(texts: list[str]) -> str | None:
    return str(PurePosixPath(texts[0]).parent) if len(texts) == 1 and texts[0] else None


def _seq(texts: list[str]) -> str | None:
    separator = "\n"
    if len(texts) > 2 and texts[0] == "-s":
        separator, texts = texts[1], texts[2:]
    if not 1 <= len(texts) <= 3 or not all(re.fullmatch(r"-?\d{1,9}", text) for text in texts):
        return None
    numbers = [int(text) for text in texts]
    first, step, last = (1, 1, numbers[0]) if len(numbers) == 1 else (numbers[0], 1, numbers[1]) if len(numbers) == 2 else numbers
    if step == 0 or abs(last - first) // abs(step) > MAX_SEQ_LINES:
        return None
    spend(abs(last - first) // abs(step) * (1 + len(separator)))
    values = range(first, last + 1, step) if step > 0 else range(first, last - 1, step)
    return separator.join(map(str, values)) if values else None


def _expr(texts: list[str]) -> str | None:
    """Compute `expr a + b` and its like with numbers; products before sums, from the left."""
    if not texts or not all(re.fullmatch(r"-?\d{1,18}|[-+*/%]", text) for text in texts) or len(texts) % 2 == 0:
        return None
    terms: list[int] = []
    sign = 1
    try:
        terms.append(int(texts[0]))
        for operator, text in zip(texts[1::2], texts[2::2], strict=True):
            number = int(text)
            if operator in "+-":
                sign = 1 if operator == "+" else -1
                terms.append(sign * number)
            elif operator == "*":
                terms[-1] *= number
            else:
                quotient = abs(terms[-1]) // abs(number) * (1 if (terms[-1] < 0) == (number < 0) else -1)
                terms[-1] = quotient if operator == "/" else terms[-1] - quotient * number
    except (ValueError, ZeroDivisionError):
        return None
    return str(sum(terms))


def _bc(texts: list[str], stdin: str) -> str | None:
    """Compute one line of whole numbers, as `echo "$a * $b" | bc` does."""
    line = stdin.strip().removeprefix("scale=0;").strip()
    exact = set(texts) <= {"-l", "-q"} and not ("-l" in texts and "/" in line)
    if not exact or not re.fullmatch(r"[\d+*/%() -]+", line):
        return None
    try:
        return f"{calculate(re.sub(r'(?<![0-9])0+(?=[0-9])', '', line), _NoVariables())}\n"
    except NotKnown:
        return None


class _NoVariables:
    def number(self, name: str) -> str:
        raise NotKnown

    def assign(self, name: str, value: int) -> None: ...


def _tr(texts: list[str], stdin: str) -> str | None:
    plain = [_escapes(text) for text in texts]
    if len(plain) == 2 and plain[0] == "-d" and "-" not in plain[1] and "[" not in plain[1]:
        return "".join(char for char in stdin if char not in plain[1])
    if plain == ["a-z", "A-Z"] or plain == ["[:lower:]", "[:upper:]"]:
        return stdin.upper()
    if plain == ["A-Z", "a-z"] or plain == ["[:upper:]", "[:lower:]"]:
        return stdin.lower()
    if len(plain) != 2 or not plain[1] or any(len(text) > 1 and ("-" in text or "[" in text) for text in plain):
        return None
    target = plain[1] + plain[1][-1] * max(0, len(plain[0]) - len(plain[1]))
    return stdin.translate(str.maketrans(plain[0], target[: len(plain[0])]))


def _wc(texts: list[str], stdin: str) -> str | None:
    counts = {"-l": stdin.count("\n"), "-w": len(stdin.split()), "-c": len(stdin.encode(errors="replace")), "-m": len(stdin)}
    return f"{counts[texts[0]]}\n" if len(texts) == 1 and texts[0] in counts else None


def _cut(texts: list[str], stdin: str) -> str | None:
    match = re.fullmatch(r"-d ?(.) -f ?(\d{1,9})|-f ?(\d{1,9}) -d ?(.)", " ".join(texts))
    if match is None:
        return None
    separator, number = match.group(1) or match.group(4), int(match.group(2) or match.group(3))
    lines = [(line, line.split(separator)) for line in stdin.splitlines()]  # a line without the separator is printed whole
    return "".join(f"{line if len(cut) == 1 else cut[number - 1] if number <= len(cut) else ''}\n" for line, cut in lines)


def _head(texts: list[str], stdin: str) -> str | None:
    match = re.fullmatch(r"-n ?(\d{1,9})|-(\d{1,9})|", " ".join(texts))
    return None if match is None else "".join(stdin.splitlines(keepends=True)[: int(match.group(1) or match.group(2) or 10)])


def _xargs(texts: list[str], stdin: str) -> str | None:
    return None if texts and texts != ["echo"] else " ".join(stdin.split()) + "\n"


def _awk(texts: list[str], stdin: str) -> str | None:
    """Count fields, as `awk -F, '{print NF}'` does for a list of devices."""
    match = re.fullmatch(r"-F ?(\S) \{ ?print NF ?;?\}", " ".join(texts))
    return None if match is None else "".join(f"{len(line.split(match[1])) if line else 0}\n" for line in stdin.splitlines())


PURE_COMMANDS: dict[str, Callable[[list[str]], str | None]] = {
    "basename": _basename, "dirname": _dirname, "seq": _seq, "expr": _expr,
}  # fmt: skip
FILTERS: dict[str, Callable[[list[str], str], str | None]] = {
    "bc": _bc, "tr": _tr, "wc": _wc, "cut": _cut, "head": _head, "xargs": _xargs, "awk": _awk,
}  # fmt: skip
