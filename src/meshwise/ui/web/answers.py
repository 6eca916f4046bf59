"""Answers that were computed before, and a bound on how many are computed at once.

A question is a value, so its answer is kept and shared by everybody who asks it. Searches run in a few threads; a request whose client has
gone leaves the queue, and its search ends at its next block.
"""

import ctypes
import os
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from typing import Any, TypeVar

import anyio
from anyio import to_thread

from meshwise.wanted import Abandoned, while_wanted

Answer = TypeVar("Answer")
Left = Callable[[], Awaitable[bool]]  # says whether whoever asked has left
MAX_ANSWERS_KEPT = 64  # answers that are kept
MAX_WAITING = 128  # requests that may wait for a thread; more are refused


class Kept:
    """The last answers by question; the one unused for longest goes first. Threads that ask the same wait for one computation."""

    def __init__(self, most: int = MAX_ANSWERS_KEPT) -> None:
        self._most = most
        self._answers: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()
        self._computing: dict[Hashable, threading.Lock] = {}

    def get(self, key: Hashable, compute: Callable[[], Answer]) -> Answer:
        """Return the answer to `key`, computed once. An error is not kept."""
        with self._lock:
            if key in self._answers:
                self._answers.move_to_end(key)
                return self._answers[key]
            turn = self._computing.setdefault(key, threading.Lock())
        with turn:
            with self._lock:
                if key in self._answers:
                    return self._answers[key]
            try:
                answer = compute()
            finally:
                with self._lock:
                    self._computing.pop(key, None)
            with self._lock:
                self._answers[key] = answer
                while len(self._answers) > self._most:
                    self._answers.popitem(last=False)
            return answer

    def __len__(self) -> int:
        return len(self._answers)


class Busy(Exception):
    """Too many requests wait."""


class Gone(Exception):
    """The client has closed the connection."""


class Pool:
    """A few threads for searches. A waiting request is dropped when its client leaves; a search keeps its thread until it has ended."""

    def __init__(self, threads: int = 0) -> None:
        self._threads = threads or min(8, max(2, os.cpu_count() or 2))
        self._slots: anyio.Semaphore | None = None
        self._waiting = 0

    async def run(self, left_already: Left, compute: Callable[[], Answer]) -> Answer:
        """Call `compute` in a thread. Busy where too many wait; Gone where the client left first."""
        if self._slots is None:  # it belongs to the event loop that it was made in
            self._slots = anyio.Semaphore(self._threads)
        if self._waiting >= MAX_WAITING:
            raise Busy
        done: list[Answer] = []
        failed: list[BaseException] = []
        left = threading.Event()

        def call() -> None:
            try:
                with while_wanted(lambda: not left.is_set()):
                    done.append(compute())
            except Abandoned:
                pass  # not kept: it holds what the search has made
            except Exception as error:
                failed.append(error)
            _give_back()

        self._waiting += 1
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_until_gone, left_already, left, tasks.cancel_scope)
                async with self._slots:
                    with anyio.CancelScope(shield=True):  # the slot is free when the thread is
                        await to_thread.run_sync(call, limiter=anyio.CapacityLimiter(1))
                tasks.cancel_scope.cancel()
        finally:
            self._waiting -= 1
        if failed:
            raise failed[0]
        if not done:
            raise Gone
        return done[0]


def _give_back() -> None:
    """Give freed memory back to the system: glibc keeps what its threads have freed, 20 MB of each large search that was broken off."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


async def _until_gone(left_already: Left, left: threading.Event, scope: anyio.CancelScope) -> None:
    """Set `left` and cancel the scope when the client has gone, or when the server ends."""
    try:
        while not await left_already():
            await anyio.sleep(0.1)
        scope.cancel()
    finally:
        left.set()
