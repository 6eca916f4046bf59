"""The processes of a serving plan: exactly its layout, and programs or files that are missing refused before anything starts."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from meshwise.errors import UserError
from meshwise.plan.ask import ServeAsk
from meshwise.programs.engines import commands
from meshwise.run.serve import programs
from meshwise.run.serve.ask import ServeRun
from meshwise.run.serve.deployment import deployment
from support.engines import plan, script, server


def test_the_server_is_started_with_exactly_the_planned_split(tmp_path: Path) -> None:
    server(tmp_path, "llama-server")
    one, run = plan(tmp_path, "2xrtx3090+1xrtx3060-12gb", ("split=layer", "cards=3"))
    (made,) = programs.programs(one, run)
    planned = shlex.split(commands(one.question, one.layout)["llama.cpp"][0])
    at = planned.index("-m") + 1
    expected = [*planned[1:at], str(tmp_path / "m.gguf"), *planned[at + 1 :], "--host", "127.0.0.1", "--port", str(made.port)]
    assert list(made.command) == [str(tmp_path / "llama-server"), *expected]
    assert "-sm" in made.command


def test_rpc_servers_are_started_at_loopback_and_only_addressed_elsewhere(tmp_path: Path) -> None:
    """Two hosts with a card each: the first's server is started here when it is said to be at loopback, else only named."""
    server(tmp_path, "llama-server")
    server(tmp_path, "rpc-server")
    one, run = plan(tmp_path, "2x(1xrtx4060ti-16gb)@1Gbps", ("hosts=2",))

    def at(**words: Any) -> ServeRun:
        return ServeRun(engine_path=run.engine_path, model_file=run.model_file, port=0, **words)

    with pytest.raises(UserError, match="give the address of host1's RPC servers with --rpc host1=ADDRESS"):
        programs.programs(one, run)
    rpc, up = programs.programs(one, at(rpc="host1=loopback"))
    assert rpc.command[1:] == ("-H", "127.0.0.1", "-p", "50052")
    assert rpc.environment == {"CUDA_VISIBLE_DEVICES": "0"}
    assert up.command[up.command.index("--rpc") + 1] == "127.0.0.1:50052"
    (alone,) = programs.programs(one, at(rpc="host1=192.168.1.7"))
    assert alone.command[alone.command.index("--rpc") + 1] == "192.168.1.7:50052"
    (bound,) = programs.rpc_servers(one, at(serve_rpc="host1=192.168.1.7"))
    assert bound.command[1:3] == ("-H", "192.168.1.7")
    with pytest.raises(UserError, match="no RPC servers on 'host9'; it has host1"):
        programs.rpc_servers(one, at(serve_rpc="host9=192.168.1.7"))


def test_optional_flags_are_given_to_servers_that_know_them(tmp_path: Path) -> None:
    """An older server, which has only one of them, still starts."""
    one, run = plan(tmp_path)
    script(tmp_path, "llama-server", "print('-lv,   --verbosity N  Set the verbosity threshold')")
    (made,) = programs.programs(one, run)
    assert made.command[-2:] == ("-lv", "4")
    assert "--cache-ram" not in made.command


def test_missing_programs_and_files_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, run = plan(tmp_path)
    with pytest.raises(UserError, match=r"no llama-server found in .*: .*llama"):
        programs.programs(one, run)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="no llama-server found on PATH"):
        programs.programs(one, ServeRun(model_file=run.model_file))
    with pytest.raises(UserError, match=r"make-gguf MODEL --out llama-3-8b-Q4_K_M\.gguf"):
        programs.programs(one, ServeRun(engine_path=run.engine_path))
    on_cpu = deployment(ServeAsk(model="llama-3-8b:q4_k_m", on="cpu", context=4096))
    monkeypatch.setattr("meshwise.run.serve.xllamacpp.installed", lambda: False)
    with pytest.raises(UserError, match="pip install xllamacpp"):
        programs.programs(on_cpu, ServeRun(model_file=run.model_file))


def test_engines_without_a_server_are_refused() -> None:
    one = deployment(ServeAsk(model="llama-3-8b", on="1xh200", engine="transformers"))
    with pytest.raises(UserError, match="has no server"):
        programs.programs(one, ServeRun())
    one = deployment(ServeAsk(model="llama-3-8b:q4_k_m", on="1xrtx3090", engine="ollama"))
    with pytest.raises(UserError, match="give its URL"):
        programs.programs(one, ServeRun())
