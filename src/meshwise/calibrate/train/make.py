"""Make a calibration from any mix of probes, runs and published tables: fit it, and score it on rows left out."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from meshwise.calibrate.result import Result
from meshwise.calibrate.score import LeaveOut, Score
from meshwise.calibrate.train import intervals, modes, probe
from meshwise.calibrate.train.fit import Fitted, fit_leaving_out, groups_to_leave_out, prior_for
from meshwise.calibrate.train.modes import Found
from meshwise.calibrate.train.probe import Machine
from meshwise.calibrate.train.score import near_best, score
from meshwise.catalogue import files, levels
from meshwise.catalogue.calibrations import Calibration
from meshwise.catalogue.chips import PROBED_CHIP, catalogued, fabric_of
from meshwise.errors import UserError
from meshwise.runs.table import find_table
from meshwise.runs.train.case import Case
from meshwise.runs.train.predict import Batch, predict
from meshwise.runs.train.settle import read_cases

UNDETERMINED_SHARE = 0.9  # a coefficient whose uncertainty stays at this share of its prior's, or more, keeps its prior
TOLERATED_ERROR = 0.002  # mean error by which keeping priors may be worse than the fit


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainCalibrationResult(Result):
    """A calibration of training."""

    folder: ClassVar[str] = "calibration"
    errors: ClassVar[tuple[tuple[str, str], ...]] = (("time", "mape_near"), ("memory", "mape"))
    calibration: Calibration
    widths: dict[str, float]  # remaining uncertainty of each coefficient, over that of its prior
    modes: tuple[Found, ...] = ()
    """States in which rows were slower; these rows do not count in the intervals, nor in the fit where they are the fewer."""

    @property
    def record(self) -> Calibration:
        return self.calibration

    @property
    def programs(self) -> tuple[str, ...]:
        return self.calibration.frameworks

    @property
    def kept(self) -> tuple[str, ...]:
        """Coefficients that the rows do not determine."""
        return tuple(name for name, share in self.widths.items() if share >= UNDETERMINED_SHARE)

    @property
    def note(self) -> str:
        return f"\n# Kept at their prior, since the rows do not determine them: {', '.join(self.kept)}." if self.kept else ""

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {"widths": self.widths, "kept": self.kept, "modes": [found.sentence for found in self.modes]}


@dataclass(frozen=True)
class Data:
    """The input of a fit."""

    cases: list[Case]
    machine: Machine | None  # the probed machine, where a probe is among the files


def data_of(names: Sequence[str], chips: Sequence[str] = ()) -> Data:
    """Read tables by name or file, files of probes, and the probe that is stored as 'here'."""
    cases: list[Case] = []
    machines: list[Machine] = []
    stored = files.files("probes", ".jsonl")
    for name in names:
        path = stored.get(name) or find_table(name)
        if probe.is_probe(path):
            machines.append(probe.machine(probe.read(path), name if name in stored else PROBED_CHIP))
        else:
            cases += read_cases(path)[0]
    if len(machines) > 1:
        raise UserError("two of the files are probes; a calibration starts from one machine")
    if not cases:
        raise UserError("a probe alone is already a calibration ('meshwise probe' stores it); add runs or tables to fit to")
    cases = [case for case in cases if not chips or case.chip.key in chips] if not machines else cases
    return Data([_on_machine(case, machines[0]) for case in cases], machines[0]) if machines else Data(cases, None)


def _on_machine(case: Case, machine: Machine) -> Case:
    """Return a run with the probed chip in place of its own; refuse a run on another kind of chip."""
    known = catalogued(machine.chip)
    if case.chip.key not in (machine.chip.key, known.key if known else ""):
        raise UserError(
            f"{case.row_id} ran on {case.chip.name}, but the probe is of {machine.chip.name}: calibrate them separately"
        )
    node = case.cluster.node
    probed = replace(node, chips=((node.devices, machine.chip),), link=machine.chip.link or node.link)
    return replace(case, cluster=replace(case.cluster, nodes=((case.cluster.node_count, probed),)))


def make(
    tables: Sequence[str],
    *,
    chips: Sequence[str] = (),
    frameworks: Sequence[str] = (),
    architectures: Sequence[str] = (),
    date: str,
    leave_out: LeaveOut | None = None,
) -> TrainCalibrationResult:
    """Fit a calibration to all rows, for their chip and frameworks unless others are named."""
    data = data_of(tables)
    cases, machine = data.cases, data.machine
    keys = list(dict.fromkeys(case.chip.key for case in cases))
    if len(keys) > 1:
        raise UserError(
            f"the rows are of several chips ({', '.join(keys)}); a calibration is fitted to one: give one table per chip"
        )
    prior = machine.calibration if machine else prior_for(cases[0])
    fitted, made, found = fitted_to(cases, prior, leave_out or ("row" if machine else "group"))
    known = catalogued(machine.chip) if machine else None
    covered = [machine.chip.key, *([known.key] if known and known.kind != "cpu" else [])] if machine else keys
    made = replace(
        made,
        chips=tuple(chips or covered),
        frameworks=tuple(frameworks or dict.fromkeys(case.work.framework.key for case in cases)),
        architectures=tuple(architectures),
        fitted_on=", ".join(dict.fromkeys([*([prior.fitted_on] if machine else []), *(case.table for case in cases)])),
        date=date,
    )
    name, before = _before(cases, machine, tables)
    return TrainCalibrationResult(
        calibration=made,
        in_sample=score(cases, [], predict(cases, made)),
        left_out=score(cases, [], fitted.left_out),
        before=before,
        before_name=name,
        widths=fitted.widths,
        modes=tuple(found),
    )


def fitted_to(cases: Sequence[Case], prior: Calibration, leave_out: LeaveOut) -> tuple[Fitted, Calibration, list[Found]]:
    """Fit a calibration to rows, with intervals from rows left out; return the slow modes too. It does not name what it applies to."""
    fitted = fit_leaving_out(cases, prior, _groups(cases, leave_out))
    made = _with_priors(cases, fitted, prior)
    found = modes.find(cases, fitted.left_out.seconds)
    spread = intervals.fitted(cases, fitted.left_out, Batch.of(cases).shares(made), modes.rows_in(found))
    made = replace(made, key="", fabric=_fabric(cases), rows=float(len(cases)), sources=(), modes=modes.merged(found), **spread)
    return fitted, made, found


def _fabric(cases: Sequence[Case]) -> str:
    """Return the network that most rows on several nodes ran on; '' where all ran on one node, or nothing is known of it."""
    kinds = Counter(fabric_of(case.cluster.network) for case in cases if case.cluster.node_count > 1)
    return kinds.most_common(1)[0][0] if kinds else ""


def _groups(cases: Sequence[Case], leave_out: LeaveOut) -> list[object]:
    """Return the group of each row; single rows where all would be in one group."""
    groups = groups_to_leave_out(cases, leave_out)
    return groups if len(set(groups)) > 1 else groups_to_leave_out(cases, "row")


def _with_priors(cases: Sequence[Case], fitted: Fitted, prior: Calibration) -> Calibration:
    """Return the fit with the prior for coefficients that the rows do not determine, unless that raises the error."""
    undetermined = {name: getattr(prior, name) for name, share in fitted.widths.items() if share >= UNDETERMINED_SHARE}
    made = replace(fitted.calibration, **undetermined)
    rows = near_best(cases)
    measured = np.array([cases[i].seconds for i in rows])
    errors = [
        float(np.mean(np.abs(predict(cases, c).seconds[rows] / measured - 1))) if rows else 0.0
        for c in (made, fitted.calibration)
    ]
    return made if errors[0] <= errors[1] + TOLERATED_ERROR else fitted.calibration


def _before(cases: Sequence[Case], machine: Machine | None, tables: Sequence[str]) -> tuple[str, Score]:
    """Name and score the calibration that plans would use without this fit: the probe, or the chip's; never a fit of the same rows."""
    if machine:
        return "the probe alone", score(cases, [], predict(cases, machine.calibration))
    chosen = levels.choose_for(cases[0].cluster, cases[0].work.framework)
    if any(Path(name).stem in chosen.fitted_on for name in tables):
        chosen = prior_for(cases[0])
    return chosen.key or "the default prior", score(cases, [], predict(cases, chosen))
