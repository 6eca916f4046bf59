"""Whatever judges a run gives the same answer: validate, audit and the API for every row of every built-in table."""

import math
from functools import cache

import pytest

import meshwise
from meshwise.audit.report import Audit
from meshwise.calibrate.dispatch import is_served
from meshwise.catalogue import files

TABLES = sorted(set(files.files("measurements", ".csv")) - {"local_rig_notes"})
"""Every built-in table but one whose rows name no model that could be evaluated."""
TRAINED = [name for name in TABLES if not is_served(name)]
SERVED = [name for name in TABLES if is_served(name)]


def same(a: float, b: float) -> bool:
    return abs(a / b - 1) < 1e-9


@cache
def audited(table: str) -> Audit:
    return meshwise.audit(table)


@pytest.mark.parametrize("table", TRAINED)
def test_audit_predicts_every_row_of_a_training_table_as_validate_does(table: str) -> None:
    validated = meshwise.validate(table)
    pairs = zip(validated.cases, validated.predicted.seconds, validated.predicted.memory, strict=True)
    expected = [(case.layout, case.seconds, seconds, memory) for case, seconds, memory in pairs]
    found = [(p.case.layout, p.case.seconds, p.seconds, p.memory) for p in audited(table).predictions.train]
    assert len(found) == len(expected)
    for mine, other in zip(found, expected, strict=True):
        assert mine[0] == other[0]
        assert same(mine[1], other[1]) or (math.isnan(mine[1]) and math.isnan(other[1]))
        assert same(mine[2], other[2])
        assert same(mine[3], other[3])


@pytest.mark.parametrize("table", SERVED)
def test_audit_predicts_every_row_of_a_serving_table_as_validate_does(table: str) -> None:
    validated = meshwise.validate(table)
    pairs = zip(validated.cases, validated.predicted, strict=True)
    expected = [(speed.decode, speed.prefill if case.work.prompt else math.nan) for case, speed in pairs]
    found = [(p.decode, p.prefill) for p in audited(table).predictions.serve]
    assert len(found) == len(expected)
    for mine, other in zip(found, expected, strict=True):
        assert all(same(a, b) or (math.isnan(a) and math.isnan(b)) for a, b in zip(mine, other, strict=True))
