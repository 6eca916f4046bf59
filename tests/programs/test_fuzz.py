"""Mutated launch files: no traceback, no process, and no file opened but meshwise's own."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwise
from meshwise.audit.check.ask import CheckAsk
from meshwise.audit.check.judge import judge
from meshwise.errors import UserError
from meshwise.programs.program import launchers, programs
from meshwise.programs.read.files import read_sources
from meshwise.programs.source import Source
from meshwise.ui.views.launch_files import verdict_view
from meshwise.ui.views.tables import as_json, console
from support.launch_files import FIXTURES

TEXTS = {path.name: path.read_text(encoding="utf-8") for path in sorted(FIXTURES.iterdir())}
PIECES = [
    "$(touch /tmp/never)", "`id`", "$((1<<99999))", "${X:-", "${A[@]}", "<<EOF\n", "\x00", "'", '"', "&a [*a]",
    "!!python/object:os.system x",
    "source /etc/passwd\n", "9" * 30, "-1", "1e400", "nan", "0", "--tensor-model-parallel-size 0 ", "--micro-batch-size=-3 ", "\t",
    "{", "}", "[", "]", ": ", "\n", "auto", "\u2028", "#", "\\\n", "<<: *x", "eval ", "true", "8", "é",
    "--pipeline-model-parallel-size 999999999999 ",
    "--global-batch-size 1e30 ", "[parallelism]\n", "\ufeff", "--num-layers x ", "--", "=", "%", "&&", "|", ";", "exec ", "tp: [1, 2]\n",
]  # fmt: skip
ALLOWED = (str(Path(meshwise.__file__).parent), sys.prefix, sys.base_prefix, os.devnull)
WATCH = ("open", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "socket.connect")


class _Watch:
    on = False
    seen: list[str] = []  # noqa: RUF012


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if not _Watch.on or event not in WATCH:
        return
    if event == "open" and (isinstance(arguments[0], int) or str(arguments[0]).startswith(ALLOWED)):
        return  # a number is a file that is open already: its path was seen before
    _Watch.seen.append(f"{event} {arguments[0]}")


sys.addaudithook(_hook)


@contextmanager
def watched() -> Iterator[None]:
    """Fail where a process is started, a host is reached, or a file is opened that is not meshwise's or Python's own."""
    _Watch.on, _Watch.seen = True, []
    try:
        yield
    finally:
        _Watch.on = False
    assert not _Watch.seen


@st.composite
def mutated(draw: st.DrawFn) -> list[Source]:
    """Draw one or two fixtures with pieces deleted, repeated, replaced or inserted."""
    sources: list[Source] = []
    for name in draw(st.lists(st.sampled_from(sorted(TEXTS)), min_size=1, max_size=2, unique=True)):
        text = TEXTS[name]
        for _ in range(draw(st.integers(1, 6))):
            start = draw(st.integers(0, len(text)))
            end = min(len(text), start + draw(st.sampled_from([0, 0, 1, 5, 40, 400])))
            piece = draw(st.sampled_from([*PIECES, "", text[start:end] * 2]))
            text = text[:start] + piece + text[end:]
        sources.append(Source(name, text))
    return sources


@settings(max_examples=60)
@given(mutated(), st.sampled_from(["", "8x8xh100-sxm", "h100-sxm"]))
def test_any_text_is_read_or_refused(sources: list[Source], on: str) -> None:
    assert programs()  # imported before the watch
    assert launchers()
    ask = CheckAsk(on=on)
    with watched():
        try:
            verdict = judge(read_sources(sources, {}), ask)
        except UserError:
            return
        as_json(verdict.to_json())
        with open(os.devnull, "w") as out:
            terminal = console()
            terminal.file = out
            terminal.print(verdict_view(verdict, 100, verbose=True))


@given(st.text(max_size=400), st.sampled_from([".sh", ".yaml", ".json", ".toml", ".sbatch", ""]))
def test_arbitrary_text_is_refused_in_one_line(text: str, suffix: str) -> None:
    with watched(), pytest.raises(UserError) as refused:
        read_sources([Source(f"file{suffix}", text)], {})
    assert str(refused.value).isprintable()
