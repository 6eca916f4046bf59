"""`check`: read launch files, and judge what they say as training or as serving."""

from collections.abc import Sequence

from meshwise.audit.check import verdict
from meshwise.audit.check.ask import CheckAsk
from meshwise.audit.check.verdict import Verdict
from meshwise.errors import UserError
from meshwise.programs.read.files import Given, Reading, read_files


def check(files: Sequence[Given], ask: CheckAsk) -> Verdict:
    """Read launch files and judge what they say on a cluster."""
    return judge(read_files(files, ask.answers), ask)


def judge(reading: Reading, ask: CheckAsk) -> Verdict:
    """Judge what launch files say."""
    try:
        if reading.program.kind == "serve":
            from meshwise.audit.check import serve

            return serve.judge(reading, ask)
        if reading.program.kind == "rl":
            from meshwise.audit.check import rollout

            return rollout.judge(reading, ask)
        return verdict.judge(reading, ask)
    except OverflowError:
        files = ", ".join(reading.files)
        raise UserError(
            f"{files}: its sizes multiply to more than any run has: look at the batch, the length and the degrees"
        ) from None
