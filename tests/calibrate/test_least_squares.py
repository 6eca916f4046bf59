"""Least squares between bounds, beside scipy's: the core does without it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import least_squares, lsq_linear  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]
from scipy.stats import t  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]

from meshwise.calibrate.least_squares import bounded_step, minimize
from meshwise.cost.layout import Floats
from meshwise.run.bench.speeds import student


@given(st.integers(0, 10_000), st.integers(1, 15))
def test_a_step_between_bounds_is_as_good_as_scipys(seed: int, size: int) -> None:
    """Bounds are open, zero or close on either side; columns differ in scale."""
    rng = np.random.default_rng(seed)
    matrix = np.vstack([rng.normal(size=(rng.integers(0, 60), size)) * np.exp(2 * rng.normal(size=size)), np.eye(size)])
    aim = 3 * rng.normal(size=len(matrix))
    least, most = (
        np.where(rng.random(size) < 0.3, np.inf, rng.exponential(0.1, size) * (rng.random(size) < 0.8)) for _ in range(2)
    )
    found = bounded_step(matrix.T @ matrix, matrix.T @ aim, -least, most)
    assert (-least <= found).all()
    assert (found <= most).all()
    known = lsq_linear(matrix, aim, (-least - 1e-13, most + 1e-13), "bvls").x
    assert np.linalg.norm(matrix @ found - aim) <= np.linalg.norm(matrix @ known - aim) * (1 + 1e-8)


def test_a_curve_is_fitted_as_well_as_by_scipy() -> None:
    """A decay whose rate has a bound, with a prior that is far off."""
    x = np.linspace(0, 5, 40)
    seen = 3 * np.exp(-1.3 * x) + 0.2

    def residuals(at: Floats) -> Floats:
        return np.append(at[0] * np.exp(-at[1] * x) + at[2] - seen, 1e-6 * at)

    least, most = np.array([0.0, 0.0, -1.0]), np.array([10.0, 1.2, 1.0])
    first = np.array([1.0, 0.1, 0.0])
    found, cost = minimize(residuals, first, least, most, np.ones(3))
    known = least_squares(residuals, first, bounds=(least, most))
    assert cost == pytest.approx(known.cost, rel=1e-4)
    assert found[1] == most[1]


@pytest.mark.parametrize("freedom", [1.0, 1.5, 2.0, 3.7, 10.0, 100.0, 1e4])
@pytest.mark.parametrize("level", [0.9, 0.975, 0.995])
def test_students_t_is_scipys(level: float, freedom: float) -> None:
    assert student(level, freedom) == pytest.approx(t.ppf(level, freedom), rel=1e-4)
