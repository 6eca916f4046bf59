"""A serving plan as processes: exactly its split, RPC on private addresses alone, and what is missing told before anything starts."""

import os
import shlex
import sys
from pathlib import Path

import pytest

from meshwise.errors import DoesNotFit, UserError
from meshwise.export.engines import commands
from meshwise.plan.ask import ServeAsk
from meshwise.run.bench.speeds import Setting
from meshwise.run.serve import start
from meshwise.run.serve.process import Program, Running, check_port, failure, free_port, private, started
from meshwise.run.serve.start import Planned, Wish
from support.command import Run, one_line, refused

SERVER = """#!{python}
import http.server, sys, time
args = sys.argv[1:]
print("args", *args, flush=True)
{before}
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "2"); self.end_headers(); self.wfile.write(b"{{}}")
    def log_message(self, *a): pass
host = args[args.index("--host" if "--host" in args else "-H") + 1]
port = args[args.index("--port" if "--port" in args else "-p") + 1]
http.server.HTTPServer((host, int(port)), H).serve_forever()
"""


def program(folder: Path, name: str, before: str = "") -> Path:
    """A stand-in for one of llama.cpp's programs: it says its arguments, and answers or fails."""
    file = folder / name
    file.write_text(SERVER.format(python=sys.executable, before=before))
    file.chmod(0o755)
    return file


def plan(tmp_path: Path, cluster: str = "2xrtx4060ti-16gb", fix: tuple[str, ...] = ()) -> tuple[Planned, Wish]:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"")
    one = start.planned(ServeAsk(model="llama-3-8b:q4_k_m", cluster=cluster, context=4096, fix=fix))
    return one, Wish(folder=str(tmp_path), file=str(model))


def test_the_server_is_started_with_exactly_the_planned_split(tmp_path: Path) -> None:
    program(tmp_path, "llama-server")
    one, wish = plan(tmp_path, "2xrtx3090+1xrtx3060-12gb", ("split=layer", "cards=3"))
    (made,) = start.programs(one, wish)
    planned = shlex.split(commands(one.question, one.layout)["llama.cpp"][0])
    at = planned.index("-m") + 1
    wanted = [*planned[1:at], str(tmp_path / "m.gguf"), *planned[at + 1 :], "--host", "127.0.0.1", "--port", str(made.port)]
    assert list(made.command) == [str(tmp_path / "llama-server"), *wanted]
    assert "-sm" in made.command


def test_rpc_servers_of_a_plan_run_on_loopback_or_where_they_are(tmp_path: Path) -> None:
    """Two hosts with a card each: the first's server is started here when it is said to be at loopback, else only named."""
    program(tmp_path, "llama-server")
    program(tmp_path, "rpc-server")
    one, wish = plan(tmp_path, "2x(1xrtx4060ti-16gb)@1Gbps", ("hosts=2",))
    with pytest.raises(UserError, match="say where host1's RPC servers are with --rpc host1=ADDRESS"):
        start.programs(one, wish)
    rpc, server = start.programs(one, Wish(folder=wish.folder, file=wish.file, rpc={"host1": "loopback"}))
    assert rpc.command[1:] == ("-H", "127.0.0.1", "-p", "50052")
    assert rpc.environment == {"CUDA_VISIBLE_DEVICES": "0"}
    assert server.command[server.command.index("--rpc") + 1] == "127.0.0.1:50052"
    (alone,) = start.programs(one, Wish(folder=wish.folder, file=wish.file, rpc={"host1": "192.168.1.7"}))
    assert alone.command[alone.command.index("--rpc") + 1] == "192.168.1.7:50052"
    (bound,) = start.rpc_servers(one, Wish(folder=wish.folder, rpc={"host1": "192.168.1.7"}))
    assert bound.command[1:3] == ("-H", "192.168.1.7")
    with pytest.raises(UserError, match="no RPC servers on 'host9'; it has host1"):
        start.rpc_servers(one, Wish(folder=wish.folder, rpc={"host9": "192.168.1.7"}))


def script(folder: Path, name: str, body: str) -> None:
    """A program that says something and ends."""
    file = folder / name
    file.write_text(f"#!{sys.executable}\nimport sys\n{body}\n")
    file.chmod(0o755)


def test_flags_that_no_plan_needs_are_given_to_servers_that_have_them(tmp_path: Path) -> None:
    """An older server, which has only one of them, still starts."""
    one, wish = plan(tmp_path)
    script(tmp_path, "llama-server", "print('-lv,   --verbosity N  Set the verbosity threshold')")
    (made,) = start.programs(one, wish)
    assert made.command[-2:] == ("-lv", "4")
    assert "--cache-ram" not in made.command


def test_a_dry_run_shows_the_commands_and_what_each_device_would_hold(run: Run, tmp_path: Path) -> None:
    """Nothing is started but llama.cpp's own dry run, with the flags of the server."""
    script(tmp_path, "llama-server", "")
    says = "print('CUDA0 2113 544 172'); print('CUDA1 2290 480 354'); print('Host 281 0 72')"
    script(tmp_path, "llama-fit-params", f"assert sys.argv[-3:] == ['--no-repack', '-fitp', 'on'] and '-ts' in sys.argv; {says}")
    (tmp_path / "m.gguf").write_bytes(b"")
    made, cards = str(tmp_path / "plan.json"), "2xrtx4060ti-16gb"
    assert run("plan", "llama-3-8b:q4_k_m", "--serve", "--on", cards, "--fix", "split=layer,cards=2", "--out", made).code == 0
    words = ["--engine-path", str(tmp_path), "--model-file", str(tmp_path / "m.gguf"), "--dry-run"]
    done = run("run", made, *words)
    assert (done.code, done.err) == (0, "")
    command, *table = [line.split() for line in done.out.splitlines() if line.strip()]
    assert (command[0], command[command.index("-ts") + 1]) == (str(tmp_path / "llama-server"), "17,16")
    # llama.cpp's own figures for these devices (data/measurements/llamacpp_fit_dryrun.csv, of this build)
    assert table[-2:] == [
        ["CUDA0", "2,113.28", "2,113.00", "544.00", "544.00", "244.00", "172.00"],
        ["CUDA1", "2,290.21", "2,290.00", "480.00", "480.00", "354.50", "354.00"],
    ]


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "8.8.8.8", "example.org"])
def test_rpc_is_never_bound_to_an_open_address(address: str) -> None:
    with pytest.raises(UserError, match="insecure") as told:
        private(address)
    one_line(told.value)


def test_private_addresses_are_taken() -> None:
    assert [private(text) for text in ("loopback", "10.1.2.3", "192.168.0.4", "::1")] == [
        "127.0.0.1",
        "10.1.2.3",
        "192.168.0.4",
        "::1",
    ]


def test_what_is_missing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, wish = plan(tmp_path)
    with pytest.raises(UserError, match=r"no llama-server found in .*: .*llama"):
        start.programs(one, wish)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="no llama-server found on PATH"):
        start.programs(one, Wish(file=wish.file))
    with pytest.raises(UserError, match=r"make-gguf MODEL --out llama-3-8b-Q4_K_M\.gguf"):
        start.programs(one, Wish(folder=wish.folder))
    on_cpu = start.planned(ServeAsk(model="llama-3-8b:q4_k_m", cluster="cpu", context=4096))
    monkeypatch.setattr("meshwise.run.serve.xllamacpp.installed", lambda: False)
    with pytest.raises(UserError, match="pip install xllamacpp"):
        start.programs(on_cpu, Wish(file=wish.file))


def test_engines_without_a_server_are_told(tmp_path: Path) -> None:
    one = start.planned(ServeAsk(model="llama-3-8b", cluster="1xh200", engine="transformers"))
    with pytest.raises(UserError, match="serves nobody"):
        start.programs(one, Wish())
    one = start.planned(ServeAsk(model="llama-3-8b:q4_k_m", cluster="1xrtx3090", engine="ollama"))
    with pytest.raises(UserError, match="give its URL"):
        start.programs(one, Wish())


def test_settings_beyond_the_plan_get_room_in_the_same_way(tmp_path: Path) -> None:
    one, _ = plan(tmp_path)
    wide = start.for_settings(one, [Setting(prompt=6000, output=200, users=4), Setting(prompt=10, output=10, users=1)])
    assert (wide.layout, wide.question.work.users) == (one.layout, 4)
    assert wide.question.work.context >= 6200
    with pytest.raises(DoesNotFit, match="has no room for 4000 users"):
        start.for_settings(one, [Setting(prompt=6000, output=200, users=4000)])
    assert one.at(Setting(prompt=6000, output=200, users=4000)) is None


# Processes.


def fails(tmp_path: Path, before: str) -> UserError:
    port = free_port()
    file = program(tmp_path, "llama-server", before)
    with (
        pytest.raises(UserError) as told,
        started(
            [Program(name="llama-server", command=(str(file), "--host", "127.0.0.1", "--port", str(port)), port=port)], print, 20
        ),
    ):
        pass
    one_line(told.value)
    return told.value


def test_an_engine_that_runs_out_of_memory_is_told_with_the_plans_sum(tmp_path: Path) -> None:
    error = fails(tmp_path, "print('ggml_backend_cuda_buffer_type_alloc_buffer: cudaMalloc failed: out of memory'); sys.exit(1)")
    assert (type(error).__name__, error.exit_code) == ("OutOfMemory", 1)
    assert "cudaMalloc failed" in str(error)
    one, _ = plan(tmp_path)
    assert "the plan counted card 0: " in start.memory_sum(one)


def test_an_engine_that_is_too_old_is_told(tmp_path: Path) -> None:
    error = fails(tmp_path, "print('error: invalid argument: --n-cpu-moe'); sys.exit(1)")
    assert "does not know a flag that the plan needs (error: invalid argument: --n-cpu-moe); take a newer build" in str(error)
    assert error.exit_code == 2


def test_an_engine_that_does_not_come_up_is_given_up_and_killed(tmp_path: Path) -> None:
    """It ignores SIGTERM, as a program that hangs in a driver does."""
    port = free_port()
    wait = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('loading', flush=True); time.sleep(60)"
    file = program(tmp_path, "llama-server", wait)
    asked = Program(name="llama-server", command=(str(file), "--host", "127.0.0.1", "--port", str(port)), port=port)
    import meshwise.run.serve.process as process

    before, process.GRACE = process.GRACE, 0.3
    try:
        with pytest.raises(DoesNotFit, match="did not answer within 1 s; its last words: loading"), started([asked], print, 1):
            pass
    finally:
        process.GRACE = before


def test_all_programs_of_a_plan_come_up_in_order_and_go_together(tmp_path: Path) -> None:
    said: list[str] = []
    ports = [free_port(), free_port()]
    rpc, server = program(tmp_path, "rpc-server"), program(tmp_path, "llama-server")
    asked = [
        Program(name="rpc", command=(str(rpc), "-H", "127.0.0.1", "-p", str(ports[0])), port=ports[0], health=""),
        Program(name="server", command=(str(server), "--host", "127.0.0.1", "--port", str(ports[1])), port=ports[1]),
    ]
    with started(asked, said.append, 20) as up:
        pids = [one.process.pid for one in up]
        assert said[0].startswith("rpc: args -H 127.0.0.1")
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_program_that_cannot_be_started_is_told(tmp_path: Path) -> None:
    with (
        pytest.raises(UserError, match="cannot be started: "),
        started([Program(name="x", command=(str(tmp_path / "no"),))], print, 1),
    ):
        pass


def test_a_taken_port_and_a_crash_are_told() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UserError, match="name another with --port"):
            check_port(Program(name="x", command=(), port=taken.getsockname()[1]))
    one = Running(
        Program(name="x", command=(sys.executable, "-c", "print('0.01 E boom error here'); raise SystemExit(7)")), print
    )
    one.process.wait()
    one.reader.join()
    assert str(failure(one)) == "x ended with exit code 7: boom error here"
    one.stop()


def test_flags_of_training_and_serving_do_not_mix(run: Run, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"")
    assert "--steps is of training, and this is served" in refused(run("run", str(tmp_path / "m.gguf"), "--steps", "3"))
    assert "--port is of a plan to serve, and this is trained" in refused(run("run", "llama-debug", "--port", "3"))
    told = refused(run("run", str(tmp_path / "m.gguf"), "--rpc", "host1"))
    assert "expected a host of the plan and its address" in told
    assert "this machine has 0 GPUs" in refused(run("bench", "llama-3-8b:q4_k_m", "--on", "cpu", "--vary", "gpus=1..99"))
