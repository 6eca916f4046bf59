"""Predicted against measured by part: a profiler's trace is taken apart by what its kernels are, and gaps are idle."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from typer.testing import CliRunner

from meshwise.audit.profile import parts, trace
from meshwise.errors import UserError
from meshwise.run.train import launch
from meshwise.run.train.ask import TrainRun
from meshwise.ui.cli.main import app
from meshwise.workers.trainer.settings import Layout, Settings


def kernel(name: str, start: float, length: float, stream: int = 7) -> dict[str, object]:
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": 0,
        "tid": stream,
        "ts": start,
        "dur": length,
        "args": {"stream": stream},
    }


GPU = [
    kernel("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", 0, 100),
    kernel("void flash::flash_fwd_kernel<...>", 100, 50),
    kernel("void at::native::vectorized_elementwise_kernel<4, ...>", 150, 30),
    kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 170, 50, stream=20),
    kernel("void at::native::multi_tensor_apply_kernel<..., FusedAdamMathFunctor>", 240, 20),
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0, "dur": 900},
    {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}},
]


def written(path: Path, events: list[dict[str, object]]) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events, "traceName": path.name}, indent=1))
    return path


def test_kernels_are_told_apart_and_gaps_are_idle(tmp_path):
    found = trace.parts(trace.spans(written(tmp_path / "t.json", GPU)))
    assert {part: round(1e6 * seconds) for part, seconds in found.items()} == {
        "matmul": 100,
        "attention": 50,
        "communication": 40,  # 50 of it, 10 behind the elementwise kernel
        "optimizer": 20,
        "elementwise": 30,
        "idle": 20,  # 220 to 240
    }


def test_the_parts_sum_to_the_length_of_the_trace(tmp_path):
    found = trace.parts(trace.spans(written(tmp_path / "t.json", GPU)))
    assert sum(found.values()) == pytest.approx(260e-6)


def test_on_a_cpu_an_operator_counts_without_those_it_calls(tmp_path):
    ops = [("aten::linear", 0, 100), ("aten::addmm", 10, 80), ("aten::gelu", 110, 30), ("Optimizer.step", 150, 50)]
    events = [{"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur} for name, ts, dur in ops]
    found = trace.parts(trace.spans(written(tmp_path / "t.json", events)))
    assert {part: round(1e6 * seconds) for part, seconds in found.items()} == {
        "matmul": 100,
        "attention": 0,
        "communication": 0,
        "optimizer": 50,
        "elementwise": 30,
        "idle": 20,
    }


def test_what_runs_inside_the_optimizers_step_is_the_optimizer(tmp_path):
    note = {
        "ph": "X",
        "cat": "gpu_user_annotation",
        "name": "Optimizer.step#AdamW.step",
        "pid": 0,
        "tid": 7,
        "ts": 140,
        "dur": 60,
    }
    found = trace.parts(trace.spans(written(tmp_path / "t.json", [*GPU, note])))
    assert round(1e6 * found["optimizer"]) == 50  # its own 20, and the 30 of the elementwise kernel inside
    assert found["elementwise"] == 0


def test_a_trace_that_torch_writes_is_read(tmp_path):
    torch = pytest.importorskip("torch")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        _ = torch.randn(64, 64) @ torch.randn(64, 64)
    profile.export_chrome_trace(str(tmp_path / "t.json"))
    spans = trace.spans(tmp_path / "t.json")
    assert "aten::mm" in {span.name for span in spans}
    assert trace.parts(spans)["matmul"] > 0


def test_a_trace_cut_off_is_read_as_far_as_it_goes(tmp_path):
    path = written(tmp_path / "t.json", GPU)
    path.write_text(path.read_text()[:-400])
    assert 0 < len(trace.spans(path)) < len(GPU)


def test_what_is_no_trace_is_refused(tmp_path):
    (tmp_path / "t.json").write_text("[1, 2, 3]")
    with pytest.raises(UserError, match="not a trace"):
        trace.spans(tmp_path / "t.json")


def run_folder(tmp_path: Path) -> Path:
    """As `meshwise run --out` leaves it: llama-debug in one process on an H100, half a second a step."""
    ready = launch.prepare(TrainRun("llama-debug", device="cpu", batch=8, seq=64))
    values = asdict(ready.settings) | {"facts": {"gpu": "h100-sxm", "params": 3410176.0}, "device": "cuda"}
    settings = Settings(**{**values, "layout": Layout(**values["layout"])})
    settings.write(tmp_path / "config.json")
    (tmp_path / "measurement.jsonl").write_text('{"sec_per_iter": 0.5, "mem_gb": 2.25}\n')
    return tmp_path


def test_every_part_of_the_planner_has_its_place_in_a_trace():
    from meshwise.cost.parts import TRAIN_PARTS

    assert sorted(part for some in parts.OF_THE_PLANNER.values() for part in some) == sorted(TRAIN_PARTS)
    assert set(parts.OF_THE_PLANNER) == set(trace.PARTS)


def test_a_profiled_run_is_compared_part_by_part(tmp_path):
    folder = run_folder(tmp_path)
    written(folder / "trace-rank0.json", GPU)
    found = parts.compare(folder)
    rows = {row.part: row for row in found.rows}
    assert rows["matmul"].measured == pytest.approx(100e-6)
    assert rows["matmul"].predicted is not None
    assert rows["step"].measured == 0.5
    assert rows["step"].predicted == pytest.approx(sum(row.predicted or 0.0 for row in found.rows[:-1]))
    assert any("2.25 GiB measured" in note for note in found.notes)


def test_settings_of_another_version_are_no_hindrance(tmp_path):
    folder = run_folder(tmp_path)
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {"tensorboard": True, "profile_steps": 2}))
    written(folder / "trace-rank0.json", GPU)
    assert next(row.measured for row in parts.compare(folder).rows) == pytest.approx(50e-6)  # two steps in the trace


def test_a_run_without_a_trace_says_how_to_get_one(tmp_path):
    result = CliRunner().invoke(app, ["audit", "--predicted", str(run_folder(tmp_path))])
    assert result.exit_code == 0
    assert "run with --profile" in result.output


def test_the_parts_are_there_as_json(tmp_path):
    folder = run_folder(tmp_path)
    written(folder / "trace-rank0.json", GPU)
    result = CliRunner().invoke(app, ["audit", "--predicted", str(folder), "--json"])
    assert json.loads(result.output)["rows"][0]["part"] == "matmul"


@pytest.mark.parametrize("broken", ["config.json", "measurement.jsonl"])
def test_a_folder_that_is_no_run_is_refused(tmp_path, broken: str):
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


def test_the_balance_of_the_ranks_is_told_where_they_kept_it(tmp_path):
    folder = run_folder(tmp_path)
    (folder / "ranks.json").write_text(json.dumps([{"seconds": 0.4, "memory": 2**30}, {"seconds": 0.6, "memory": 2**31}]))
    assert "2 ranks, the slowest 1.20 times the mean; memory 1.00 to 2.00 GiB" in parts.compare(folder).notes
    (folder / "ranks.json").write_text("[{}]")
    assert parts.compare(folder).rows
