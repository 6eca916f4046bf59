"""A parser of shell statements: characters -> tree. A line that is not shell is noted, and reading goes on with the next one."""

import re

from meshwise.programs.bash import tree
from meshwise.programs.bash.cursor import Cursor, Nested
from meshwise.programs.bash.pieces import Source
from meshwise.programs.bash.words import BLANK, META, NAME, Opaque, ShellSyntaxError, Word, WordReader

RESERVED_WORDS = {"then", "elif", "else", "fi", "do", "done", "esac", "}"}
"""Words that end a block; at the place of a command they begin none."""
ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z_0-9]*)(\+?=|\[)")
DECLARING = ("export", "declare", "typeset", "local", "readonly")
REDIRECT = re.compile(r"(\d*|\{\w+\})(<<<|<<-|<<|<&|<>|>>|>&|>\||<|>)|(&>>|&>)")
TEST_OPERATOR = re.compile(r"&&|\|\||[()<>]")


def parse(source: Source) -> tree.Parsed:
    """Parse a script."""
    parser = _Parser(source)
    block = parser.block(())
    while parser.at < len(parser.text):
        parser.skip_line(f"{parser.text[parser.at : parser.at + 20].split()[:1]} ends nothing")
        block += parser.block(())
    return tree.Parsed(block, tuple(parser.notes))


class _Parser(Cursor):
    """Parses statements from a position on."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.words = WordReader(source, self._nested)

    def _nested(self, at: int) -> tuple[tuple[object, ...], int]:
        """Parse the statements of `$(...)` that begin at a position; return them and the position of what ends them."""
        outer, self.at = self.at, at
        self.words.depth += 1
        if self.words.depth > 60:
            raise ShellSyntaxError("substitutions are nested too deeply", at)
        block = self.block((), strict=True, bracket=True)
        self.words.depth -= 1
        end, self.at = self.at, outer
        return block, end

    def block(self, ends: tuple[str, ...], *, strict: bool = False, bracket: bool = False) -> tree.Block:
        """Parse statements up to an end of a clause, a reserved word of `ends` or, after an opening one, a closing bracket."""
        found: list[tree.Statement] = []
        while True:
            self.gaps()
            while self.starts(";") and not self.starts(";;") and not self.starts(";&"):
                self.at += 1
                self.gaps()
            if self.at >= len(self.text) or (self.starts(")") and bracket) or self.starts(";;") or self.starts(";&"):
                return tuple(found)
            if self.peek() in ends or self.peek() in RESERVED_WORDS:
                return tuple(found)
            depth = self.words.depth
            begin = self.at
            try:
                found.append(self.chain())
            except ShellSyntaxError as error:
                if strict:
                    raise
                self.words.depth = depth
                self.at = max(begin, min(error.at, len(self.text)))
                self.skip_line(str(error))
            self.blanks()
            if self.starts("&") and not self.starts("&&"):
                self.at += 1

    def chain(self) -> tree.Statement:
        first, rest = self.pipeline(), list[tuple[str, tree.Statement]]()
        while True:
            self.blanks()
            operator = self.text[self.at : self.at + 2]
            if operator not in ("&&", "||"):
                return tree.Chain(first, tuple(rest)) if rest else first
            self.at += 2
            self.gaps()
            rest.append((operator, self.pipeline()))

    def pipeline(self) -> tree.Statement:
        negated = False
        self.blanks()
        while self.peek() in ("!", "time"):
            negated ^= self.peek() == "!"
            self.at += len(self.peek())
            self.blanks()
        commands = [self.command()]
        while True:
            self.blanks()
            if not self.starts("|") or self.starts("||"):
                break
            self.at += 2 if self.starts("|&") else 1
            self.gaps()
            commands.append(self.command())
        return commands[0] if len(commands) == 1 and not negated else tree.Pipeline(tuple(commands), negated)

    def command(self) -> tree.Statement:
        self.words.depth += 1
        if self.words.depth > 60:
            raise ShellSyntaxError("statements are nested too deeply", self.at)
        statement = self._command()
        self.words.depth -= 1
        return statement

    def _command(self) -> tree.Statement:
        self.blanks()
        if self.starts("(("):
            found = self._calculation()
            if found is not None:
                return found
        if self.starts("("):
            self.at += 1
            body = self.block((), bracket=True)
            self.character(")")
            return tree.Group(body, True, self.redirects())
        word, line = self.peek(), self.line()
        compound = {
            "if": self._if, "for": self._for, "select": self._for, "while": self._while, "until": self._while,
            "case": self._case,
        }  # fmt: skip
        if word in compound:
            self.at += len(word)
            statement = compound[word](word, line)
            redirects = self.redirects()
            return tree.Group((statement,), False, redirects) if redirects else statement
        if word == "{":
            self.at += 1
            body = self.block(("}",))
            self.expect("}")
            return tree.Group(body, False, self.redirects())
        if word == "[[":
            return self._test(line)
        name = re.compile(r"function[ \t]+([^\s()]+)[ \t]*(?:\([ \t]*\))?|([^\s()$'\"=;&|<>`#]+)[ \t]*\([ \t]*\)").match(
            self.text, self.at
        )
        if name:
            self.at = name.end()
            self.gaps()
            return tree.Function(name.group(1) or name.group(2), self.command())
        return self._simple(line)

    def _calculation(self) -> tree.Calculation | None:
        line, begin = self.line(), self.at
        try:
            expression, end = self.words.inside(self.at + 2, ")", quoted=True, nested="(")
        except ShellSyntaxError:
            return None
        if not self.text.startswith("))", end):
            self.at = begin
            return None
        self.at = end + 2
        return tree.Calculation(expression, line)

    def _if(self, _word: str, line: int) -> tree.Statement:
        branches, otherwise = list[tuple[tree.Block, tree.Block]](), ()
        while True:
            test = self.block(("then",))
            self.expect("then")
            branches.append((test, self.block(("elif", "else", "fi"))))
            self.gaps()
            if self.peek() != "elif":
                break
            self.at += 4
        if self.peek() == "else":
            self.at += 4
            otherwise = self.block(("fi",))
        self.expect("fi")
        return tree.If(tuple(branches), otherwise, line)

    def _for(self, word: str, line: int) -> tree.Statement:
        self.blanks()
        if word == "for" and self.starts("(("):
            parts, pos = list[Word](), self.at + 2
            for _ in range(3):
                part, pos = self.words.inside(pos, ";)", quoted=True, nested="(")
                parts.append(part)
                pos += 1
            self.at = pos + 1
            first, test, step = parts
            return tree.Count(first, test, step, self._loop_body(), line)
        match = NAME.match(self.text, self.at)
        if match is None:
            raise ShellSyntaxError("for is not followed by a name", self.at)
        self.at = match.end()
        self.gaps()
        words: list[Word] | None = None
        if self.peek() == "in":
            self.at += 2
            words = []
            self.blanks()
            while self.at < len(self.text) and self.text[self.at] not in "\n;&|":
                words.append(self._word())
                self.blanks()
        return tree.For(match.group(), None if words is None else tuple(words), self._loop_body(), line)

    def _loop_body(self) -> tree.Block:
        self.blanks()
        if self.starts(";"):
            self.at += 1
        self.expect("do")
        body = self.block(("done",))
        self.expect("done")
        return body

    def _while(self, word: str, line: int) -> tree.Statement:
        test = self.block(("do",))
        return tree.While(test, self._loop_body(), word == "until", line)

    def _case(self, _word: str, line: int) -> tree.Statement:
        self.blanks()
        subject = self._word()
        self.expect("in")
        clauses: list[tuple[tuple[Word, ...], tree.Block, str]] = []
        while True:
            self.gaps()
            if self.peek() == "esac":
                self.at += 4
                return tree.Case(subject, tuple(clauses), line)
            if self.starts("("):
                self.at += 1
            patterns: list[Word] = []
            while True:
                self.blanks()
                patterns.append(self._word())
                self.blanks()
                if not self.starts("|"):
                    break
                self.at += 1
            self.character(")")
            body = self.block(("esac",))
            end = next((mark for mark in (";;&", ";;", ";&") if self.starts(mark)), "")
            self.at += len(end)
            clauses.append((tuple(patterns), body, end or ";;"))

    def _test(self, line: int) -> tree.Statement:
        self.at += 2
        tokens: list[Word | str] = []
        while True:
            self.gaps()
            if self.peek() == "]]":
                self.at += 2
                return tree.Test(tuple(tokens), line)
            if self.at >= len(self.text):
                raise ShellSyntaxError("[[ is not closed", self.at)
            operator = TEST_OPERATOR.match(self.text, self.at)
            if operator and not (tokens and tokens[-1] == "=~"):
                self.at = operator.end()
                tokens.append(operator.group())
                continue
            stop = BLANK + "\n" if tokens and tokens[-1] == "=~" else META
            word, self.at = self.words.word(self.at, stop=stop)
            if not word.parts:
                raise ShellSyntaxError("[[ holds an operator that is not known", self.at)
            plain = word.plain
            tokens.append(plain if plain in ("=~", "!", "==", "=", "!=") else word)

    def _word(self) -> Word:
        """Read a word; process substitutions are opaque."""
        if self.starts("<(") or self.starts(">("):
            return self._process()
        begin = self.at
        word, self.at = self.words.word(self.at)
        if self.at == begin:
            raise ShellSyntaxError(f"{self.text[begin : begin + 1]!r} is not expected here", begin)
        return word

    def _process(self) -> Word:
        begin = self.at
        _, end = self._nested(self.at + 2)
        self.at = end + 1
        place = self.source.place(begin, self.at)
        return Word((Opaque(self.text[begin : self.at], "output of a command", place),), place)

    def _simple(self, line: int) -> tree.Statement:
        assignments: list[tree.Assignment] = []
        words: list[Word | tree.Assignment] = []
        redirects: list[tree.Redirect] = []
        while True:
            self.blanks()
            if self._redirect(redirects):
                continue
            if self.at >= len(self.text) or self.text[self.at] in "\n;&|)" or (self.starts("(") and not words):
                break
            declaring = bool(words) and isinstance(words[0], Word) and words[0].plain in DECLARING
            assignment = self._assignment() if not words or declaring else None
            if assignment is not None:
                (words if declaring else assignments).append(assignment)
            else:
                words.append(self._word())
        if not (assignments or words or redirects):
            raise ShellSyntaxError(f"{self.text[self.at : self.at + 1]!r} is not expected here", self.at)
        return tree.Simple(tuple(assignments), tuple(words), tuple(redirects), line)

    def _assignment(self) -> tree.Assignment | None:
        match = ASSIGNMENT.match(self.text, self.at)
        if match is None:
            return None
        begin, index, pos = self.at, None, match.end()
        append = match.group(2) == "+="
        if match.group(2) == "[":
            index, pos = self.words.inside(pos, "]", quoted=False, nested="[")
            after = re.compile(r"\](\+?)=").match(self.text, pos)
            if after is None:
                self.at = begin
                return None
            append, pos = bool(after.group(1)), after.end()
        self.at = pos
        if self.starts("("):
            self.at += 1
            return tree.Assignment(match.group(1), self._elements(), append, index)
        value, self.at = self.words.word(self.at)
        return tree.Assignment(match.group(1), value, append, index)

    def _elements(self) -> tuple[Word | tree.Assignment, ...]:
        """Read the elements of an array; `[key]=value` is an assignment without a name."""
        found: list[Word | tree.Assignment] = []
        while True:
            self.gaps()
            if self.starts(")"):
                self.at += 1
                return tuple(found)
            if self.at >= len(self.text):
                raise ShellSyntaxError("the array is not closed", self.at)
            if self.starts("["):
                index, end = self.words.inside(self.at + 1, "]", quoted=False, nested="[")
                if self.text.startswith("]=", end):
                    value, self.at = self.words.word(end + 2)
                    found.append(tree.Assignment("", value, False, index))
                    continue
            found.append(self._word())

    def redirects(self) -> tuple[tree.Redirect, ...]:
        """Read the redirections after a compound command."""
        found: list[tree.Redirect] = []
        self.blanks()
        while self._redirect(found):
            self.blanks()
        return tuple(found)

    def _redirect(self, found: list[tree.Redirect]) -> bool:
        match = REDIRECT.match(self.text, self.at)
        if match is None or self.starts("<(") or self.starts(">("):
            return False
        self.at = match.end()
        self.blanks()
        redirect = tree.Redirect(match.group(2) or match.group(3), self._word(), match.group(1) or "")
        found.append(redirect)
        if redirect.operator in ("<<", "<<-"):
            self.heredocs.append(redirect)
        return True

    def inner(self, source: Source) -> Nested:
        """Return what parses `$(...)` inside a heredoc."""
        return _Parser(source)._nested
