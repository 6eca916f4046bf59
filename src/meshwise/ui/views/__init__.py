"""ui/views: results as text, HTML and pictures. tables.py (the one kind of table), bars.py (stacked bars), chart.py (bars by point),
notebook.py (HTML) and svg/ (pictures) draw; every other file says what one view shows, run/ those of our trainer's runs. `of` finds the
view of a result. Imports the types of plan, replay, calibrate, audit, run, tune, models and catalogue."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from rich.console import RenderableType

VIEWS = {
    "Audit": "audit.audit_view", "Bench": "bench.bench_view", "Cheapest": "vary.cheapest_view", "Chip": "listing.entry_view",
    "Cluster": "listing.entry_view", "Compared": "replay.compared_view", "Count": "count.counts_view",
    "Diagnosis": "doctor.diagnosis_view", "DryRun": "run.dry_run.dry_run_view",
    "Explanation": "plan.explanation_view", "Framework": "listing.entry_view", "Front": "front.front_view", "Installed": "about.about_view",
    "Model": "listing.entry_view",
    "Machines": "pick.machines_view", "Pick": "pick.pick_view",
    "Origin": "listing.entry_view", "PlanDiff": "diff.diff_view",
    "PartComparison": "audit.parts_view", "Preflight": "preflight.preflight_view",
    "Probed": "probe.probed_view", "Replay": "tune.replay_view", "Replayed": "replay.replay_view",
    "RlValidation": "scores.rl_view", "RolloutPlan": "rollout.rollout_view", "RolloutVerdict": "rollout.verdict_view",
    "ServeCalibrationResult": "scores.calibration_view",
    "ServePlan": "serve.plan_view", "ServePoints": "serve_points.points_view", "ServeValidation": "scores.validation_view",
    "Shapes": "shapes.shapes_view", "Shared": "bench.shared_view", "SweepResult": "run.report.result_view",
    "TraceFacts": "replay.trace_view",
    "TrainCalibrationResult": "scores.calibration_view", "TrainPlan": "plan.plan_view", "TrainPoints": "vary.points_view",
    "TrainResult": "run.report.result_view", "TrainValidation": "scores.validation_view", "Tuned": "tune.tune_view",
    "Verdict": "launch_files.verdict_view", "str": "tables.sentences_view",
}  # fmt: skip
"""By type of a result: the module and function of its view, imported when it is drawn."""


def of(result: Any, width: int = 120, **options: Any) -> "RenderableType":
    """Return the view of a result, or of a list of results of one type, at a width. A view that is a str must not be wrapped."""
    kind = type(cast(Any, result[0]) if isinstance(result, list) else result).__name__
    module, _, function = VIEWS[kind].rpartition(".")
    return getattr(import_module(f"{__name__}.{module}"), function)(result, width, **options)
