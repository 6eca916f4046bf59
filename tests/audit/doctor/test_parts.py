"""Predicted against measured by part of the step, from the folder of a run."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from typer.testing import CliRunner

from meshwise.audit.doctor import parts
from meshwise.errors import UserError
from meshwise.run.train import launch
from meshwise.run.train.ask import TrainRun
from meshwise.ui.cli.main import app
from meshwise.workers.trainer.contract.settings import Layout, Settings
from support.traces import GPU, write_trace


def run_folder(tmp_path: Path) -> Path:
    """A folder as `meshwise run --out` leaves it: llama-debug in one process on an H100, half a second a step."""
    ready = launch.prepare(TrainRun("llama-debug", device="cpu", batch=8, seq=64))
    values = asdict(ready.settings) | {"facts": {"gpu": "h100-sxm", "params": 3410176.0}, "device": "cuda"}
    settings = Settings(**{**values, "layout": Layout(**values["layout"])})
    settings.write(tmp_path / "config.json")
    (tmp_path / "measurement.jsonl").write_text('{"sec_per_iter": 0.5, "mem_gb": 2.25}\n')
    return tmp_path


def test_every_part_of_the_planner_has_its_place_in_a_trace():
    from meshwise.cost.parts import TRAIN_PARTS

    assert sorted(part for some in parts.PLANNER_PARTS.values() for part in some) == sorted(TRAIN_PARTS)
    assert set(parts.TRACED_PARTS) < set(parts.PLANNER_PARTS)


def test_a_profiled_run_is_compared_part_by_part(tmp_path):
    folder = run_folder(tmp_path)
    write_trace(folder / "trace-rank0.json", GPU)
    found = parts.compare(folder)
    rows = {row.part: row for row in found.rows}
    assert rows["matmul"].measured == pytest.approx(100e-6)
    assert rows["matmul"].predicted is not None
    assert rows["step"].measured == 0.5
    assert rows["step"].predicted == pytest.approx(sum(row.predicted or 0.0 for row in found.rows[:-1]))
    assert any("2.25 GiB measured" in note for note in found.notes)


def test_unknown_settings_of_another_version_are_ignored(tmp_path):
    folder = run_folder(tmp_path)
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {"tensorboard": True, "profile_steps": 2}))
    write_trace(folder / "trace-rank0.json", GPU)
    assert next(row.measured for row in parts.compare(folder).rows) == pytest.approx(50e-6)  # two steps in the trace


def test_a_run_without_a_trace_gets_the_flag_that_records_one(tmp_path):
    result = CliRunner().invoke(app, ["audit", "--predicted", str(run_folder(tmp_path))])
    assert result.exit_code == 0
    assert "run with --profile" in result.output


def test_the_parts_are_there_as_json(tmp_path):
    folder = run_folder(tmp_path)
    write_trace(folder / "trace-rank0.json", GPU)
    result = CliRunner().invoke(app, ["audit", "--predicted", str(folder), "--json"])
    assert json.loads(result.output)["rows"][0]["part"] == "matmul"


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="is not a folder"):
        parts.compare(tmp_path / "none")
    for broken in ("config.json", "measurement.jsonl"):
        folder = run_folder(tmp_path)
        (folder / broken).write_text("[")
        with pytest.raises(UserError, match=broken):
            parts.compare(folder)
        (folder / broken).write_text('{"sec_per_iter": NaN, "mem_gb": 1}')
        with pytest.raises(UserError, match=broken):
            parts.compare(folder)
        (folder / broken).unlink()
        with pytest.raises(UserError, match="cannot read"):
            parts.compare(folder)


def test_the_balance_of_the_ranks_is_noted_if_the_run_kept_it(tmp_path):
    folder = run_folder(tmp_path)
    (folder / "ranks.json").write_text(json.dumps([{"seconds": 0.4, "memory": 2**30}, {"seconds": 0.6, "memory": 2**31}]))
    assert "2 ranks, the slowest 1.20 times the mean; memory 1.00 to 2.00 GiB" in parts.compare(folder).notes
    (folder / "ranks.json").write_text("[{}]")
    assert parts.compare(folder).rows
