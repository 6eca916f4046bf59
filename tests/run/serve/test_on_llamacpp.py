"""A real engine in CI: a tiny model of random weights on xllamacpp, started by a plan, measured, and gone afterwards."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshwise.models import make_gguf
from meshwise.models.formats import find_format
from meshwise.plan.ask import ServeAsk
from meshwise.plan.serve.search import with_memory
from meshwise.run.serve.ask import ServeRun
from meshwise.run.serve.deployment import deployment
from meshwise.run.serve.process import started
from meshwise.run.serve.programs import programs
from support.command import Run, refused
from support.scripted_endpoint import serving

pytest.importorskip("xllamacpp", reason="the wheel of llama.cpp is not installed: pip install xllamacpp")
pytestmark = pytest.mark.slow


INSIDE = ("--threads", "1", "--engine-path", "xllamacpp")
"""Whatever is on PATH."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers of a 135M: 36 MB, a few milliseconds a token."""
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    make_gguf.write(make_gguf.prepare("smollm2-135m", find_format("q4_k_m"), 2), path)
    return path


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.is_file() or state.read_text().rpartition(")")[2].split()[0] != "Z"


def children(pid: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False).stdout
    return [int(word) for word in found.split()]


class Started:
    """`meshwise run` in a process of its own, and the address that it printed."""

    def __init__(self, *words: str) -> None:
        command = [sys.executable, "-c", "from meshwise.ui.cli.main import main; main()", "run", *words]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout
        self.said = [self.process.stdout.readline() for _ in range(2)]
        self.url = self.said[1].split()[0] if self.said[1] else ""
        self.engines = children(self.process.pid)

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        code = self.process.wait(30)
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe
            pipe.close()
        return code

    def gone(self) -> bool:
        deadline = time.monotonic() + 60
        while any(map(alive, self.engines)) and time.monotonic() < deadline:
            time.sleep(0.05)
        return bool(self.engines) and not any(map(alive, self.engines))


@pytest.fixture(scope="module")
def engine(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """A plan for four users, started by `run` with one thread."""
    plan = tmp_path_factory.mktemp("plan") / "plan.json"
    words = [
        "serve",
        str(tiny),
        "--on",
        "cpu",
        "--users",
        "4",
        "--context",
        "512",
        "--prompt",
        "48",
        "--output",
        "48",
        "--out",
        str(plan),
    ]
    command = [sys.executable, "-c", "from meshwise.ui.cli.main import main; main()", *words]
    subprocess.run(command, check=True, capture_output=True)
    up = Started(str(plan), "--port", "0", *INSIDE)
    yield up
    assert up.end(signal.SIGTERM) == 0
    assert up.gone()


PACE = 0.02


class Relay:
    """Between the bench and the engine, with a clock and a count of its own: lines that begin with 'data:' and hold text.

    It shares no code with the bench, so that the two are two opinions of the same streams. It passes one token in PACE seconds on, so
    that a stream lasts a second and not the 10 ms of a tiny model: a stall of a busy CPU is then small beside it.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.streams: list[list[float]] = []
        self.tasks: list[asyncio.Task[None] | None] = []
        """Kept: asyncio holds a task that waits for a stream by the stream alone, and collects both when its client has gone."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.append(asyncio.current_task())
        inner, out = await asyncio.open_connection("127.0.0.1", self.port)
        head = await reader.readuntil(b"\r\n\r\n")
        size = next((int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")), 0)
        out.write(head + (await reader.readexactly(size) if size else b""))
        times: list[float] = []
        try:
            while line := await inner.readline():
                if line.startswith(b"data: {") and json.loads(line[6:])["choices"] and json.loads(line[6:])["choices"][0]["text"]:
                    await asyncio.sleep(PACE)
                    times.append(time.perf_counter())
                writer.write(line)
                await writer.drain()
        finally:
            out.close()
            writer.close()
            if len(times) > 2:
                self.streams.append(times)


def test_run_starts_a_plan_and_prints_its_url(engine: Started) -> None:
    assert "with xllamacpp, predicted" in engine.said[0]
    assert "answers; measure it with 'meshwise bench http://127.0.0.1:" in engine.said[1]
    assert len(engine.engines) == 1


def test_bench_agrees_with_an_independent_clock_at_one_and_four_requests(run: Run, engine: Started) -> None:
    """Tokens per second of each user by the relay's own clock and count. Per user against total would be a factor of four."""
    relay = Relay(int(engine.url.rpartition(":")[2]))
    with serving(relay.serve) as port:
        done = run(
            "bench", f"http://127.0.0.1:{port}", "--prompt", "48", "--output", "48", "--users", "1,4", "--repeats", "2", "--json"
        )
    assert done.code == 0, done.err
    one, four = json.loads(done.out)["points"]
    # Without the two probes of two tokens: a warm-up and two repeats of one user, then of four.
    streams = sorted(relay.streams)
    alone, together = streams[1:3], streams[7:15]
    for point, streams in ((one, alone), (four, together)):
        assert len(streams) == 2 * point["users"]
        rates = [(len(times) - 1) / (times[-1] - times[0]) for times in streams]
        seen = sum(point["per_user_values"]) / 2
        assert 0.5 < seen / (sum(rates) / len(rates)) < 2
        assert point["engine_decode"] > 0
        assert point["faults"] == {}
        assert (point["ttft_p50"] > 0, point["prompt_tokens"]) == (True, pytest.approx(48, abs=6))


def test_bench_starts_a_model_measures_it_and_leaves_rows_that_validate_reads(run: Run, tiny: Path, tmp_path: Path) -> None:
    words = ["--prompt", "24", "--output", "8", "--repeats", "2", *INSIDE, "--rows", str(tmp_path / "rows.csv")]
    done = run("bench", str(tiny), *words)
    assert (done.code, done.err) == (0, "")
    assert "tiny.gguf with xllamacpp, 2 repeats after a warm-up" in done.out
    assert " pred " in done.out
    told = run("validate", str(tmp_path / "rows.csv"), "--json")
    assert json.loads(told.out)["rows"] == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_engine_is_left_behind_whatever_ends_meshwise(tiny: Path, number: int) -> None:
    if number == signal.SIGKILL and sys.platform != "linux":
        pytest.skip("only Linux ends a process with its parent")
    up = Started(str(tiny), "--port", "0", *INSIDE)
    code = up.end(number)
    assert code == (0 if number == signal.SIGINT else -signal.SIGKILL)
    assert up.gone()


def test_an_engine_that_dies_is_reported_and_ends_run(tiny: Path) -> None:
    up = Started(str(tiny), "--port", "0", *INSIDE)
    os.kill(up.engines[0], signal.SIGKILL)
    assert up.process.wait(20) == 1
    assert up.process.stderr
    assert "xllamacpp was ended by SIGKILL" in up.process.stderr.read().splitlines()[-1]
    up.end(0)


def test_planned_bytes_equal_those_that_llamacpp_logs(tiny: Path) -> None:
    """Weights and cache, to 1 MiB, from the log of the engine. (Over two RPC servers it needs llama.cpp's own programs.)"""
    one = deployment(ServeAsk(model=str(tiny), on="cpu", context=2048))
    processes = programs(one, ServeRun(threads=1, engine_path="xllamacpp", port=0))
    with started(processes, lambda line: None, 60) as up:
        log = "\n".join(up[0].log)
    device = with_memory(one.question, one.layout).footprints[1]
    for pattern, planned in (
        (r"CPU_Mapped model buffer size = +([\d.]+) MiB", device.weights),
        (r"CPU KV buffer size = +([\d.]+)", device.cache),
    ):
        found = re.search(pattern, log)
        assert found, log[-2000:]
        assert float(found[1]) == pytest.approx(planned / 2**20, abs=1)


def test_a_file_that_the_engine_refuses_is_reported_in_its_words(run: Run, tiny: Path, tmp_path: Path) -> None:
    """A header that says more layers than there are tensors."""
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(tiny.read_bytes().replace(b"blk.1.attn_q.weight", b"blk.1.attn_X.weight"))
    told = refused(run("bench", str(bad), *INSIDE), 1)
    assert "xllamacpp ended with exit code 1: " in told
    assert "blk.1.attn_q.weight" in told


def test_a_port_in_use_is_refused(run: Run, tiny: Path, engine: Started) -> None:
    port = engine.url.rpartition(":")[2]
    assert f"cannot listen on 127.0.0.1:{port}" in refused(run("run", str(tiny), "--port", port))
