"""Progress bars on a terminal, fed by callbacks of `meshwise.run`. Without a terminal: lines alone; with --json: JSON lines."""

from __future__ import annotations

import sys
from json import dumps
from types import TracebackType
from typing import TYPE_CHECKING

from meshwise.ui.views.tables import console

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from meshwise.run.callbacks import Progress as Update


class Bar:
    """A bar on standard output or standard error, from the first update until the work is done. `say` prints lines above it."""

    def __init__(self, *, stderr: bool = False, hidden: bool = False, json: bool = False) -> None:
        """`json`: every line and step is a line of JSON on standard error instead."""
        self.console = console(stderr=stderr)
        self.stream = sys.stderr if stderr or json else sys.stdout
        self.json = json
        self.hidden = not json and (hidden or not self.stream.isatty())
        self.bar: Progress | None = None
        self.task: TaskID | None = None

    @property
    def progress(self) -> Update | None:
        """The callback that moves the bar; None without a terminal."""
        return None if self.hidden else self._update

    def say(self, line: str) -> None:
        """Print a line: above the bar, if there is one."""
        if self.json:
            self._event(event="line", text=line)
        elif self.bar is not None:
            self.console.print(line, soft_wrap=True)
        else:
            print(line, file=self.stream, flush=True)

    def _event(self, **event: object) -> None:
        print(dumps(event, ensure_ascii=False), file=self.stream, flush=True)

    def _update(self, what: str, done: float, total: float) -> None:
        if self.json:
            self._event(event="progress", what=what, done=done, total=total)
            return
        if self.bar is None:
            self._show(what, total)
        assert self.bar is not None
        assert self.task is not None
        if done:  # the time left is estimated from here on, not from the start of PyTorch
            self.bar.start_task(self.task)
        self.bar.update(self.task, description=what, completed=done, total=total)
        if done >= total:
            self.stop()

    def _show(self, what: str, total: float) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        count = TextColumn("{task.completed:g}/{task.total:g}")
        columns = (TextColumn("{task.description}"), BarColumn(), count, TimeRemainingColumn(), TextColumn("left"))
        self.bar = Progress(*columns, console=self.console, transient=True)
        self.task = self.bar.add_task(what, total=total, start=False)
        self.bar.start()

    def stop(self) -> None:
        """Remove the bar."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
