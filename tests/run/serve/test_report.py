"""A bench as data: causes of a gap, and rows that the other verbs read."""

from pathlib import Path

import pytest

from meshwise.errors import UserError
from meshwise.plan.ask import ServeAsk
from meshwise.run.bench.speeds import Measured, Setting, run_of
from meshwise.run.bench.stream import Reply
from meshwise.run.serve import report
from meshwise.run.serve.deployment import deployment
from meshwise.runs.serve.case import read_cases
from meshwise.ui.views.tables import as_csv

SETTING = Setting(prompt=100, output=5, users=1)
SEEN = Reply(begun=0.0, ended=1.0, arrivals=(0.5, 0.52, 0.54, 0.56, 0.58), text_bytes=20, claimed=5, prompt=100)


def measured(faults: dict[str, int] | None = None) -> Measured:
    runs = () if faults else (run_of([SEEN], SETTING), run_of([SEEN], SETTING))
    return Measured(setting=SETTING, runs=runs, faults=faults or {})


def test_a_point_has_the_plans_prediction_for_its_setting() -> None:
    """Predicted by the same function as a plan, at the setting that was measured."""
    planned = deployment(ServeAsk(model="llama-3-8b:q4_k_m", on="1xrtx3090", prompt=100, output=5))
    told = report.point(measured(), planned)
    option = planned.predict(SETTING)
    assert option
    assert option.speed
    assert told["predicted"]["decode"] == pytest.approx(option.speed.decode_tokens_per_second)
    assert told["predicted"]["with_prompts"] == pytest.approx(option.throughput)
    assert told["predicted"]["low"] < told["predicted"]["per_user"] < told["predicted"]["high"]
    assert sum(told["predicted"]["parts"].values()) == pytest.approx(option.speed.step)
    assert told["decode"] == pytest.approx(50.0)


def test_rows_are_read_back_by_validate_and_calibrate(tmp_path: Path) -> None:
    planned = deployment(ServeAsk(model="llama-3-8b:q4_k_m", on="2xrtx3090", fix=("cards=2", "split=layer")))
    points = [report.point(measured(), planned), report.point(measured({"x": 1}), planned)]
    told = report.report(points, {"model": "m", "engine": "llama-server", "repeats": 2})
    (tmp_path / "rows.csv").write_text(as_csv(report.rows(told, planned)))
    cases, skipped = read_cases(tmp_path / "rows.csv")
    assert [(case.decode, case.prefill, case.work.prompt, len(case.rig.chips)) for case in cases] == [(50.0, 200.0, 100, 2)]
    assert cases[0].runtime.engine == "llama.cpp"
    assert len(skipped) == 1


def test_a_log_shows_layers_on_the_cpu_and_an_old_build() -> None:
    log = ["build: 2824 (4426e298)", "load_tensors: offloaded 20/33 layers to GPU"]
    assert report.from_log(log) == [
        "layers on the CPU: the engine put 20 of 33 on GPUs",
        "an old build: b2824, from 2024 or before",
    ]
    assert report.from_log(["build: 7100 (abc)", "offloaded 33/33 layers to GPU"]) == []


def test_nvidia_smi_shows_power_caps_and_narrow_links() -> None:
    text = "220.00, 350.00, 16, 16\n350.00, 350.00, 1, 16\n[N/A], [N/A], 16, 16\n"
    assert report.from_nvidia(text) == ["power cap: GPU 0 is limited to 220 of 350 W", "PCIe x1: GPU 1 has 1 of 16 lanes"]


def test_a_report_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[1]")
    with pytest.raises(UserError, match="not a report of"):
        report.read(tmp_path / "x.json")
