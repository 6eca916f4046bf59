"""A calibration made from any mix of probes, runs and published tables: fitted, scored on rows left out beside what was there before."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from meshwise.calibrate import tables as table
from meshwise.calibrate.result import Result
from meshwise.calibrate.train import cases as measure
from meshwise.calibrate.train import intervals, probe
from meshwise.calibrate.train.cases import Case
from meshwise.calibrate.train.fit import Fitted, fit_leaving_out, prior_for
from meshwise.calibrate.train.predict import Batch, predict
from meshwise.calibrate.train.probe import Machine
from meshwise.calibrate.train.score import Score, near, score
from meshwise.catalogue import calibrations, files, records
from meshwise.catalogue.calibrations import COEFFICIENTS, Calibration
from meshwise.catalogue.chips import HERE, catalogued
from meshwise.errors import UserError

OPEN = 0.9
"""A coefficient whose uncertainty the rows leave at this share of the prior's, or more, keeps its prior."""


@dataclass(frozen=True, repr=False)
class Calibrated(Result):
    """A calibration of training, its scores on the rows it was fitted to and on rows left out, and the scores before."""

    folder: ClassVar[str] = "calibration"
    calibration: Calibration
    in_sample: Score
    left_out: Score
    before: Score
    """Of the same rows by what would have been used without this fit."""
    before_name: str
    widths: dict[str, float]
    """Uncertainty that is left of each coefficient, over that of its prior."""

    @property
    def name(self) -> str:
        return "-".join((*self.calibration.chips[:1], *self.calibration.frameworks[:1]))

    @property
    def text(self) -> str:
        return toml(self)

    def to_json(self) -> dict[str, Any]:
        return {
            "before": self.before,
            "left_out": self.left_out,
            "in_sample": self.in_sample,
            "widths": self.widths,
            "kept": self.kept,
        }

    @property
    def kept(self) -> tuple[str, ...]:
        """Coefficients that the rows cannot pin down."""
        return tuple(name for name, share in self.widths.items() if share >= OPEN)

    @property
    def worse(self) -> str:
        """By how much rows left out are predicted worse than before; nothing where they are not."""
        for part, key in (("time", "mape_near"), ("memory", "mape")):
            now, then = self.left_out[part][key], self.before[part][key]
            if now is not None and then is not None and now > then * 1.005:
                return f"{part} errs {100 * now:.1f}% on rows left out of the fit, and {100 * then:.1f}% with {self.before_name}"
        return ""


@dataclass(frozen=True)
class Data:
    """What a fit is made from."""

    cases: list[Case]
    machine: Machine | None
    """Of a probe, where there is one among the files."""


def data_of(names: Sequence[str], chips: Sequence[str] = ()) -> Data:
    """Tables by their name or file, files of probes, and the probe that was filed as 'here'."""
    cases: list[Case] = []
    machines: list[Machine] = []
    kept = files.files("probes", ".jsonl")
    for name in names:
        path = kept.get(name) or table.find_table(name)
        if probe.is_probe(path):
            machines.append(probe.machine(probe.read(path), name if name in kept else HERE))
        else:
            cases += measure.cases(path)[0]
    if len(machines) > 1:
        raise UserError("two of the files are probes; a calibration starts from one machine")
    if not cases:
        raise UserError("a probe alone is a calibration already ('meshwise probe' files it); add runs or tables to fit to")
    cases = [case for case in cases if not chips or case.chip.key in chips] if not machines else cases
    return Data([_on(case, machines[0]) for case in cases], machines[0]) if machines else Data(cases, None)


def _on(case: Case, machine: Machine) -> Case:
    """The same run on the probed chip, where it is a run on such a chip."""
    known = catalogued(machine.chip)
    if case.chip.key not in (machine.chip.key, known.key if known else ""):
        raise UserError(f"{case.row_id} ran on {case.chip.name}, and the probe is of {machine.chip.name}: calibrate them apart")
    _, node = case.cluster.nodes[0]
    here = replace(node, chips=((node.devices, machine.chip),), link=machine.chip.link or node.link)
    return replace(case, cluster=replace(case.cluster, nodes=((case.cluster.node_count, here),)))


def calibrated(
    tables: Sequence[str],
    *,
    chips: Sequence[str] = (),
    frameworks: Sequence[str] = (),
    architectures: Sequence[str] = (),
    date: str,
    leave_out: Literal["row", "group"] | None = None,
) -> Calibrated:
    """Fit to all rows; it serves their chip and frameworks unless others are named."""
    data = data_of(tables)
    cases, machine = data.cases, data.machine
    found = list(dict.fromkeys(case.chip.key for case in cases))
    if len(found) > 1:
        raise UserError(
            f"the rows are of several chips ({', '.join(found)}); a calibration is fitted to one: give one table per chip"
        )
    groups = groups_of(cases, leave_out or ("row" if machine else "group"))
    prior = machine.calibration if machine else prior_for(cases[0].chip)
    fitted = fit_leaving_out(cases, prior, groups)
    made = _settled(cases, fitted, prior)
    spread = intervals.fitted(cases, fitted.left_out, Batch.of(cases).shares(made))
    known = catalogued(machine.chip) if machine else None
    serves = [machine.chip.key, *([known.key] if known and known.kind != "cpu" else [])] if machine else found
    made = replace(
        made,
        key="",
        chips=tuple(chips or serves),
        frameworks=tuple(frameworks or dict.fromkeys(case.work.framework.key for case in cases)),
        architectures=tuple(architectures),
        fitted_on=", ".join(dict.fromkeys([*([prior.fitted_on] if machine else []), *(case.table for case in cases)])),
        date=date,
        rows=float(len(cases)),
        sources=(),
        **spread,
    )
    name, before = _before(cases, machine, tables)
    left = score(cases, [], fitted.left_out)
    return Calibrated(made, score(cases, [], predict(cases, made)), left, before, name, fitted.widths)


def groups_of(cases: Sequence[Case], leave_out: Literal["row", "group"]) -> list[object]:
    """What is left out together; single rows where all are of one group."""
    groups: list[object] = [(case.table, *case.setting) for case in cases]
    if leave_out == "row" or len(set(groups)) == 1:
        groups = [(case.table, case.row_id) for case in cases]
    return groups


def _settled(cases: Sequence[Case], fitted: Fitted, prior: Calibration) -> Calibration:
    """The fit, with the prior for coefficients that the rows cannot pin down; those are where it is, but for noise."""
    back = {name: getattr(prior, name) for name, share in fitted.widths.items() if share >= OPEN}
    made = replace(fitted.calibration, **back)
    rows = near(cases)
    seen = np.array([cases[i].seconds for i in rows])
    errors = [
        float(np.mean(np.abs(predict(cases, c).seconds[rows] / seen - 1))) if rows else 0.0 for c in (made, fitted.calibration)
    ]
    return made if errors[0] <= errors[1] + 0.002 else fitted.calibration


def _before(cases: Sequence[Case], machine: Machine | None, tables: Sequence[str]) -> tuple[str, Score]:
    """What plans would rest on without this fit: the probe, or what is chosen for the chip; never a fit of the same rows."""
    if machine:
        return "the probe alone", score(cases, [], predict(cases, machine.calibration))
    chosen = calibrations.choose(cases[0].chip, cases[0].work.framework.key)
    if any(Path(name).stem in chosen.fitted_on for name in tables):
        chosen = prior_for(cases[0].chip)
    return chosen.key or "the default prior", score(cases, [], predict(cases, chosen))


def toml(made: Calibrated) -> str:
    """The file, its errors in front; `calibration.named` reads it back."""
    kept = f"\n# Kept at their prior, for the rows do not tell: {', '.join(made.kept)}." if made.kept else ""
    head = f"# Written by 'meshwise calibrate'. {_errors('Left out', made.left_out)} {_errors('In sample', made.in_sample)}{kept}"
    return records.toml(made.calibration, head, COEFFICIENTS[0])


def _errors(where: str, found: Score) -> str:
    time, memory = found["time"]["mape_near"], found["memory"]["mape"]
    words = [f"time {100 * time:.1f}%"] if time is not None else []
    words += [f"memory {100 * memory:.1f}%"] if memory is not None else []
    return f"{where}: {', '.join(words)} mean error."
