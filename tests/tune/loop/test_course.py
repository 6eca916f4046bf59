"""The loop, from plan.json to the tuned plan: real launch files, real processes and logs; only torchrun is a pretended cluster."""

import json
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import meshwise
from meshwise.errors import UserError
from meshwise.plan.train.plan import TrainPlan
from meshwise.tune.ask import TuneAsk
from meshwise.tune.loop.journal import Journal
from meshwise.tune.loop.result import Tuned
from meshwise.tune.loop.training import Training
from support import pretend_cluster


@pytest.fixture(scope="module")
def plan() -> TrainPlan:
    return meshwise.plan("llama-3-8b", on="1x8xh100-sxm", batch="64x4096", framework="torchtitan")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cluster on which torchrun is pretended, and the variables that torchtitan's script needs."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{pretend_cluster.install(tmp_path / 'bin')}:{os.environ['PATH']}")
    monkeypatch.setenv("HF_ASSETS", "assets")
    monkeypatch.setenv("DATASET", "c4")
    return tmp_path


def tuned(plan: TrainPlan, folder: Path, said: list[str] | None = None, **words: Any) -> Tuned:
    given = {"launch": "bash {script}", "runs": 4, "folder": str(folder / "tune"), "timeout": 60, "gain": 0.0, **words}
    return meshwise.tune(plan, say=(said if said is not None else []).append, **given)


def started(folder: Path) -> list[str]:
    path = folder / "bin" / "started"
    return path.read_text().split() if path.exists() else []


def test_a_loop_ends_with_a_plan_a_table_and_a_calibration(plan: TrainPlan, cluster: Path) -> None:
    said: list[str] = []
    result = tuned(plan, cluster, said)
    folder = cluster / "tune"
    assert started(cluster) == ["run-001", "run-002", "run-003", "run-004"]
    assert result.best is not None
    measured = [run for run in result.runs if run.outcome == "ok"]
    assert result.best.seconds == pytest.approx(min(run.measured or 0.0 for run in measured))
    assert result.best.low < result.best.seconds < result.best.high
    written = meshwise.load(folder / "plan.json")
    assert isinstance(written, TrainPlan)
    assert written.best.step == pytest.approx(result.best.seconds)
    assert (written.best.low, written.best.high) == pytest.approx((result.best.low, result.best.high))
    assert "tuned with" in written.notes[-1]
    rows = [json.loads(line) for line in (folder / "measurement.jsonl").read_text().splitlines()]
    assert [row["outcome"] for row in rows] == [run.outcome for run in result.runs]
    assert [row["sec_per_iter"] for row in rows if row["outcome"] == "ok"] == [run.measured for run in measured]
    assert "measured" in said[1]
    assert "expected" in said[1]


def test_measurements_are_a_table_that_validate_reads(plan: TrainPlan, cluster: Path) -> None:
    tuned(plan, cluster)
    scored = meshwise.validate(cluster / "tune" / "measurement.jsonl")
    assert len(scored.rows()) >= 1


def test_a_loop_goes_on_with_the_runs_that_it_has(plan: TrainPlan, cluster: Path) -> None:
    first = tuned(plan, cluster, runs=2)
    again = tuned(plan, cluster, runs=3)
    assert [(run.name, run.measured) for run in again.runs[:2]] == [(run.name, run.measured) for run in first.runs]
    assert started(cluster) == ["run-001", "run-002", "run-003"]
    assert tuned(plan, cluster, runs=3).stopped == "3 of 3 runs are done"
    assert len(started(cluster)) == 3


def killed_after(plan: TrainPlan, folder: Path, events: int, **words: Any) -> int:
    """Tune in another process, and kill it right after this many events are in the journal; return how it ended."""

    def work() -> None:
        write, count = Journal.write, 0

        def writing(self: Journal, event: dict[str, Any]) -> None:
            nonlocal count
            write(self, event)
            count += 1
            if count == events:
                os.kill(os.getpid(), signal.SIGKILL)

        Journal.write = writing
        tuned(plan, folder, **{"runs": 2, **words})

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join(120)
    return process.exitcode or 0


@pytest.mark.slow
def test_killed_after_any_event_it_goes_on_and_starts_no_run_twice(plan: TrainPlan, cluster: Path) -> None:
    plan.question()  # looked up once, before the forks
    whole = tuned(plan, cluster / "whole", runs=2)
    wrong: list[str] = []
    for events in range(1, 10):
        folder = cluster / f"killed-{events}"
        (cluster / "bin" / "started").unlink(missing_ok=True)
        if killed_after(plan, folder, events) != -signal.SIGKILL:
            wrong.append(f"{events}: not killed")
        result = tuned(plan, folder, runs=2)
        if started(cluster) != ["run-001", "run-002"]:
            wrong.append(f"{events}: started {started(cluster)}")
        if [(run.name, run.measured) for run in result.runs] != [(run.name, run.measured) for run in whole.runs]:
            wrong.append(f"{events}: other runs")
        if len((folder / "tune" / "measurement.jsonl").read_text().splitlines()) != 2:
            wrong.append(f"{events}: other rows")
    assert not wrong


def test_a_launch_command_that_fails_is_shown_and_is_no_measurement(plan: TrainPlan, cluster: Path) -> None:
    with pytest.raises(UserError, match=r"exit code 1 before the run began.*invalid partition gpu"):
        tuned(plan, cluster, launch="echo 'sbatch: error: invalid partition gpu' >&2; false {script}")
    result = tuned(plan, cluster, runs=2)
    assert result.runs[0].outcome == "left out"
    assert len(started(cluster)) == 2, "the failed launch has used up no run"


def test_a_failed_launch_is_no_crash_for_the_loop_that_comes_after(plan: TrainPlan, cluster: Path) -> None:
    assert killed_after(plan, cluster, 4, launch="false {script}") == -signal.SIGKILL
    events = [event["event"] for event in Journal(cluster / "tune").events]
    assert events == ["setting", "chosen", "started", "ended"]
    result = tuned(plan, cluster, runs=1)
    assert [run.outcome for run in result.runs] == ["left out", "ok"]


def test_a_log_that_cannot_be_read_is_left_out_and_the_loop_goes_on(plan: TrainPlan, cluster: Path) -> None:
    pretend_cluster.install(cluster / "bin", "none noise fewer impossible none")
    said: list[str] = []
    result = tuned(plan, cluster, said, runs=5)
    outcomes = [run.outcome for run in result.runs]
    assert outcomes[:4] == ["ok", "left out", "left out", "left out"]
    notes = [run.note for run in result.runs[1:4]]
    words = (
        "no known format matches",
        "where the run has 8: the cluster or the launch files have changed",
        "times the peak of H100",
    )
    assert [word for word, note in zip(words, notes, strict=True) if word not in note] == []
    rows = (cluster / "tune" / "measurement.jsonl").read_text().splitlines()
    assert len(rows) == sum(outcome != "left out" for outcome in outcomes)


def test_a_log_that_can_be_read_later_is_a_measurement_then(plan: TrainPlan, cluster: Path) -> None:
    pretend_cluster.install(cluster / "bin", "none noise none")
    first = tuned(plan, cluster, runs=3)
    assert [run.outcome for run in first.runs] == ["ok", "left out", "ok"]
    log = cluster / "tune" / "run-002" / "output.log"
    fields = {"seq_len": 4096, "global_batch_seqs": 64, "n_gpus": 8, "step_time_s": 9.5}
    log.write_text("".join(json.dumps({"step": step, **fields}) + "\n" for step in range(1, 9)))
    again = tuned(plan, cluster, runs=3)
    assert [run.outcome for run in again.runs] == ["ok", "ok", "ok"]
    assert again.runs[1].measured == pytest.approx(9.5)
    assert len(started(cluster)) == 3, "no run was started again"
    assert len((cluster / "tune" / "measurement.jsonl").read_text().splitlines()) == 3
    assert [run.outcome for run in tuned(plan, cluster, runs=3).runs] == ["ok", "ok", "ok"], "and it stays one"


def test_a_setup_that_gave_nothing_is_tried_once_more_and_not_until_the_budget_is_used_up(plan: TrainPlan, cluster: Path) -> None:
    pretend_cluster.install(cluster / "bin", "noise noise noise noise noise")
    for runs in (3, 4):
        with pytest.raises(UserError, match="3 runs in a row gave no measurement"):
            tuned(plan, cluster, runs=9)
        assert len(started(cluster)) == runs


def test_a_script_whose_command_is_not_there_stops_the_loop_and_costs_no_run(
    plan: TrainPlan, cluster: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as bare:
        (cluster / "bin" / "torchrun").unlink()
        bare.setenv("PATH", f"{cluster / 'bin'}:/usr/bin:/bin")
        with pytest.raises(UserError, match=r"run 1: its script could not execute a command.*torchrun: command not found"):
            tuned(plan, cluster, runs=1)
    pretend_cluster.install(cluster / "bin")
    said: list[str] = []
    result = tuned(plan, cluster, said, runs=1)
    assert [run.outcome for run in result.runs] == ["left out", "ok"]
    assert result.runs[1].name == result.runs[0].name
    assert said[0].startswith("run 2/2 ")


def test_crashes_before_any_success_stop_the_loop_and_teach_nothing(plan: TrainPlan, cluster: Path) -> None:
    pretend_cluster.install(cluster / "bin", "crash crash crash")
    with pytest.raises(UserError, match=r"3 runs in a row gave no measurement.*unhandled system error"):
        tuned(plan, cluster, runs=9)
    pretend_cluster.install(cluster / "bin", "")
    result = tuned(plan, cluster, runs=1)
    assert [run.outcome for run in result.runs] == ["left out"] * 3 + ["ok"]
    assert result.runs[3].name == result.runs[0].name, "the layout was not to blame"


def test_a_run_that_hangs_is_ended(plan: TrainPlan, cluster: Path) -> None:
    pretend_cluster.install(cluster / "bin", "none sleep")
    result = tuned(plan, cluster, runs=2, timeout=2)
    assert [run.outcome for run in result.runs] in (["ok", "hang"], ["ok", "timeout"])


def test_another_cluster_keeps_earlier_runs_out_of_the_fit(plan: TrainPlan, cluster: Path) -> None:
    tuned(plan, cluster, runs=1)
    other = meshwise.plan("llama-3-8b", on="1x8xh200", batch="64x4096", framework="torchtitan")
    said: list[str] = []
    result = tuned(other, cluster, said, runs=1)
    assert "1 earlier run in" in said[0]
    assert "kept out of the fit" in said[0]
    assert [run.number for run in result.runs] == [2]
    assert [run.number for run in tuned(plan, cluster, runs=1).runs] == [1], "nothing is lost"


def test_runs_count_whatever_options_are_tuned_later_and_whatever_the_price(plan: TrainPlan, cluster: Path) -> None:
    first = tuned(plan, cluster, runs=1)
    dearer = meshwise.plan("llama-3-8b", on="1x8xh100-sxm", batch="64x4096", framework="torchtitan", price="$9/h")
    more = tuned(dearer, cluster, runs=2, options="compile=no,yes")
    assert [run.number for run in more.runs] == [1, 2]
    assert more.runs[0].measured == first.runs[0].measured
    narrow = meshwise.plan("llama-3-8b", on="1x8xh100-sxm", batch="64x4096", framework="torchtitan", precision="fp8")
    asked = TuneAsk(what="plan", launch="bash {script}")
    wide, other = Training(plan, asked), Training(narrow, asked)
    assert wide.setting == other.setting
    assert wide.find(wide.describe(0)) == 0
    assert other.find(wide.describe(0)) is None, "a run in 16 bits is no run in 8"


def test_runs_side_by_side_are_all_recorded(plan: TrainPlan, cluster: Path) -> None:
    result = tuned(plan, cluster, runs=4, side_by_side=3)
    assert sorted(started(cluster)) == ["run-001", "run-002", "run-003", "run-004"]
    assert len({run.name for run in result.runs}) == 4


def test_budgets_stop_the_loop(plan: TrainPlan, cluster: Path) -> None:
    stops = {
        "gain": tuned(plan, cluster / "a", runs=9, gain=10.0).stopped,
        "device_hours": tuned(plan, cluster / "b", runs=9, device_hours=1e-6).stopped,
        "minutes": tuned(plan, cluster / "c", runs=9, minutes=1e-9).stopped,
    }
    assert "one more run is expected to save" in stops["gain"]
    assert "device-hours" in stops["device_hours"]
    assert "minutes are over" in stops["minutes"]


def test_by_hand_it_asks_for_logs_and_understands_times_and_failures(plan: TrainPlan, cluster: Path) -> None:
    answers = iter(["no such file", "0s", "4.2s", "oom", "skip"])
    said: list[str] = []
    result = meshwise.tune(
        plan, by_hand=True, runs=3, folder=str(cluster / "hand"), gain=0.0, say=said.append, answer=lambda _: next(answers)
    )
    assert [run.outcome for run in result.runs] == ["ok", "oom", "left out"]
    assert result.best is not None
    assert result.best.seconds == pytest.approx(4.2)
    assert any("is no file, no time such as 3.2s" in line for line in said)
    assert any("the time of a step is above zero" in line for line in said)
    assert (cluster / "hand" / "run-001" / "train.sh").exists()


def test_by_hand_without_an_answer_it_waits_for_the_next_time(plan: TrainPlan, cluster: Path) -> None:
    def nobody(_: str) -> str:
        raise EOFError

    words = {"by_hand": True, "runs": 2, "folder": str(cluster / "hand")}
    first = meshwise.tune(plan, say=[].append, answer=nobody, **words)
    assert "run 1 waits for its log" in first.stopped
    second = meshwise.tune(plan, say=[].append, answer=lambda _: "3s", **words)
    assert second.runs[0].name == first.runs[0].name


def test_by_hand_an_answer_that_was_not_recorded_is_asked_for_again(plan: TrainPlan, cluster: Path) -> None:
    words = {"by_hand": True, "launch": ""}
    assert killed_after(plan, cluster, 4, answer=lambda _: "3s", **words) == -signal.SIGKILL
    assert Journal(cluster / "tune").runs[1].state == "ended"
    result = tuned(plan, cluster, runs=1, answer=lambda _: "4s", **words)
    assert [(run.outcome, run.measured) for run in result.runs] == [("ok", 4.0)]


def test_variables_that_a_script_needs_are_named_before_anything_starts(
    plan: TrainPlan, cluster: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DATASET")
    with pytest.raises(UserError, match=r"train.sh needs DATASET in the environment: set DATASET"):
        tuned(plan, cluster)
    assert started(cluster) == []
