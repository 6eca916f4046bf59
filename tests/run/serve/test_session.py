"""`run` of a serving plan: the flags that apply, the content of a dry run, and an engine as an object of the API."""

import urllib.error
import urllib.request
from pathlib import Path

import pytest

from meshwise import api
from meshwise.errors import DoesNotFit, UserError
from meshwise.run.serve.ask import ServeRun, serves
from meshwise.run.serve.session import Serving
from support.command import Run, refused
from support.engines import script, server


def test_flags_of_training_and_serving_do_not_mix(run: Run, tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"")
    assert f"--steps only applies to training; {model} is served" in refused(run("run", str(model), "--steps", "3"))
    assert "--port only applies to serving; llama-debug is trained" in refused(run("run", "llama-debug", "--port", "3"))
    told = refused(run("run", str(model), "--rpc", "host1"))
    assert "--rpc 'host1': expected a host of the plan and its address" in told


def test_a_gguf_and_a_serving_plan_are_served_and_the_rest_is_trained(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"format": 2, "kind": "serve"}')
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert [serves(str(tmp_path / name)) for name in ("plan.json", "config.json", "m.gguf")] == [True, False, True]
    assert not serves("llama-debug")


def planned(run: Run, tmp_path: Path) -> str:
    (tmp_path / "m.gguf").write_bytes(b"")
    made = str(tmp_path / "plan.json")
    words = ["--on", "2xrtx4060ti-16gb", "--fix", "split=layer,cards=2", "--out", made]
    assert run("serve", "llama-3-8b:q4_k_m", *words).code == 0
    return made


def test_a_dry_run_shows_the_commands_and_what_each_device_would_hold(run: Run, tmp_path: Path) -> None:
    """Nothing is started but llama.cpp's own dry run, with the flags of the server."""
    script(tmp_path, "llama-server", "")
    says = "print('CUDA0 2113 544 172'); print('CUDA1 2290 480 354'); print('Host 281 0 72')"
    script(tmp_path, "llama-fit-params", f"assert sys.argv[-3:] == ['--no-repack', '-fitp', 'on'] and '-ts' in sys.argv; {says}")
    made = planned(run, tmp_path)
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


def test_an_engine_is_an_object_that_stops_with_its_block(run: Run, tmp_path: Path) -> None:
    server(tmp_path, "llama-server")
    made = planned(run, tmp_path)
    lines: list[str] = []
    words = {"engine_path": str(tmp_path), "model_file": str(tmp_path / "m.gguf"), "port": 0}
    for what in (made, api.load(made)):  # a file, or the plan itself
        with api.run(what, say=lines.append, **words) as engine:  # pyright: ignore[reportArgumentType, reportOptionalContextManager, reportAttributeAccessIssue, reportGeneralTypeIssues]
            assert isinstance(engine, Serving)
            with urllib.request.urlopen(engine.url) as reply:
                assert reply.status == 200
            assert engine.lines()[1].startswith(f"{engine.url} answers; measure it with 'meshwise bench {engine.url}'")
            engine.running[-1].process.kill()
            with pytest.raises(DoesNotFit, match="llama-server was ended by SIGKILL"):
                engine.wait()
        with pytest.raises(urllib.error.URLError, match="refused"):
            urllib.request.urlopen(engine.url)
    assert any(line.startswith("llama-server: args -m ") for line in lines)


def test_a_plan_has_its_own_cluster(run: Run, tmp_path: Path) -> None:
    made = planned(run, tmp_path)
    with pytest.raises(UserError, match="--on does not apply to a plan"):
        Serving(ServeRun(made, on="cpu"))
