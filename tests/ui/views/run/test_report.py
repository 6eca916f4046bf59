"""The report of a run: columns that add up, the slow rank, strong or weak scaling, and nothing that was not measured."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from meshwise.catalogue import here
from meshwise.run.train.ask import TrainRun
from meshwise.run.train.attempt import with_prediction
from meshwise.run.train.launch import Launch, prepare
from meshwise.run.train.report.advice import Forecast, command, forecast
from meshwise.run.train.report.comparison import Measured, read
from meshwise.run.train.report.memory import layout_of
from meshwise.run.train.results import TrainResult
from meshwise.ui.views.run.report import balanced, by_part, headline, memory, next_to_try, scaled, sections
from meshwise.ui.views.run.sections import Section, as_text
from meshwise.workers.trainer.contract.rows import PREDICTED_COLUMNS, Rank, Step, add_row, measurement
from meshwise.workers.trainer.contract.settings import Layout, broken_rules

PHASES = {"data": 0.01, "forward": 0.2, "backward": 0.4, "reduce": 0.05, "optimizer": 0.1}


def ready(**words: Any) -> Launch:
    return with_prediction(prepare(TrainRun(device="cpu", **words)))[0]


def rank(number: int, seconds: float, memory: float = 2.0**30) -> Rank:
    return Rank(number, "host", {"pp": number, "dp_shard": 0}, 512, seconds, seconds, memory)


def seen(run: Launch, *, seconds: float = 0.8, phases: dict[str, float] = PHASES, earlier: Any = (), ranks: Any = ()) -> Measured:
    steps = [Step(i, 6.0 - i, 1.0, seconds, 2.0**30, phases, ended=i) for i in range(4)]
    row = measurement(run.settings, steps, run.settings.layout.devices)
    return Measured(run.settings, steps, list(ranks) or [rank(0, 0.61)], row, list(earlier), 7.5)


def column(section: Section, which: int) -> dict[str, float]:
    assert section.table
    return {row[0]: float(row[which].split()[0]) for row in section.table.cells() if row[which]}


def test_predicted_and_measured_seconds_each_add_up_to_their_step() -> None:
    run = ready()
    (section,) = by_part(seen(run), forecast(run, []))
    for which in (1, 3):
        told = column(section, which)
        assert sum(value for name, value in told.items() if not name.startswith(" ") and name != "step") == pytest.approx(
            told["step"], abs=5e-5
        )
    told = column(section, 1)
    assert sum(value for name, value in told.items() if name.startswith(" ")) == pytest.approx(
        told["forward and backward"], abs=5e-5
    )
    told = column(section, 3)
    assert told["forward and backward"] == pytest.approx(told["  forward"] + told["  backward"])
    assert told["forward and backward"] == pytest.approx(0.6)
    assert told["everything else"] == pytest.approx(0.8 - sum(PHASES.values()))


def test_an_unknown_phase_is_listed_and_a_step_without_phases_has_none() -> None:
    run = ready()
    (section,) = by_part(seen(run, phases={"replay of the graph": 0.7}), forecast(run, []))
    assert column(section, 3) == {"replay of the graph": 0.7, "everything else": pytest.approx(0.1), "step": 0.8}
    (section,) = by_part(seen(run, phases={}), forecast(run, []))
    assert column(section, 3) == {"step": 0.8}
    assert "no phases" in section.lines[0]


def test_memory_by_kind_adds_up_to_its_peak_and_only_the_peak_is_measured() -> None:
    run = ready()
    section = memory(seen(run), forecast(run, []))
    told = column(section, 1)
    assert sum(value for kind, value in told.items() if kind != "peak") == pytest.approx(told["peak"], abs=0.04)
    assert column(section, 2) == {"peak": 1.0}


def test_an_unknown_chip_has_measurements_and_no_prediction() -> None:
    run = replace(ready(), on="")
    told = as_text(sections(TrainResult(Path("run"), seen(run), None)))
    assert "no prediction" in told
    assert "predicted" not in told  # no column without a number
    assert "suggested" not in told
    assert "640" in told  # 8 x 64 tokens in 0.8 s


def test_on_a_cpu_an_earlier_run_scales_the_prediction_and_the_first_one_says_that_none_did() -> None:
    run = ready()
    first = forecast(run, [])
    assert (first.scale, first.fitted) == (1.0, 0)
    assert any("not for this machine" in line for line in headline(seen(run), first).lines)
    rows = [seen(run, seconds=first.here.step * times).row for times in (2.0, 3.0, 10.0)]
    other = seen(ready(dp_shard=2), seconds=50.0).row  # two processes share the cores: it says nothing of one
    found = forecast(run, [*rows, other])
    assert (found.scale, found.fitted) == (pytest.approx(3.0), 3)
    assert found.seconds == pytest.approx(3 * first.here.step)
    assert any("3 earlier runs" in line for line in headline(seen(run), found).lines)


def test_the_slow_rank_is_named_with_its_stage() -> None:
    run = ready(pp=2)
    lines = balanced(seen(run, ranks=[rank(0, 0.2), rank(1, 0.6)])).lines
    # the mean of 0.2 and 0.6 is 0.4
    assert "0.200 (rank 0) to 0.600 CPU s (rank 1), largest over mean 1.500: rank 1 (pp 1) has 50% more than the mean" in lines[0]
    assert lines[-1].endswith("largest over mean 1.000: balanced")
    assert balanced(seen(run, ranks=[rank(0, 0.2)])).lines == ("one rank: nothing to balance",)


def test_times_that_some_rank_does_not_have_are_left_out() -> None:
    ranks = [replace(rank(i, 0.5), cpu_seconds=None, seconds=None if i else 0.5) for i in range(2)]
    lines = balanced(seen(ready(pp=2), ranks=ranks)).lines
    assert [line.split(":")[0] for line in lines] == ["memory"]


def row(devices: int, batch: int, seconds: float, **more: Any) -> dict[str, Any]:
    return seen(ready(dp_shard=devices, batch=batch), seconds=seconds).row | more


def test_scaling_is_strong_for_the_same_batch_and_weak_for_the_same_batch_a_device() -> None:
    mine = seen(ready(dp_shard=2, batch=8), seconds=0.5, earlier=[row(1, 8, 0.8), row(1, 4, 0.4), row(1, 4, 0.45)])
    lines = scaled(mine).lines
    # 8 sequences in 0.8 s on one device, in 0.5 s on two: 1.6 times as fast, 80% of twice
    assert lines[0] == "strong scaling (batch 8), 1 to 2 devices: 1.60 times the tokens/s, efficiency 80%"
    # 4 sequences in 0.4 s on one device (the faster of two runs), 8 in 0.5 s on two: 16 over 10 sequences a second
    assert lines[1] == "weak scaling (4 sequences per device), 1 to 2 devices: 1.60 times the tokens/s, efficiency 80%"


def test_runs_of_another_sequence_or_that_failed_are_not_compared() -> None:
    others = [row(1, 8, 0.8, seq_len=128), row(1, 8, 0.8, outcome="oom"), row(1, 8, 0.8, precision="bf16")]
    mine = seen(ready(dp_shard=2, batch=8), earlier=others)
    assert scaled(mine).lines == ("none with this model and sequence length on this device",)


def test_the_fastest_earlier_run_on_as_many_devices_is_reported() -> None:
    mine = seen(ready(), seconds=0.8, earlier=[seen(ready(mbs=4), seconds=0.4).row, seen(ready(), seconds=1.0).row])
    assert scaled(mine).lines == ("against the fastest of 2 earlier runs on as many devices (dp1 tp1 pp1 mbs4): -50.0% tokens/s",)


@pytest.fixture
def eight_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(here, "gpus", lambda: ["NVIDIA H200"] * 8)


def on_h200(**words: Any) -> tuple[Launch, Forecast]:
    run = prepare(TrainRun(**words))
    return run, forecast(run, [])


@pytest.mark.usefixtures("eight_h200")
def test_the_next_layout_is_faster_by_the_planner_and_the_trainer_can_run_it() -> None:
    run, found = on_h200(what="llama-3.2-1b", tp=8, mbs=1, batch=64, seq=2048)
    assert found.better
    assert (found.scale, found.generic) == (1.0, False)
    for one in found.better:
        assert one.step < found.here.step
        assert one.devices == 8
        assert not broken_rules(replace(run.settings, layout=layout_of(one.layout)))
    told = next_to_try(seen(run), found)
    lines, commands = told.lines, told.commands
    gain = found.here.step / found.better[0].step - 1
    assert f"{gain:+.0%} tokens/s predicted over dp1 tp8 pp1 mbs1" in lines[0]
    assert "less time in tensor-parallel communication" in lines[0]
    assert len(commands) == len(found.better)


@pytest.mark.usefixtures("eight_h200")
def test_the_best_layout_is_reported_as_the_fastest() -> None:
    run, found = on_h200(what="llama-3.2-1b", tp=8, mbs=1, batch=64, seq=2048)
    best = layout_of(found.better[0].layout)
    run, found = on_h200(what="llama-3.2-1b", **vars(best), batch=64, seq=2048)
    assert found.better == ()
    assert "is already the fastest of" in next_to_try(seen(run), found).lines[0]


@pytest.mark.usefixtures("eight_h200")
def test_layouts_that_the_trainer_cannot_run_are_not_suggested() -> None:
    _, found = on_h200(what="ttt-linear-125m", pp=8, batch=64, seq=512)
    assert found.better
    assert all(one.layout["tp"] == one.layout["cp"] == 1 for one in found.better)


def test_the_command_of_a_layout_omits_defaults() -> None:
    run = ready()
    layout = Layout(dp_shard=2, mbs=4, zero=2, recompute="full")
    expected = "meshwise run llama-debug --dp-shard 2 --mbs 4 --zero 2 --recompute full --batch 8x64"
    assert command(run.settings, layout, 8) == expected


def test_steps_of_an_earlier_run_are_not_counted_to_this_one(tmp_path: Path) -> None:
    run = ready()
    some = seen(run)
    (tmp_path / "steps.jsonl").write_text("".join(json.dumps(asdict(one)) + "\n" for one in some.steps), encoding="utf-8")
    add_row(tmp_path / "measurement.jsonl", some.row)
    found = read(run.settings, tmp_path, started=1.5, before=0)
    assert found
    assert [one.step for one in found.steps] == [2, 3]  # those that ended after it was started
    assert found.first_step == pytest.approx(0.5)
    assert read(run.settings, tmp_path, started=1.5, before=1) is None  # no row was added


def test_the_prediction_made_before_a_run_is_kept_in_its_row() -> None:
    run = ready()
    assert seen(run).row[PREDICTED_COLUMNS[0]] == pytest.approx(run.predicted().step)
