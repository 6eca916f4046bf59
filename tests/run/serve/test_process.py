"""Programs of an engine: they start in order, fail with a reason, and stop together."""

import os
import socket
import sys
from pathlib import Path

import pytest

import meshwise.run.serve.process as process
from meshwise.errors import DoesNotFit, UserError
from meshwise.run.serve.process import Program, Running, check_port, failure, free_port, private_address, started
from support.command import one_line
from support.engines import plan, server


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "8.8.8.8", "example.org"])
def test_rpc_is_never_bound_to_an_open_address(address: str) -> None:
    with pytest.raises(UserError, match="insecure") as error:
        private_address(address)
    one_line(error.value)


def test_private_addresses_are_accepted() -> None:
    given = ("loopback", "10.1.2.3", "192.168.0.4", "::1")
    assert [private_address(text) for text in given] == ["127.0.0.1", "10.1.2.3", "192.168.0.4", "::1"]


def fails(tmp_path: Path, before: str) -> UserError:
    port = free_port()
    file = server(tmp_path, "llama-server", before)
    asked = Program(name="llama-server", command=(str(file), "--host", "127.0.0.1", "--port", str(port)), port=port)
    with pytest.raises(UserError) as error, started([asked], print, 20):
        pass
    one_line(error.value)
    return error.value


def test_an_engine_that_runs_out_of_memory_is_reported_with_the_planned_bytes(tmp_path: Path) -> None:
    error = fails(tmp_path, "print('ggml_backend_cuda_buffer_type_alloc_buffer: cudaMalloc failed: out of memory'); sys.exit(1)")
    assert (type(error).__name__, error.exit_code) == ("OutOfMemory", 1)
    assert "cudaMalloc failed" in str(error)
    one, _ = plan(tmp_path)
    assert one.memory_summary().startswith("planned device 0: ")


def test_an_engine_that_is_too_old_is_refused(tmp_path: Path) -> None:
    error = fails(tmp_path, "print('error: invalid argument: --n-cpu-moe'); sys.exit(1)")
    words = "does not know a flag that the plan needs (error: invalid argument: --n-cpu-moe); install a newer build"
    assert words in str(error)
    assert error.exit_code == 2


def test_an_engine_that_does_not_answer_in_time_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ignores SIGTERM, as a program that hangs in a driver does."""
    port = free_port()
    wait = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('loading', flush=True); time.sleep(60)"
    file = server(tmp_path, "llama-server", wait)
    asked = Program(name="llama-server", command=(str(file), "--host", "127.0.0.1", "--port", str(port)), port=port)
    monkeypatch.setattr(process, "GRACE_SECONDS", 0.3)
    with (
        pytest.raises(DoesNotFit, match="did not answer within 1 s; last line of its log: loading"),
        started([asked], print, 1),
    ):
        pass


def test_all_programs_of_a_plan_start_in_order_and_stop_together(tmp_path: Path) -> None:
    lines: list[str] = []
    ports = [free_port(), free_port()]
    rpc, up = server(tmp_path, "rpc-server"), server(tmp_path, "llama-server")
    asked = [
        Program(name="rpc", command=(str(rpc), "-H", "127.0.0.1", "-p", str(ports[0])), port=ports[0], health=""),
        Program(name="server", command=(str(up), "--host", "127.0.0.1", "--port", str(ports[1])), port=ports[1]),
    ]
    with started(asked, lines.append, 20) as running:
        pids = [one.process.pid for one in running]
        assert lines[0].startswith("rpc: args -H 127.0.0.1")
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_program_that_cannot_be_started_is_reported(tmp_path: Path) -> None:
    with (
        pytest.raises(UserError, match="cannot be started: "),
        started([Program(name="x", command=(str(tmp_path / "no"),))], print, 1),
    ):
        pass


def test_a_port_in_use_and_a_crash_are_reported() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UserError, match="choose another with --port"):
            check_port(Program(name="x", command=(), port=taken.getsockname()[1]))
    one = Running(
        Program(name="x", command=(sys.executable, "-c", "print('0.01 E boom error here'); raise SystemExit(7)")), print
    )
    one.process.wait()
    one.reader.join()
    assert str(failure(one)) == "x ended with exit code 7: boom error here"
    one.stop()
