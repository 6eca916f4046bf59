"""Expansion: words of the tree -> values, as the shell does it, without running anything."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from meshwise.programs.bash import arithmetic, patterns
from meshwise.programs.bash.braces import braces
from meshwise.programs.bash.pieces import EMPTY, Piece, Place, Value, joined, not_known, said
from meshwise.programs.bash.state import Array, State, Variable, is_given
from meshwise.programs.bash.words import Arithmetic, Literal, Parameter, Part, Substitution, Word

ARGUMENT = "an argument of the script"
ENVIRONMENT = "set outside the script"
COMMAND = "output of a command"


@dataclass(frozen=True, slots=True)
class Fragment:
    """A part of a word after expansion. A break ends a field."""

    value: Value
    quoted: bool
    is_break: bool = False


BREAK = Fragment(EMPTY, False, True)


class Expander:
    """Expands words in a state. `output` gives the text of a substitution; `fixed` are variables that the caller sets for good."""

    def __init__(self, state: State, fixed: Mapping[str, Value], output: Callable[[Substitution], Value]) -> None:
        self.state, self.fixed, self._output = state, fixed, output
        self.testing = False
        """Inside a test, a variable that nothing sets is empty, and is remembered in `assumed`."""
        self.assumed: dict[str, None] = {}
        self.nothing_given = False
        """Whether a test is evaluated as if no argument and no variable of the environment were given."""
        self.doubts: dict[str, None] = {}
        """How the script spells what the last test depends on and is not known."""

    # variables

    def variable(self, name: str, spelled: str = "", place: Place | None = None) -> Variable | None:
        """Return a variable, None if nothing sets it."""
        if name in self.fixed:
            return self.fixed[name]
        if name.isdigit() and name != "0":
            if len(name) > 9:
                return EMPTY
            arguments = self.state.arguments
            if arguments is None:
                return not_known(spelled or f"${name}", ARGUMENT, place, outside=True)
            return arguments[int(name) - 1] if int(name) <= len(arguments) else EMPTY
        if name == "0":
            return said(self.state.script)
        if name == "#":
            arguments = self.state.arguments
            return not_known("$#", ARGUMENT, place) if arguments is None else said(str(len(arguments)), place)
        if name in ("?", "$", "!", "-"):
            return not_known(spelled or f"${name}", "a value of the running shell", place)
        return self.state.variables.get(name)

    def assign(self, name: str, value: int) -> None:
        """Set a variable from an expression."""
        base, _, index = name.partition("[")
        if index:
            array = self.state.variables.get(base)
            whole = array if isinstance(array, Array) else Array()
            key: int | str = index[:-1] if whole.named else arithmetic.calculate(index[:-1], self)
            self.state.variables[base] = whole.with_item(key, said(str(value)))
        else:
            self.state.variables[name] = said(str(value))

    def number(self, name: str) -> str:
        """Return the text of a variable of an expression; one that nothing sets is unknown."""
        base, _, index = name.partition("[")
        found = self.variable(base)
        if isinstance(found, Array):
            key: int | str = index[:-1] if found.named else arithmetic.calculate(index[:-1] or "0", self)
            found = dict(found.items).get(key, EMPTY)
        if found is None and self.testing and not is_given(name):
            self.assumed[name] = None
            return ""
        if found is None or not found.known:
            raise arithmetic.NotKnown
        return found.text

    def separators(self) -> str:
        """Return IFS."""
        value = self.state.variables.get("IFS")
        return value.text if isinstance(value, Value) and value.known else " \t\n"

    def is_outside(self, name: str) -> bool:
        """Return whether a variable that nothing in the script sets is usually set before it starts."""
        return is_given(name)

    def split(self, value: Value) -> list[Value]:
        """Return the words of a value that is not quoted."""
        return self._split([Fragment(value, False)])

    def doubt(self, value: Value) -> None:
        """Remember what a test depends on, where it is not known."""
        for piece in value.unknown[:4]:
            self.doubts[piece.by.partition(" (")[0] or piece.text] = None

    def chosen(self, word: Value, fork: int, way: int) -> list[Value]:
        """Return the words that a word becomes where an undecided test goes one way."""
        if not any(piece.fork == fork for piece in word.pieces):
            return [word]
        fragments: list[Fragment] = []
        for piece in word.pieces:
            choice = piece.choices[way] if piece.fork == fork and way < len(piece.choices) else Value((piece,))
            if choice is None:
                if len(word.pieces) == 1:
                    return []
                continue
            fragments.append(Fragment(choice, not (piece.fork == fork and piece.loose)))
        return self._split(fragments)

    # words

    def fields(self, word: Word) -> list[Value]:
        """Return the words that a word of the script becomes: none, one or several."""
        return [field for each in braces(word) for field in self._split(self.fragments(self._home(each).parts))]

    def string(self, word: Word) -> Value:
        """Return a word as one string, without splitting: the value of an assignment."""
        fragments = self.fragments(self._home(word).parts)
        return joined(Value((Piece(" "),)) if fragment.is_break else fragment.value for fragment in fragments)

    def pattern(self, word: Word) -> list[tuple[str, bool]] | None:
        """Return a word as a pattern: texts with whether they are quoted; None if a part is unknown."""
        found = [(fragment.value.text, fragment.quoted) for fragment in self.fragments(word.parts)]
        return found if all(fragment.value.known for fragment in self.fragments(word.parts)) else None

    def _home(self, word: Word) -> Word:
        """Spell `~` at the beginning as the home folder, which is not known."""
        first = word.parts[0] if word.parts else None
        if not isinstance(first, Literal) or first.quoted or not first.pieces or not re.match(r"~(?=/|$)", first.pieces[0].text):
            return word
        if first.pieces[0].text == "~" and len(first.pieces) == 1 and len(word.parts) > 1:
            return word
        tilde = not_known("~", ENVIRONMENT, first.pieces[0].place).pieces
        rest = first.pieces[0].cut(1, len(first.pieces[0].text))
        return Word((Literal((*tilde, rest, *first.pieces[1:]), True), *word.parts[1:]), word.place)

    def fragments(self, parts: tuple[Part, ...]) -> list[Fragment]:
        """Expand parts without splitting them."""
        found: list[Fragment] = []
        for part in parts:
            if isinstance(part, Literal):
                found.append(Fragment(Value(part.pieces), part.quoted))
            elif isinstance(part, Parameter):
                found += self._parameter(part)
            elif isinstance(part, Arithmetic):
                found.append(Fragment(self.arithmetic(part), part.quoted))
            elif isinstance(part, Substitution):
                found.append(Fragment(self._output(part), part.quoted))
            else:
                found.append(Fragment(not_known(part.spelled, part.why, part.place), True))
        return found

    def arithmetic(self, part: Arithmetic) -> Value:
        """Return the value of `$((...))`."""
        expression = self.string(part.expression)
        try:
            if not expression.known:
                raise arithmetic.NotKnown
            return said(str(arithmetic.calculate(expression.text, self)), part.place)
        except arithmetic.NotKnown:
            return not_known(part.spelled, "arithmetic with a value that is not known", part.place)

    def _split(self, fragments: list[Fragment]) -> list[Value]:
        """Split what is not quoted at IFS."""
        separators = self.separators()
        fields: list[Value] = []
        current: Value | None = None
        pending = False  # a delimiter that is no blank ended a field, so that the next one exists even if it is empty
        for fragment in fragments:
            if fragment.is_break:
                if current is not None:
                    fields.append(current)
                current = None
            elif fragment.quoted:
                current = (current or EMPTY) + fragment.value
            elif not fragment.value.known and len(fragment.value.pieces) == 1:
                current = (current or EMPTY) + Value((replace(fragment.value.pieces[0], loose=True),))
            else:
                current, pending = self._cut(fragment.value, separators, fields, current, pending)
        if current is not None:
            fields.append(current)
        return fields

    def _cut(
        self, value: Value, separators: str, fields: list[Value], current: Value | None, pending: bool
    ) -> tuple[Value | None, bool]:
        """Split one unquoted value, adding whole fields; return the field that goes on after it."""
        for piece in value.pieces:
            if piece.unknown:
                current = (current or EMPTY) + Value((replace(piece, loose=True),))
                continue
            start = 0
            for at, char in enumerate(piece.text):
                if char not in separators:
                    continue
                if at > start:
                    current = (current or EMPTY) + Value((piece.cut(start, at),))
                if current is not None:
                    fields.append(current)
                    pending = not char.isspace()
                elif not char.isspace():
                    if pending or not fields:
                        fields.append(EMPTY)
                    pending = True
                current, start = None, at + 1
            if start < len(piece.text):
                current = (current or EMPTY) + Value((piece.cut(start, len(piece.text)),))
                pending = False
        return current, pending

    # parameters

    def _parameter(self, part: Parameter) -> list[Fragment]:
        """Expand `$x` and `${x...}`."""
        every = self._every(part)
        if every is not None:
            return self._list(part, every)
        if part.indirect:
            return self._indirect(part)
        value = self._scalar(part)
        if part.length:
            size = EMPTY if value is None else value
            known = said(str(len(size.text)), part.place) if size.known else not_known(part.spelled, _why(size), part.place)
            return [Fragment(known, part.quoted)]
        kind = part.operator.lstrip(":") if len(part.operator) == 2 and part.operator[0] == ":" else part.operator
        if kind in ("-", "=", "+", "?") and part.argument is not None:
            return self._default(part, kind, value)
        if value is None:
            value = EMPTY if isinstance(self.state.variables.get(part.name), Array) else self._unset(part)
        return [Fragment(self._operated(part, value), part.quoted)]

    def _unset(self, part: Parameter) -> Value:
        """Return the value of an unset variable: empty in a test, unless it is usually set from outside; otherwise unknown."""
        if self.testing and not is_given(part.name):
            self.assumed[part.name] = None
            return EMPTY
        return not_known(part.spelled, ENVIRONMENT, part.place, outside=True)

    def _scalar(self, part: Parameter) -> Value | None:
        """Return one value of a parameter; None if it is not set."""
        found = self.variable(part.name, part.spelled, part.place)
        if not isinstance(found, Array):
            if part.index is not None and found is not None and self._key(part.index, Array()) not in (0, None):
                return None
            return found
        key = 0 if part.index is None else self._key(part.index, found)
        return not_known(part.spelled, "an index that is not known", part.place) if key is None else dict(found.items).get(key)

    def _key(self, index: Word, array: Array) -> int | str | None:
        text = self.string(index)
        if array.named:
            return text.text if text.known else None
        try:
            number = arithmetic.calculate(text.text, self)
        except arithmetic.NotKnown:
            return None
        last = max((int(key) for key, _ in array.items), default=-1)
        return number if number >= 0 else last + 1 + number

    def key(self, index: Word, name: str) -> int | str | None:
        """Return the key of `name[index]`."""
        found = self.state.variables.get(name)
        return self._key(index, found if isinstance(found, Array) else Array())

    def _every(self, part: Parameter) -> list[Value] | None:
        """Return all elements of `$@`, `${a[@]}` and their like; None for a parameter of one value."""
        if part.name in ("@", "*"):
            arguments = self.state.arguments
            return [not_known(part.spelled, ARGUMENT, part.place, outside=True)] if arguments is None else list(arguments)
        if part.index is None or part.index.plain not in ("@", "*"):
            return None
        found = self.variable(part.name)
        if part.indirect and isinstance(found, Array):
            return [said(str(key)) for key, _ in found.items]
        if isinstance(found, Array):
            return found.values
        if found is None:
            empty = self.testing or part.length or (part.name not in self.fixed and not is_given(part.name))
            return [] if empty else [self._unset(part)]
        return [found]

    def _list(self, part: Parameter, every: list[Value]) -> list[Fragment]:
        star = part.name == "*" or (part.index is not None and part.index.plain == "*")
        if part.length:
            uncertain = next((piece for value in every for piece in value.pieces if piece.unknown), None)
            if uncertain is not None:  # it may be several words, or none
                return [Fragment(not_known(part.spelled, uncertain.unknown, part.place), part.quoted)]
            return [Fragment(said(str(len(every)), part.place), part.quoted)]
        kind = part.operator.lstrip(":")
        if part.operator and kind in ("-", "=", "+", "?") and part.argument is not None:
            if bool(every) == (kind == "+"):
                return self.fragments(part.argument.parts)
            every = [] if kind == "+" else every
        elif part.operator == ":":
            every = self._sliced(part, every)
        elif part.operator:
            every = [self._operated(part, value) for value in every]
        if star and part.quoted:
            return [Fragment(joined(every, self.separators()[:1]), True)]
        fragments: list[Fragment] = []
        for i, value in enumerate(every):
            fragments += [BREAK] if i else []
            fragments.append(Fragment(value, part.quoted))
        return fragments

    def _sliced(self, part: Parameter, every: list[Value]) -> list[Value]:
        """Return `${a[@]:start:length}`; arguments count from 1."""
        bounds = self._bounds(part)
        if bounds is None:
            return [not_known(part.spelled, "an index that is not known", part.place)]
        start, size = bounds
        whole = [said(self.state.script), *every] if part.name in ("@", "*") else every
        start = start if start >= 0 else len(whole) + start
        return whole[max(0, start) :] if size is None else whole[max(0, start) : max(0, start) + max(0, size)]

    def _bounds(self, part: Parameter) -> tuple[int, int | None] | None:
        try:
            first = self.string(part.argument) if part.argument else EMPTY
            second = self.string(part.second) if part.second else None
            if not first.known or (second is not None and not second.known):
                return None
            return arithmetic.calculate(first.text, self), None if second is None else arithmetic.calculate(second.text, self)
        except arithmetic.NotKnown:
            return None

    def _indirect(self, part: Parameter) -> list[Fragment]:
        value = self._scalar(part)
        if value is None or not value.known or part.operator == "@" or not re.fullmatch(r"\w+", value.text):
            return [Fragment(not_known(part.spelled, "a name that is not known", part.place), part.quoted)]
        return self._parameter(replace(part, name=value.text, indirect=False, index=None))

    def _default(self, part: Parameter, kind: str, value: Value | None) -> list[Fragment]:
        """Expand `${x:-default}`, `:=`, `:+` and `:?`. What comes from outside counts as not given."""
        argument = part.argument
        assert argument is not None
        given = value is not None and not value.outside
        colon = part.operator[0] == ":"
        if given and value is not None and len(value.pieces) == 1 and value.pieces[0].fork and colon and kind in ("-", "="):
            otherwise, piece = self.string(argument), value.pieces[0]
            chosen = tuple(one if one is not None and one.pieces else otherwise for one in piece.choices)
            return [Fragment(Value((replace(piece, choices=chosen),)), part.quoted)]
        if given and value is not None and not value.known and colon:
            full = any(piece.filled or (not piece.unknown and piece.text) for piece in value.pieces)
            if not full:
                return [Fragment(not_known(part.spelled, _why(value), part.place), part.quoted)]
        filled = given and value is not None and (not colon or bool(value.pieces and value.text))
        if not filled and part.name not in self.fixed:
            self.assumed[part.name] = None
        if kind == "+":
            if value is None and is_given(part.name):
                return [Fragment(not_known(part.spelled, ENVIRONMENT, part.place), part.quoted)]
            return self.fragments(argument.parts) if filled else [Fragment(EMPTY, part.quoted)]
        if filled and value is not None:
            return [Fragment(value, part.quoted)]
        if kind == "?":
            return [Fragment(self._unset(part), part.quoted)]
        if kind == "=":
            self.state.variables[part.name] = self.string(argument)
        return self.fragments(argument.parts)

    def _operated(self, part: Parameter, value: Value) -> Value:
        """Apply `#`, `%`, `/`, `:`, `^` or `,`."""
        operator = part.operator
        if not operator:
            return value
        unknown = not_known(part.spelled, _why(value), part.place)
        pattern = self.pattern(part.argument) if part.argument is not None else []
        if not value.known or pattern is None:
            return unknown
        if operator in ("#", "##", "%", "%%"):
            kept = patterns.trimmed(value.text, pattern, operator)
            return unknown if kept is None else value.cut(*kept)
        if operator[0] == "/":
            new = self.string(part.second) if part.second is not None else EMPTY
            text = patterns.replaced(value.text, pattern, new.text, operator) if new.known else None
            return unknown if text is None else value if text == value.text else said(text, part.place)
        if operator == ":":
            return self._substring(part, value) or unknown
        if operator in ("^", "^^", ",", ",,") and not pattern:
            change = str.upper if operator[0] == "^" else str.lower
            text = value.text
            return said(change(text) if len(operator) == 2 else change(text[:1]) + text[1:], part.place)
        return unknown

    def _substring(self, part: Parameter, value: Value) -> Value | None:
        bounds = self._bounds(part)
        if bounds is None:
            return None
        total = len(value.text)
        start = bounds[0] if bounds[0] >= 0 else total + bounds[0]
        size = bounds[1]
        end = total if size is None else start + size if size >= 0 else total + size
        return value.cut(start, max(start, min(end, total))) if start >= 0 else EMPTY


def _why(value: Value) -> str:
    return next((piece.unknown for piece in value.pieces if piece.unknown), "a value that is not known")
