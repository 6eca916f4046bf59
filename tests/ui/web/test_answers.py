"""Answers that are kept, and the bound on how many are computed at once."""

import http.client
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from meshwise import api, wanted
from meshwise.ui.web.answers import Gone, Kept, Pool


def test_threads_that_ask_the_same_share_one_computation() -> None:
    kept, computed = Kept(), list[int]()
    ready = threading.Barrier(8)

    def compute() -> int:
        computed.append(1)
        time.sleep(0.05)
        return 7

    def ask() -> int:
        ready.wait()
        return kept.get("question", compute)

    with ThreadPoolExecutor(8) as threads:
        answers = [future.result() for future in [threads.submit(ask) for _ in range(8)]]
    assert (answers, computed) == ([7] * 8, [1])


def test_only_the_last_answers_are_kept_and_no_errors() -> None:
    kept, computed = Kept(2), list[str]()

    def answer(name: str) -> str:
        computed.append(name)
        return name

    for name in ("a", "b", "a", "c", "a", "b"):
        kept.get(name, lambda name=name: answer(name))
    assert computed == ["a", "b", "c", "b"]
    assert len(kept) == 2
    with pytest.raises(ZeroDivisionError):
        kept.get("z", lambda: 1 // 0)
    assert kept.get("z", lambda: 5) == 5


class Client:
    """Stands for a request whose client leaves after a while."""

    def __init__(self, seconds: float) -> None:
        self.until = time.monotonic() + seconds

    async def is_disconnected(self) -> bool:
        return time.monotonic() > self.until


def test_a_request_whose_client_left_never_starts() -> None:
    started: list[str] = []

    async def ask() -> None:
        pool, hold = Pool(1), threading.Event()

        def long() -> str:
            hold.wait(5)
            return "long"

        def waiting() -> str:
            started.append("waiting")
            return "waiting"

        async def leave() -> None:
            await anyio.sleep(0.05)
            with pytest.raises(Gone):
                await pool.run(Client(0.05).is_disconnected, waiting)
            hold.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(leave)
            assert await pool.run(Client(60).is_disconnected, long) == "long"

    anyio.run(ask)
    assert started == []


def test_a_search_whose_client_left_ends_and_keeps_its_thread_until_then() -> None:
    """However many clients leave, no more searches run than there are threads."""
    running, most, lock = 0, 0, threading.Lock()

    def search() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        try:
            while True:  # a search that ends only where it is asked to
                time.sleep(0.01)
                wanted.check()
        finally:
            with lock:
                running -= 1

    async def ask() -> None:
        pool = Pool(2)

        async def leave() -> None:
            with pytest.raises(Gone):
                await pool.run(Client(0.05).is_disconnected, search)

        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(leave)
                await anyio.sleep(0.02)

    anyio.run(ask)
    assert (running, most) == (0, 2)


@pytest.mark.parametrize("ask", [
    lambda: api.plan("llama-3-70b", on="64x8xh100-sxm", batch="4M"), lambda: api.serve("llama-3-70b", on="8xh100-sxm"),
    lambda: api.plan("llama-3-70b", on="64x8xh100-sxm", batch="4M").vary(nodes="8..64"),
])  # fmt: skip
def test_every_search_looks_whether_it_is_wanted(ask: Callable[[], object]) -> None:
    with wanted.while_wanted(lambda: False), pytest.raises(wanted.Abandoned):
        ask()


def test_errors_of_a_computation_reach_the_request() -> None:
    async def ask() -> None:
        with pytest.raises(ZeroDivisionError):
            await Pool(1).run(Client(60).is_disconnected, lambda: 1 // 0)

    anyio.run(ask)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is read from /proc")
def test_sixty_giant_questions_that_nobody_waits_for_end_and_give_their_memory_back() -> None:
    """A search for 98,304 devices makes tens of megabytes in 0.3 s; threads of glibc keep what they free, unless it is given back."""
    command = [sys.executable, "-m", "meshwise", "ui", "--port", "0", "--no-browser"]
    pipe, environment = subprocess.PIPE, os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        port = int(server.stdout.readline().split("127.0.0.1:")[1].split("/")[0])
        held: list[tuple[int, int]] = []
        for number in range(60):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=0.3)
            with suppress(OSError, http.client.HTTPException):
                connection.request("GET", f"/plan?model=kimi-k2&on=12288x8xb200&batch={24576 + 512 * number}x8192")
                connection.getresponse().read()
            connection.close()
            status = Path(f"/proc/{server.pid}/status").read_text()
            values = {name: int(value) for name, value in re.findall(r"^(VmRSS|Threads):\s+(\d+)", status, re.MULTILINE)}
            held.append((values["VmRSS"] * 1024, values["Threads"]))
        server.send_signal(signal.SIGINT)
        assert server.wait(60) in (0, 130)
        assert "Traceback" not in server.stderr.read()
    assert max(size for size, _ in held) < 500e6
    assert max(threads for _, threads in held) <= (os.cpu_count() or 2) + 6
