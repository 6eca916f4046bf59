"""The audit as a whole: its verdict, impossible figures, scaling, JSON; and that it loads no planner unless asked."""

import json
import math
import subprocess
import sys

from meshwise.audit import report
from meshwise.runs.reading import Reading, Skips
from meshwise.runs.run import Run
from support.audits import FIXTURES, LLAMA, audit_of, figures, table

PLANNER = (
    "plan.train.search",
    "plan.train.choice",
    "plan.train.explain",
    "cost.train.step",
    "runs.train.predict",
    "runs.compare",
    "audit.train",
    "audit.serve",
)
HEAVY = ("numpy", "scipy", *(f"meshwise.{name}" for name in PLANNER))
"""Modules that only predictions need."""
PROGRAM = """
import sys
from pathlib import Path
from meshwise.audit import report
from meshwise.runs.run import Run
from meshwise.ui.views.audit import audit_view
audit_view(report.audit(report.read_files([Path(sys.argv[1])], "", Run({})), planned=False), 100)
print("\\n".join(sys.modules))
"""
COMMAND = """
import sys
from meshwise.ui.cli.main import main
try:
    main()
except SystemExit:
    print("\\n".join(sys.modules))
"""


def modules_after(*arguments: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", *arguments], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def loaded(modules: list[str], heavy: tuple[str, ...]) -> list[str]:
    return [name for name in modules if any(name == one or name.startswith(f"{one}.") for one in heavy)]


def test_an_audit_without_the_planner_loads_neither_it_nor_numpy():
    for name in ("torchtitan-8b.log", "eight-gpus.md", "llama-bench.csv"):
        assert loaded(modules_after(PROGRAM, str(FIXTURES / name)), HEAVY) == [], name


def test_the_command_line_without_the_planner_does_not_load_its_search():
    modules = modules_after(COMMAND, "audit", str(FIXTURES / "torchtitan-8b.log"), "--no-plan")
    assert loaded(modules, HEAVY[2:]) == []
    assert "meshwise.audit.report" in modules


def reading_of(**numbers: float) -> tuple[str, Reading]:
    return "flags", Reading("flags", [Run.told("the run", {"chip": "h100-sxm", **numbers})])


def test_the_verdict_follows_the_most_certain_finding():
    shared = {"devices": 8.0, "seq": 4096.0, "batch": 64.0}
    verdicts = {
        "It does not add up: 1 finding is certain": {**shared, "seconds": 1.0, "tokens_per_second": 1000.0},
        "It probably does not add up: 1 finding is likely (batch).": {**shared, "dp": 8.0, "mbs": 3.0},
        "It adds up, but 1 finding is unusual.": {"forward_seconds": 0.045, "seconds": 7.5},
        "No contradiction was found.": {**shared, "seconds": 1.0},
        "A single figure cannot be checked": {"seconds": 1.0},
    }
    found = {text: report.audit([reading_of(**numbers)], planned=False).verdict for text, numbers in verdicts.items()}
    assert {text: verdict for text, verdict in found.items() if not verdict.startswith(text)} == {}


def test_runs_with_a_certain_or_likely_finding_should_not_be_used():
    shared = {"devices": 8.0, "seq": 4096.0, "batch": 64.0, "seconds": 1.0}
    bad = Run.told("line 1", {**shared, "tokens_per_second": 1000.0})
    good = Run.told("line 2", shared)
    for runs, sentence in (([bad], "The run should"), ([bad, good], "1 of 2 runs should")):
        verdict = report.audit([("x", Reading("csv", runs))], planned=False).verdict
        assert f"{sentence} not be used as reported." in verdict


def test_impossible_figures_are_left_out_and_named():
    skips = Skips()
    numbers = {"devices": 1e30, "seconds": 0.0, "memory": 60e9, "zero": 0.0, "tflops": 1e40, "first_loss": 0.0}
    kept = report.drop_impossible(Run.told("line 1", numbers), skips)
    assert {one.fact: one.value for one in kept if one.value is not None} == {"memory": 60e9, "zero": 0.0, "first_loss": 0.0}
    assert "1 x n_gpus of 1e+30, which is impossible (line 1)" in skips.lines()


def test_scaling_is_relative_to_the_fewest_devices_of_the_same_model():
    runs = table([{"devices": 8.0, "tokens_per_second": 8e3}, {"devices": 16.0, "tokens_per_second": 12e3}])
    assert report.scaling(runs) == {id(runs[1]): 0.75}


def test_reasons_against_a_prediction_are_counted_over_training_and_serving():
    runs = [Run.told("line 1", {"seconds": 1.0}), Run.told("line 2", {"decode": 5.0})]
    audit = report.audit([("x", Reading("csv", runs))])
    assert audit.notes == ("not compared with the planner: the chip is not stated (2 runs)",)


def test_json_is_finite_and_holds_findings_suggestions_and_runs():
    def refuse(text: str) -> float:
        raise AssertionError(f"{text} is not JSON")

    audit = audit_of("eight-gpus.md")
    made = json.loads(json.dumps(audit.to_json()), parse_constant=refuse)
    assert made["format"] == report.FORMAT_VERSION
    assert set(made["findings"][0]) == {"rule", "certainty", "where", "message", "arithmetic", "compared_with", "severity"}
    assert made["next"][0]["message"] == audit.predictions.suggestions[0].message
    assert len(made["runs"]) == len(audit.runs)


def test_a_row_leaves_out_unknown_values():
    row = report.row_of(figures(devices=8.0, seconds=2.0, **LLAMA), None, None, math.nan)
    assert "batch" not in row
    assert (row["devices"], row["seconds"], row["chip"]) == (8, 2, "h100-sxm")
