"""`tune --serve`: layouts and flags of an engine as candidates, measured by `bench`."""

import json
from pathlib import Path

import pytest

import meshwise
from meshwise.errors import UserError
from meshwise.plan.serve.plan import ServePlan
from meshwise.run.serve import xllamacpp
from meshwise.tune.ask import TuneAsk
from meshwise.tune.loop.launch import End
from meshwise.tune.loop.serving import Serving


def subject(folder: Path, **words: object) -> Serving:
    """Return a 70B model on four cards as the subject of a tuning."""
    plan = meshwise.serve("llama-3.3-70b:q4_k_m", on="4xrtx4060ti-16gb", context="8k", users=2)
    return Serving(plan, TuneAsk(what="plan", folder=str(folder), **words))  # pyright: ignore[reportArgumentType]


def test_candidates_are_layouts_times_flags_of_the_engine(tmp_path: Path) -> None:
    tuned = subject(tmp_path)
    flags = {tuple(option.flags.items()) for option in tuned.options}
    assert len(flags) == 8, "four sizes of a micro-batch, flash attention on and off"
    layouts = {option.fixed for option in tuned.options}
    assert len(tuned.options) == len(tuned.space) == 8 * len(layouts)
    lost = [row for row in range(len(tuned.options)) if tuned.find(tuned.describe(row)) != row]
    assert lost == []


def test_flags_are_at_the_end_of_the_command_and_layouts_are_fixed(tmp_path: Path) -> None:
    tuned = subject(tmp_path, options="ubatch-size=256,512")
    wrong: list[str] = []
    for row, option in enumerate(tuned.options):
        plan = tuned.plan_of(row)
        if plan.best.name != option.choice.name or not plan.commands["llama.cpp"][-1].endswith(
            f" --ubatch-size {option.flags['ubatch-size']}"
        ):
            wrong.append(option.name)
    assert wrong == []


def test_a_candidate_that_is_dropped_leaves_the_others_in_place(tmp_path: Path) -> None:
    tuned = subject(tmp_path)
    names = [option.name for option in tuned.options]
    tuned.drop(3)
    assert [option.name for option in tuned.options] == [*names[:3], *names[4:]]
    assert [tuned.space.words(row) for row in range(len(tuned.space))] == [option.name for option in tuned.options]


def test_a_run_is_the_bench_of_its_plan_with_its_flags(tmp_path: Path) -> None:
    tuned = subject(tmp_path, options="flash-attn=off", launch="sbatch {script}")
    job = tuned.prepare(0, 1, tmp_path / "run-001")
    script = (tmp_path / "run-001" / "bench.sh").read_text()
    assert job.command == f"sbatch {tmp_path / 'run-001' / 'bench.sh'}"
    assert "--engine-flags '--flash-attn off'" in script
    assert str(tmp_path / "run-001" / "serve.json") in script


def test_reports_and_failures_are_read(tmp_path: Path) -> None:
    tuned = subject(tmp_path)
    (tmp_path / "output.log").write_text("error: CUDA error: out of memory\n")
    assert tuned.read(0, tmp_path, End("exit", 1)).failure == "oom"
    (tmp_path / "report.json").write_text("{}")
    assert "cannot be read" in tuned.read(0, tmp_path, End("exit", 0)).rejected
    point = {"prompt": 512, "output": 128, "users": 2, "with_prompts": 40.0, "repeats": 3, "spread": 0.01, "faults": {}}
    report = {"format": 1, "kind": "bench", "points": [point | {"decode_values": [50.0], "prefill_values": [900.0]}]}
    (tmp_path / "report.json").write_text(json.dumps(report))
    assert tuned.read(0, tmp_path, End("exit", 0)).seconds == pytest.approx(1 / 40)


def test_own_is_for_training(tmp_path: Path) -> None:
    plan = meshwise.serve("llama-3.2-1b:q8_0", on="1xrtx3090")
    with pytest.raises(UserError, match="--own is for training"):
        meshwise.tune(plan, own=True, folder=str(tmp_path))


@pytest.mark.slow
@pytest.mark.skipif(not xllamacpp.installed(), reason="xllamacpp is not installed")
def test_a_real_engine_is_tuned(tmp_path: Path) -> None:
    model = tmp_path / "tiny.gguf"
    meshwise.make_gguf("llama-debug", model, type="q8_0")
    plan = meshwise.serve(str(model), on="cpu", prompt=96, output=4, context=256)
    tuned = meshwise.tune(
        plan,
        runs=2,
        repeats=1,
        options="ubatch-size=32,128",
        engine_path="xllamacpp",
        gain=0.0,
        folder=str(tmp_path / "tune"),
        say=[].append,
    )
    assert [run.outcome for run in tuned.runs] == ["ok", "ok"], tuned.runs
    assert tuned.best is not None
    best = meshwise.load(tmp_path / "tune" / "plan.json")
    assert isinstance(best, ServePlan)
    flag = tuned.best.candidate["flags"]["ubatch-size"]
    assert best.commands["llama.cpp"][-1].endswith(f"--ubatch-size {flag}")
    rows = [json.loads(line) for line in (tmp_path / "tune" / "measurement.jsonl").read_text().splitlines()]
    assert [row["outcome"] for row in rows] == ["ok", "ok"]
