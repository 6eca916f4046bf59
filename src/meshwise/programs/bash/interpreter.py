"""Follow a script and note the commands that it would start; an undecided test is followed both ways, and what differs is unknown."""

from collections.abc import Callable, Mapping, Sequence

from meshwise.programs.bash import arithmetic, assignments, patterns, tree
from meshwise.programs.bash.budget import TooLong
from meshwise.programs.bash.builtins import Builtins
from meshwise.programs.bash.conditions import Condition, negate
from meshwise.programs.bash.expansion import COMMAND
from meshwise.programs.bash.flow import MOST_CALLS, Guess, Leave, Status
from meshwise.programs.bash.pieces import Piece, Source, Value, not_known
from meshwise.programs.bash.shell import Shell
from meshwise.programs.bash.state import Fork, State, merged
from meshwise.programs.bash.statements import parse
from meshwise.programs.bash.words import Parameter, Substitution, Word


class Interpreter(Shell):
    """The shell that follows the statements of a script."""

    def __init__(self, state: State, fixed: Mapping[str, Value], beside: Mapping[str, Source]) -> None:
        super().__init__(state, fixed, beside)
        self.builtins = Builtins(self)

    def substituted(self, part: Substitution) -> Value:
        """Return the output of `$(...)`, unknown where a command in it is not understood."""
        body = part.body
        if all(isinstance(piece, Piece) for piece in body):
            parsed = parse(Source(piece for piece in body if isinstance(piece, Piece)))
            body = parsed.block
        before, testing = len(self.started), self.expander.testing
        self.expander.testing = False
        statements = tuple(one for one in body if not isinstance(one, Piece))
        _, output = self.collected(lambda: self.inside(statements))  # pyright: ignore[reportArgumentType]
        self.expander.testing = testing
        del self.started[before:]
        if output.known:
            return output.stripped("\n")
        return not_known(part.spelled, COMMAND, part.place)

    def inside(self, block: tree.Block) -> Status:
        """Run statements in a subshell: variables outside stay as they are."""
        outer = self.state.copy()
        status: Status = True
        try:
            status = self.block(block)
        except Leave as leave:
            if leave.kind in ("break", "continue"):
                raise
        finally:
            files = self.state.files
            self.state.take(outer)
            self.state.files = files
        return status

    # statements

    def block(self, block: tree.Block) -> Status:
        """Run statements one after the other."""
        status: Status = True
        for statement in block:
            status = self.statement(statement)
        return status

    def statement(self, statement: tree.Statement) -> Status:
        """Run one statement."""
        self.spend(1)
        self.calls += 1
        if self.calls > 4 * MOST_CALLS:
            raise TooLong
        try:
            return self._kinds(statement)
        finally:
            self.calls -= 1

    def _kinds(self, statement: tree.Statement) -> Status:
        if isinstance(statement, tree.Simple):
            return self.builtins.simple(statement)
        if isinstance(statement, tree.Chain):
            return self._chain(statement)
        if isinstance(statement, tree.Pipeline):
            return self._pipeline(statement)
        if isinstance(statement, tree.If):
            return self._if(statement.branches, statement.otherwise, statement.line)
        if isinstance(statement, tree.Group):
            run = self.inside if statement.subshell else self.block
            return self.builtins.redirected(statement.redirects, lambda: run(statement.body))
        if isinstance(statement, tree.Function):
            self.state.functions[statement.name] = statement.body
            return True
        if isinstance(statement, tree.Test):
            return self._tested(lambda: Condition(statement.tokens, self.expander, double=True).truth(), statement.line)
        if isinstance(statement, tree.Calculation):
            return self._tested(lambda: self.calculated(statement.expression), statement.line)
        if isinstance(statement, tree.Case):
            return self._case(statement)
        return self._loop(statement)

    def _tested(self, test: Callable[[], bool | None], line: int) -> Status:
        """Evaluate a test. A variable that nothing sets counts as empty, which is noted."""
        outer, self.expander.testing = self.expander.testing, True
        before, self.expander.doubts = dict(self.expander.assumed), {}
        guess = None
        try:
            truth = test()
            if truth is None:
                self.expander.nothing_given = True
                guess = test()
        finally:
            self.expander.testing, self.expander.nothing_given = outer, False
        for name in self.expander.assumed.keys() - before.keys():
            self.note(line, f"${name} is taken as not set")
        return truth if guess is None else Guess(guess)

    def test(self, words: Sequence[tree.Assignment | Word], line: int) -> Status:
        """Evaluate `[ ... ]` or `test ...`, given its words without the brackets."""

        def truth() -> bool | None:
            tokens = [value for word in words if isinstance(word, Word) for value in self.expander.fields(word)]
            return Condition(tokens, self.expander, double=False).truth()

        return self._tested(truth, line)

    def calculated(self, expression: Word) -> bool | None:
        """Evaluate `((...))`."""
        text = self.expander.string(expression)
        self.expander.doubt(text)
        try:
            return bool(arithmetic.calculate(text.text, self.expander)) if text.known else None
        except arithmetic.NotKnown:
            for name in arithmetic.assigned(text.text):
                self.state.variables[name] = not_known(f"${name}", "arithmetic with a value that is not known")
            return None

    def alternatives(self, ways: Sequence[Callable[[], Status]], line: int) -> Status:
        """Follow every way that the script may take from here, and keep what is the same in all of them."""
        start, ends, left = self.state.copy(), list[State](), None
        place = f"{self.state.script}:{line}"
        by = f"{' and '.join(self.expander.doubts) or 'a test'} ({place})"
        self.expander.doubts = {}
        self.uncertain.append(by)
        for way in ways:
            self.state.take(start.copy())
            try:
                way()
                ends.append(self.state.copy())
            except Leave as leave:
                if leave.kind in ("break", "continue"):
                    ends.append(self.state.copy())
                left = leave
        self.uncertain.pop()
        if not ends:
            assert left is not None
            raise left
        self.forks += 1
        self.state.take(merged(ends, Fork(self.forks, f"depends on a test that cannot be decided ({place})", by)))
        return None

    def guessed(self, guess: Guess, yes: Callable[[], Status], no: Callable[[], Status], line: int) -> Status:
        """Follow the branch taken without outside variables; the other one if that branch exits, as after printing its usage."""
        start, before = self.state.copy(), len(self.started)
        try:
            status = yes() if guess.holds else no()
        except Leave as leave:
            if leave.kind in ("break", "continue"):
                raise
            self.state.take(start)
            del self.started[before:]
            return no() if guess.holds else yes()
        self.note(line, "what comes from outside the script is taken as not given")
        return status

    def _if(self, branches: tuple[tuple[tree.Block, tree.Block], ...], otherwise: tree.Block, line: int) -> Status:
        if not branches:
            return self.block(otherwise)
        test, body = branches[0]
        truth = self.block(test)
        if truth is True:
            return self.block(body)
        if truth is False:
            return self._if(branches[1:], otherwise, line)
        if isinstance(truth, Guess):
            return self.guessed(truth, lambda: self.block(body), lambda: self._if(branches[1:], otherwise, line), line)
        return self.alternatives([lambda: self.block(body), lambda: self._if(branches[1:], otherwise, line)], line)

    def _chain(self, chain: tree.Chain) -> Status:
        status = self.statement(chain.first)
        for operator, statement in chain.rest:
            line = getattr(statement, "line", 0)
            if isinstance(status, Guess):
                wanted = Guess(status.holds == (operator == "&&"))
                self.guessed(wanted, lambda s=statement: self.statement(s), lambda: True, line)
            elif status is None:
                self.alternatives([lambda: True, lambda s=statement: self.statement(s)], line)
            elif (status is not False) == (operator == "&&"):
                status = self.statement(statement)
        return status

    def _pipeline(self, pipeline: tree.Pipeline) -> Status:
        status: Status = True
        if len(pipeline.commands) == 1:
            status = self.statement(pipeline.commands[0])
        else:
            outer, stdin = self.stdin, self.stdin
            for command in pipeline.commands:
                self.stdin = stdin
                status, stdin = self.collected(lambda c=command: self.inside((c,)))
            self.stdin = outer
            if stdin is not None:
                self.print(stdin)
            status = "ran" if isinstance(status, bool) else status
        if not pipeline.negated:
            return status
        if isinstance(status, Guess):
            return Guess(not status.holds)
        return None if status == "ran" else negate(status)

    def _case(self, case: tree.Case) -> Status:
        subject = self.expander.string(case.word)
        self.expander.doubts = {}
        self.expander.doubt(subject)
        possible: list[int] = []
        certain = False
        for number, (words, _, _) in enumerate(case.clauses):
            found = [self._matches(subject, word) for word in words]
            if True in found or None in found:
                possible.append(number)
            if True in found:
                certain = True
                break
        if not possible:
            return True
        if certain and len(possible) == 1:
            return self._clause(case, possible[0])
        ways: list[Callable[[], Status]] = [lambda n=number: self._clause(case, n) for number in possible]
        return self.alternatives(ways if certain else [*ways, lambda: True], case.line)

    def _matches(self, subject: Value, word: Word) -> bool | None:
        pattern = self.expander.pattern(word)
        if pattern is not None and "".join(text for text, _ in pattern) == "*":
            return True
        if pattern is None or not subject.known:
            return None
        return patterns.matches(subject.text, pattern)

    def _clause(self, case: tree.Case, number: int) -> Status:
        status: Status = True
        while number < len(case.clauses):
            _, body, end = case.clauses[number]
            status = self.block(body)
            if end != ";&":
                break
            number += 1
        return status

    # loops

    def _loop(self, loop: tree.For | tree.Count | tree.While) -> Status:
        if isinstance(loop, tree.For):
            return self._for(loop)
        if isinstance(loop, tree.Count):
            self.calculated(loop.first)
            return self._while(lambda: self.calculated(loop.test) if loop.test.parts else True, loop.body, loop.line, loop.step)
        if _reads_arguments(loop.test) and self.state.arguments is None:
            self.note(loop.line, "options on the command line are not given, so the loop that reads them is left out")
            return True

        def test() -> Status:
            truth = self.block(loop.test)
            return negate(truth) if loop.until and not isinstance(truth, Guess) and truth != "ran" else truth

        return self._while(test, loop.body, loop.line, None)

    def _for(self, loop: tree.For) -> Status:
        listed = [value for word in loop.words or () for value in self.expander.fields(word)]
        values = self.state.arguments if loop.words is None else listed
        if values is None or any(_several(value) for value in values):
            shown = " ".join(value.text for value in values or ())

            def once() -> Status:
                self.state.variables[loop.name] = not_known(f"${loop.name}", f"one of {shown or 'the arguments'}")
                return self.block(loop.body)

            return self.alternatives([once, lambda: True], loop.line)
        for value in values:
            self.state.variables[loop.name] = value
            if not self._turn(loop.body):
                break
        return True

    def _while(self, test: Callable[[], Status], body: tree.Block, line: int, step: Word | None) -> Status:
        while True:
            truth = test()
            if truth is False:
                return True
            if truth is not True:
                return self.alternatives([lambda: self.block(body), lambda: True], line)
            if not self._turn(body):
                return True
            if step is not None:
                self.calculated(step)
            self.spend(1)

    def _turn(self, body: tree.Block) -> bool:
        """Run the body of a loop once; return whether the loop goes on."""
        try:
            self.block(body)
        except Leave as leave:
            if leave.kind not in ("break", "continue"):
                raise
            if leave.levels > 1:
                raise Leave(leave.kind, leave.levels - 1) from None
            return leave.kind == "continue"
        return True

    def assign(self, assignment: tree.Assignment) -> None:
        """Set a variable."""
        assignments.assign(self, assignment)

    def call(self, name: str, words: Sequence[Value]) -> Status:
        """Call a function of the script."""
        outer, self.state.arguments = self.state.arguments, list(words)
        self.calls += 1
        if self.calls > MOST_CALLS:
            raise TooLong
        self.builtins.locals.append({})
        try:
            return self.statement(self.state.functions[name])
        except Leave as leave:
            if leave.kind != "return":
                raise
            return None if leave.levels < 0 else leave.levels == 0
        finally:
            self.calls -= 1
            for local, value in self.builtins.locals.pop().items():
                if value is None:
                    self.state.variables.pop(local, None)
                else:
                    self.state.variables[local] = value
            self.state.arguments = outer


def _several(value: Value) -> bool:
    """Return whether an unknown value may be several words or none."""
    return any(piece.unknown for piece in value.pieces)


def _reads_arguments(block: tree.Block) -> bool:
    """Return whether a test looks at the arguments or their number, as the loops that read options do."""
    words: list[Word] = []
    for statement in block:
        if isinstance(statement, tree.Simple):
            words += [word for word in statement.words if isinstance(word, Word)]
        elif isinstance(statement, tree.Test):
            words += [token for token in statement.tokens if isinstance(token, Word)]
        elif isinstance(statement, tree.Calculation):
            words.append(statement.expression)
    names = {part.name for word in words for part in word.parts if isinstance(part, Parameter)}
    return bool(names & {"#", "1", "@", "*"}) or any(word.plain == "getopts" for word in words)
