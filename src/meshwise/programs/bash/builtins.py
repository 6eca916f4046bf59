"""Simple commands: builtins of the shell, functions, files that are sourced or written, and commands that the script would start."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from meshwise.programs.bash import arithmetic, inner, outputs, sed, tree
from meshwise.programs.bash.braces import braces
from meshwise.programs.bash.expansion import COMMAND
from meshwise.programs.bash.flow import Leave, Started, Status
from meshwise.programs.bash.pieces import EMPTY, Place, Source, Value, joined, not_known, said
from meshwise.programs.bash.shell import Shell
from meshwise.programs.bash.state import Array, Variable
from meshwise.programs.bash.statements import DECLARING
from meshwise.programs.bash.words import Word

IGNORED = frozenset({
    "cd", "module", "ml", "ulimit", "trap", "shopt", "umask", "alias", "unalias", "wait", "kill", "hash", "jobs", "pushd",
    "popd", "disown", "bind", "type", "command_not_found",
})  # fmt: skip
"""Builtins without effect on a launch file's settings. `cd` is not followed: companions are found by their names."""


class Builtins:
    """Runs simple commands for an interpreter."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self.locals: list[dict[str, Variable | None]] = []
        self._table: Mapping[str, Callable[[list[Value], int], Status]] = {
            ":": lambda _, __: True, "true": lambda _, __: True, "false": lambda _, __: False, "set": self._set,
            "shift": self._shift, "unset": self._unset, "read": self._read, "mapfile": self._mapfile,
            "readarray": self._mapfile, "let": self._let, "eval": self._eval, "source": self._source, ".": self._source,
            "exit": self._exit, "return": self._return, "break": self._break, "continue": self._continue,
            "getopts": lambda _, __: None, "cat": self._cat, "tee": self._tee,
        }  # fmt: skip

    def simple(self, simple: tree.Simple) -> Status:
        """Run a simple command."""
        first = simple.words[0] if simple.words else None
        if first is None:
            for assignment in simple.assignments:
                self.shell.assign(assignment)
            return self.redirected(simple.redirects, lambda: True)
        name = first.plain if isinstance(first, Word) else None
        if name in DECLARING:
            return self._declare(name, simple.words[1:])
        if name in ("[", "test"):
            words = simple.words[1:-1] if name == "[" else simple.words[1:]
            return self.shell.test(words, simple.line)
        return self.redirected(simple.redirects, lambda: self._command(simple))

    def redirected(self, redirects: Sequence[tree.Redirect], run: Callable[[], Status]) -> Status:
        """Run something with its input and output: what goes to a file of a known name becomes a written file."""
        shell, outer = self.shell, self.shell.stdin
        target, append = None, False
        for redirect in redirects:
            if redirect.operator in ("<<", "<<-") and redirect.body is not None:
                shell.stdin = shell.expander.string(redirect.body)
            elif redirect.operator == "<<<":
                shell.stdin = shell.expander.string(redirect.target) + outputs.NEWLINE
            elif redirect.operator == "<":
                shell.stdin = self._file(shell.expander.string(redirect.target))
            elif redirect.operator in (">", ">>", ">|", "&>", "&>>") and redirect.channel in ("", "1"):
                target, append = shell.expander.string(redirect.target), redirect.operator.endswith(">>")
        try:
            if target is None:
                return run()
            status, output = shell.collected(run)
        finally:
            shell.stdin = outer
        if any(piece.text and not piece.unknown for piece in output.pieces) and target.text != "/dev/null":
            before = shell.state.files.get(target.text, EMPTY) if append else EMPTY
            shell.state.files[target.text] = before + output
        return status

    def _file(self, name: Value) -> Value | None:
        """Return a file that the script has written or that was given beside it."""
        if name.known and name.text in self.shell.state.files:
            return self.shell.state.files[name.text]
        source = self._beside(name)
        return Value(source.pieces(0, len(source.text))) if source is not None else None

    def _beside(self, name: Value) -> Source | None:
        """Return a file given beside the script, by its last name; the folder may be unknown."""
        last = name.pieces[-1] if name.pieces else None
        if last is None or last.unknown:
            return None
        base = name.text.rpartition("/")[2]
        return self.shell.beside.get(base) if name.known or "/" in last.text else None

    def _command(self, simple: tree.Simple) -> Status:
        shell = self.shell
        words = [value for word in simple.words if isinstance(word, Word) for value in shell.expander.fields(word)]
        while words and words[0].text in ("command", "builtin") and len(words) > 1 and not words[1].text.startswith("-"):
            words = words[1:]
        shell.spend(sum(len(word.pieces) for word in words))
        if not words:
            return True
        before = {a.name: shell.state.variables.get(a.name) for a in simple.assignments}
        for assignment in simple.assignments:
            shell.assign(assignment)
        prefix = {name: shell.state.variables.get(name) for name in before}
        try:
            return self.words(words, {n: v for n, v in prefix.items() if isinstance(v, Value)}, simple.line)
        finally:
            for name, value in before.items():
                if value is None:
                    shell.state.variables.pop(name, None)
                else:
                    shell.state.variables[name] = value

    def words(self, words: list[Value], prefix: Mapping[str, Value], line: int) -> Status:
        """Run a command given by its words."""
        shell, name = self.shell, words[0].text if words[0].known else ""
        if name in shell.state.functions:
            return shell.call(name, words[1:])
        if name in self._table:
            return self._table[name](words[1:], line)
        if name in IGNORED:
            return True
        if name == "printf" and len(words) > 3 and words[1].text == "-v":
            shell.state.variables[words[2].text] = outputs.output("printf", words[3:], None) or _unknown(words[2].text)
            return True
        if name == "sed" and shell.stdin is None and len(words) > 2 and self._file(words[-1]) is not None:
            shell.stdin, words = self._file(words[-1]), words[:-1]
        printed = sed.replaced(words[1:], shell.stdin) if name == "sed" else outputs.output(name, words[1:], shell.stdin)
        if printed is not None:
            shell.print(printed)
            return True
        if name == "exec":
            if len(words) > 1:
                self.words(words[1:], prefix, line)
                raise Leave("exit")
            return True
        return self._start(words, prefix, line)

    def _start(self, words: list[Value], prefix: Mapping[str, Value], line: int) -> Status:
        """Note a command that the script would start, or follow the script that it starts."""
        shell = self.shell
        exported = {n: v for n in shell.state.exported if isinstance(v := shell.state.variables.get(n), Value)}
        environment = exported | dict(prefix)
        script = inner.script(words, shell.stdin, self._beside)
        if script is not None and shell.calls < 30:
            return inner.follow(shell, script, environment)
        place = words[0].place or Place(shell.state.script, line, -1, -1)
        by = tuple((text, len(shell.started)) for text in dict.fromkeys(shell.uncertain))
        shell.started.append(Started(tuple(words), environment, not by, place, shell.stdin, by))
        shell.print(not_known(f"$({words[0].text})", COMMAND))
        return "ran"

    # builtins

    def _exit(self, _words: list[Value], _line: int) -> Status:
        raise Leave("exit")

    def _return(self, words: list[Value], _line: int) -> Status:
        code = words[0] if words else said("0")
        raise Leave("return", _count(code, -1))

    def _break(self, words: list[Value], _line: int) -> Status:
        raise Leave("break", _count(words[0], 1) if words else 1)

    def _continue(self, words: list[Value], _line: int) -> Status:
        raise Leave("continue", _count(words[0], 1) if words else 1)

    def _set(self, words: list[Value], _line: int) -> Status:
        texts = [word.text for word in words]
        if "--" in texts:
            self.shell.state.arguments = words[texts.index("--") + 1 :]
        elif words and words[0].known and not texts[0].startswith(("-", "+")):
            self.shell.state.arguments = words
        return True

    def _shift(self, words: list[Value], _line: int) -> Status:
        count = _count(words[0], 1) if words else 1
        arguments = self.shell.state.arguments
        if arguments is not None:
            self.shell.state.arguments = arguments[count:]
        return True

    def _unset(self, words: list[Value], _line: int) -> Status:
        for word in words:
            self.shell.state.variables.pop(word.text, None)
            self.shell.state.exported.discard(word.text)
        return True

    def _read(self, words: list[Value], _line: int) -> Status:
        """Set variables from a line of known input; from a terminal or a command they are unknown."""
        names = [word.text for word in words if not word.text.startswith("-")]
        into_array = any(re.fullmatch(r"-\w*a\w*", word.text) for word in words)
        stdin = self.shell.stdin
        if stdin is None or not stdin.known or any(re.match(r"-\w*[dnNpt]", word.text) for word in words):
            for name in names:
                self.shell.state.variables[name] = _unknown(name)
            return None if stdin is None or not stdin.known else True
        line = stdin.cut(0, len(stdin.text.partition("\n")[0]))
        self.shell.stdin = stdin.cut(len(line.text) + 1, len(stdin.text))
        fields = self.shell.expander.split(line)
        if into_array and names:
            self.shell.state.variables[names[0]] = Array(tuple(enumerate(fields)))
            return True
        for i, name in enumerate(names or ["REPLY"]):
            rest = joined(fields[i:], " ") if i == len(names) - 1 else fields[i] if i < len(fields) else EMPTY
            self.shell.state.variables[name] = rest
        return bool(stdin.text)

    def _mapfile(self, words: list[Value], _line: int) -> Status:
        name = words[-1].text if words else "MAPFILE"
        stdin = self.shell.stdin
        if stdin is not None and stdin.known and "-t" in [word.text for word in words]:
            starts = [0, *(match.end() for match in re.finditer("\n", stdin.text))]
            ends = [*(start - 1 for start in starts[1:]), len(stdin.text)]
            lines = [stdin.cut(start, end) for start, end in zip(starts, ends, strict=True) if start < len(stdin.text)]
            self.shell.state.variables[name] = Array(tuple(enumerate(lines)))
        else:
            self.shell.state.variables[name] = Array(((0, _unknown(name)),))
        return True

    def _let(self, words: list[Value], _line: int) -> Status:
        truth: Status = True
        for word in words:
            try:
                truth = bool(arithmetic.calculate(word.text, self.shell.expander)) if word.known else None
            except arithmetic.NotKnown:
                for name in arithmetic.assigned(word.text):
                    self.shell.state.variables[name] = _unknown(name)
                truth = None
        return truth

    def _eval(self, words: list[Value], _line: int) -> Status:
        """Follow the statements of `eval`, which are known text."""
        return inner.statements(self.shell, Source(joined(words, " ").pieces))

    def _source(self, words: list[Value], line: int) -> Status:
        source = self._beside(words[0]) if words else None
        if source is None:
            name = words[0].text if words else ""
            self.shell.note(line, f"{name} is sourced, but was not given: variables that it sets are unknown")
            return "ran"
        outer = self.shell.state.arguments
        if len(words) > 1:
            self.shell.state.arguments = words[1:]
        try:
            return inner.statements(self.shell, source)
        except Leave as leave:
            if leave.kind != "return":
                raise
            return True
        finally:
            self.shell.state.arguments = outer

    def _cat(self, words: list[Value], _line: int) -> Status:
        names = [word for word in words if not word.text.startswith("-") or not word.known]
        files = [self._file(name) for name in names] if names else [self.shell.stdin]
        known = [file for file in files if file is not None]
        self.shell.print(joined(known) if len(known) == len(files) else not_known("$(cat)", COMMAND))
        return True

    def _tee(self, words: list[Value], _line: int) -> Status:
        stdin = self.shell.stdin
        for word in words:
            if stdin is not None and stdin.pieces and word.known and not word.text.startswith("-") and stdin.known:
                before = self.shell.state.files.get(word.text, EMPTY) if words[0].text == "-a" else EMPTY
                self.shell.state.files[word.text] = before + stdin
        self.shell.print(stdin or EMPTY)
        return True

    def _declare(self, name: str, words: Sequence[Word | tree.Assignment]) -> Status:
        """Run export, declare, local, readonly."""
        shell = self.shell
        options = "".join(word.plain or "" for word in words if isinstance(word, Word) and (word.plain or "").startswith("-"))
        exports = (name == "export" and "n" not in options) or "x" in options
        for word in words:
            if isinstance(word, Word):
                texts = [value.text for value in shell.expander.fields(word) if value.known and not value.text.startswith("-")]
            else:
                texts = [word.name]
            for text in texts:
                target, equals, rest = text.partition("=")
                if (name == "local" or (name in ("declare", "typeset") and "g" not in options)) and self.locals:
                    self.locals[-1].setdefault(target, shell.state.variables.get(target))
                    if isinstance(word, Word) and not equals:
                        shell.state.variables[target] = EMPTY
                if "A" in options:
                    shell.state.variables[target] = Array((), True)
                elif "a" in options and isinstance(word, Word):
                    shell.state.variables.setdefault(target, Array())
                if equals:
                    shell.state.variables[target] = said(rest, word.place if isinstance(word, Word) else None)
                if exports:
                    shell.state.exported.add(target)
            if isinstance(word, tree.Assignment):
                for each in braces(word.value) if isinstance(word.value, Word) else [word.value]:
                    shell.assign(replace(word, value=each))
        return True


def _unknown(name: str) -> Value:
    return not_known(f"${name}", COMMAND)


def _count(value: Value, otherwise: int) -> int:
    """Return a small number that a word says."""
    return int(value.text) if value.known and re.fullmatch(r"[0-9]{1,9}", value.text) else otherwise
