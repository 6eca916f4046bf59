"""A profiler's trace is split by the names of its kernels; gaps are idle."""

import pytest

from meshwise.audit.doctor import timeline
from meshwise.audit.doctor.parts import traced_parts
from meshwise.audit.doctor.split import split
from meshwise.errors import UserError
from support.traces import GPU, write_trace


def test_kernels_are_split_by_part_and_gaps_are_idle(tmp_path):
    found = traced_parts(split(timeline.read(write_trace(tmp_path / "t.json", GPU))))
    assert {part: round(1e6 * seconds) for part, seconds in found.items()} == {
        "matmul": 100,
        "attention": 50,
        "communication": 40,  # 50 of it, 10 behind the elementwise kernel
        "optimizer": 20,
        "elementwise": 30,
        "idle": 20,  # 220 to 240
    }


def test_the_parts_sum_to_the_length_of_the_trace(tmp_path):
    found = traced_parts(split(timeline.read(write_trace(tmp_path / "t.json", GPU))))
    assert sum(found.values()) == pytest.approx(260e-6)


def test_on_a_cpu_an_operator_counts_without_those_it_calls(tmp_path):
    ops = [("aten::linear", 0, 100), ("aten::addmm", 10, 80), ("aten::gelu", 110, 30), ("Optimizer.step", 150, 50)]
    events = [{"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur} for name, ts, dur in ops]
    found = traced_parts(split(timeline.read(write_trace(tmp_path / "t.json", events))))
    assert {part: round(1e6 * seconds) for part, seconds in found.items()} == {
        "matmul": 100,
        "attention": 0,
        "communication": 0,
        "optimizer": 50,
        "elementwise": 30,
        "idle": 20,
    }


def test_kernels_inside_the_optimizers_step_count_as_optimizer(tmp_path):
    note = {
        "ph": "X",
        "cat": "user_annotation",
        "name": "Optimizer.step#AdamW.step",
        "pid": 0,
        "tid": 7,
        "ts": 140,
        "dur": 120,
    }
    found = traced_parts(split(timeline.read(write_trace(tmp_path / "t.json", [*GPU, note]))))
    assert round(1e6 * found["optimizer"]) == 50  # its own 20, and the 30 of the elementwise kernel inside
    assert found["elementwise"] == 0


def test_a_trace_that_torch_writes_is_read(tmp_path):
    torch = pytest.importorskip("torch")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        _ = torch.randn(64, 64) @ torch.randn(64, 64)
    profile.export_chrome_trace(str(tmp_path / "t.json"))
    found = timeline.read(tmp_path / "t.json")
    assert "aten::mm" in found.names
    assert traced_parts(split(found))["matmul"] > 0


def test_a_trace_cut_off_is_read_as_far_as_it_goes(tmp_path):
    path = write_trace(tmp_path / "t.json", GPU)
    path.write_text(path.read_text()[:-400])
    assert 0 < len(timeline.read(path).gpu) < len(GPU) - 2


def test_a_file_that_is_not_a_trace_is_refused(tmp_path):
    (tmp_path / "t.json").write_text("[1, 2, 3]")
    with pytest.raises(UserError, match="not a trace"):
        timeline.read(tmp_path / "t.json")
