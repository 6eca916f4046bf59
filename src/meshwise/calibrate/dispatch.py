"""validate and calibrate: decide whether tables hold training runs or served models, and call that package."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from meshwise.calibrate import probe_rows
from meshwise.calibrate.result import Result
from meshwise.calibrate.rl.table import is_rl_table
from meshwise.calibrate.score import LeaveOut
from meshwise.catalogue import chips as chip_catalogue
from meshwise.catalogue import engines, files, frameworks
from meshwise.errors import UserError
from meshwise.runs.table import find_table, is_serving_table

if TYPE_CHECKING:
    from meshwise.calibrate.rl.validate import RlValidation
    from meshwise.calibrate.serve.validate import ServeValidation
    from meshwise.calibrate.train.validate import TrainValidation


def is_served(table: str) -> bool:
    """Return whether a table is of served models; otherwise it is of training runs."""
    path = find_table(table)
    return is_serving_table(min(path.glob("*.csv")) if path.is_dir() else path)


def validate(
    table: str, calibration: str, fit: bool, leave_out: LeaveOut | None
) -> "TrainValidation | ServeValidation | RlValidation":
    """Predict and score a table of training runs or of served models."""
    left = leave_out or ("row" if fit else None)
    if left and calibration:
        raise UserError("--fit makes its own calibration; drop --calibration, or --fit and --leave-out")
    if is_rl_table(find_table(table)):
        if left:
            raise UserError(
                f"{table} holds steps on generated answers, which leave out whole programs: drop --fit and --leave-out"
            )
        from meshwise.calibrate.rl.validate import validate as validate_rl

        return validate_rl(table, calibration)
    if is_served(table):
        from meshwise.calibrate.serve.validate import validate as validate_serve

        return validate_serve(table, calibration, left)
    from meshwise.calibrate.train.validate import validate

    return validate(table, calibration, left)


def calibrate(
    tables: Sequence[str], chips: Sequence[str], programs: Sequence[str], architectures: Sequence[str], leave_out: LeaveOut | None
) -> Result:
    """Fit to tables of training runs (and a probe), or of served models."""
    probes = files.files("probes", ".jsonl")
    for name in tables:
        if name not in probes and is_rl_table(find_table(name)):
            raise UserError(
                f"{name} holds steps on generated answers: validate scores it, and benchmarks/accuracy/rl_steps.py fits to it"
            )
    keys = [chip_catalogue.find_chip(name).key for name in chips]
    kinds = {is_served(name) for name in tables if name not in probes}
    if len(kinds) > 1:
        raise UserError("some tables are of training runs and some of served models; calibrate them separately")
    date = datetime.now(UTC).date().isoformat()
    if True in kinds:
        from meshwise.calibrate.serve.make import make as make_serve

        builds = [engines.find_runtime(name).key for name in programs]
        return make_serve(tables, chips=keys, engines=builds, architectures=architectures, date=date)
    from meshwise.calibrate.train import probe
    from meshwise.calibrate.train.make import make

    for path in (probes.get(name) or find_table(name) for name in tables):
        if probe.is_probe(path):
            probe_rows.check(probe.read(path), path.name)

    known = [frameworks.find_framework(name).key for name in programs]
    return make(tables, chips=keys, frameworks=known, architectures=architectures, date=date, leave_out=leave_out)
