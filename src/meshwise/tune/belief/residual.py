"""Residual: how ln(measured / predicted) varies between candidates beyond the coefficients of the cost model.

Effects that no formula knows are sums of normal variables: a factor common to all runs, a step where an axis is in use or a choice is
taken, a slope along each doubling of an axis, a smooth function of all axes together, and what is peculiar to a single candidate. The
scales of these variables are those under which the measured tables are most likely (`benchmarks/tune/tune_scales.py`); leaving one table
out moves none of them by more than a third.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from meshwise.calibrate.train.intervals import SOURCE_OFFSET_STD
from meshwise.cost.layout import Floats, Ints
from meshwise.tune.belief.space import Space


@dataclass(frozen=True)
class Scales:
    """Standard deviations of ln(seconds)."""

    offset: float = SOURCE_OFFSET_STD  # deviation of a factor that all runs of a machine share
    physics: float = 0.34  # factor on the widths of the coefficients of the cost model
    use: float = 0.02  # deviation of the step where an axis is in use, or a choice is taken
    doubling: float = 0.008  # deviation of the slope along an axis, per doubling
    smooth: float = 0.063  # deviation of a smooth function of all axes
    length: float = 1.07  # distance over which that function varies: doublings of an axis
    own: float = 0.029  # deviation of what is peculiar to one candidate
    noise: float = 0.02  # deviation between two runs of the same candidate


SCALES = Scales()


@dataclass(frozen=True)
class Kernel:
    """Prior covariance of ln(measured / predicted) between candidates; no matrix of candidates x candidates is held."""

    features: Floats  # columns whose products are the linear part of the covariance: a row per candidate
    places: Floats  # coordinates of each candidate, in units of `Scales.length`
    smooth: float
    own: float
    noise: float

    @staticmethod
    def of(space: Space, slopes: Floats, scales: Scales = SCALES) -> "Kernel":
        """Return the kernel of a space. `slopes`: the change of the value for one standard deviation of each coefficient."""
        rows = len(space)
        columns = [np.full((rows, 1), scales.offset), scales.physics * slopes]
        places: list[Floats] = []
        for axis in space.axes.values():
            values = axis.values
            if not np.ptp(values):
                continue
            if axis.choice:
                taken = values[:, None] == np.arange(len(axis.words))
                columns.append(scales.use * taken)
                places.extend((taken / np.sqrt(2)).T)
            else:
                columns += [scales.use * (values > values.min())[:, None], scales.doubling * values[:, None]]
                places.append(values)
        across = [mask for name, mask in space.traits.items() if name.endswith("across nodes") and not mask.all()]
        columns += [scales.use * mask[:, None] for mask in across]
        where = np.stack(places, axis=1) / scales.length if places else np.zeros((rows, 0))
        return Kernel(np.concatenate(columns, axis=1), where, scales.smooth, scales.own, scales.noise)

    @cached_property
    def variance(self) -> Floats:
        """Prior variance of each candidate."""
        return np.einsum("ij,ij->i", self.features, self.features) + self.smooth**2 + self.own**2

    def between(self, rows: Ints) -> Floats:
        """Return the covariance of every candidate (rows) with some of them (columns)."""
        shared = self._shared(self.features, self.places, rows)
        shared[rows, np.arange(len(rows))] += self.own**2
        return shared

    def among(self, rows: Ints) -> Floats:
        """Return the covariance between some candidates, any of them several times."""
        return self._shared(self.features[rows], self.places[rows], rows) + self.own**2 * (rows[:, None] == rows)

    def _shared(self, features: Floats, places: Floats, rows: Ints) -> Floats:
        """Return the covariance of candidates with these features and places with those in `rows`, less what is peculiar to one."""
        at = self.places[rows]
        squares = np.sum(places**2, axis=1)[:, None] + np.sum(at**2, axis=1) - 2 * places @ at.T
        return features @ self.features[rows].T + self.smooth**2 * np.exp(-0.5 * np.maximum(0.0, squares))

    def with_effect(self, column: Floats) -> "Kernel":
        """Return the kernel with one more unknown effect, given its size at each candidate."""
        return replace(self, features=np.concatenate([self.features, column[:, None]], axis=1))


@dataclass(frozen=True)
class Gaussian:
    """A normal distribution over a value of every candidate, given measurements of some rows."""

    kernel: Kernel
    rows: Ints
    mean: Floats
    variance: Floats
    misfit: float  # sum of the squares of the measurements in standard deviations of the prior, which is their number on average
    basis: Floats  # one row per measurement: the covariance of two candidates is the prior's less the product of their columns

    @staticmethod
    def of(kernel: Kernel, rows: Ints, values: Floats, noise: Floats) -> "Gaussian":
        """Condition the prior, whose mean is zero, on `values` measured at `rows` with these standard deviations."""
        if not len(rows):
            return Gaussian(
                kernel, rows, np.zeros(len(kernel.variance)), kernel.variance, 0.0, np.zeros((0, len(kernel.variance)))
            )
        shared = kernel.between(rows)
        lower = np.linalg.cholesky(kernel.among(rows) + np.diag(noise**2))
        basis = np.linalg.solve(lower, shared.T)
        whitened = np.linalg.solve(lower, values)
        variance = np.maximum(0.0, kernel.variance - np.einsum("ij,ij->j", basis, basis))
        return Gaussian(kernel, rows, basis.T @ whitened, variance, float(whitened @ whitened), basis)

    def covariance(self, rows: Ints) -> Floats:
        """Return the covariance of every candidate (rows) with some of them (columns)."""
        return self.kernel.between(rows) - self.basis.T @ self.basis[:, rows]
