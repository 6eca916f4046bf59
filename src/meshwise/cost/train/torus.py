"""Mapping of mesh axes onto the axes of a torus: how many links the ranks of a group have, and how many hops apart they are."""

from dataclasses import dataclass
from itertools import permutations

import numpy as np

from meshwise.cost.layout import Floats, Ints


@dataclass(frozen=True)
class Torus:
    """A block of chips, each with two neighbours on every axis."""

    shape: tuple[int, ...]
    closed: tuple[bool, ...]  # which axes wrap around from their last chip to their first
    link: float  # bytes per second to one neighbour

    @staticmethod
    def of(shape: tuple[int, ...], closed: tuple[bool, ...], link: float) -> "Torus":
        """Sort the axes, longest first: 4x8x16 is the same slice as 16x8x4."""
        sides = sorted(zip(shape, closed, strict=True), reverse=True)
        return Torus(tuple(side for side, _ in sides), tuple(ring for _, ring in sides), link)

    @property
    def links(self) -> tuple[int, ...]:
        """Links of a chip on each axis that a collective over the whole axis uses: 2 on a ring, 1 on a line, 0 on an axis of 1."""
        return tuple(2 if ring and side > 2 else int(side > 1) for side, ring in zip(self.shape, self.closed, strict=True))


@dataclass(frozen=True)
class Mesh:
    """Layouts on a torus. `taken[i]` is, per mesh axis (innermost first) and layout, the extent of that mesh axis along torus axis i; the
    remaining factor of a mesh axis is spread over pods."""

    torus: Torus
    axes: tuple[Ints, ...]
    taken: Ints  # torus axes x mesh axes x layouts

    @staticmethod
    def of(torus: Torus, axes: tuple[Ints, ...]) -> "Mesh":
        """Assign to every mesh axis its greatest common divisor with one torus axis after another. Of all orders of the torus axes, take
        the one with the largest product of the links of the first mesh axis (tensor parallelism) and of the next two together (data and
        context), which decides whether both hide behind computation (How to Scale Your Model, part 5)."""
        best, most = np.ones((len(torus.shape), len(axes), len(axes[0])), dtype=np.int64), np.full(len(axes[0]), -1.0)
        for order in permutations(range(len(torus.shape))):
            mesh = Mesh(torus, axes, _laid(torus.shape, order, axes))
            score = np.maximum(mesh.links(0, 0), 0.5) * np.maximum(mesh.links(1, 2), 0.5)
            better = score > most * (1 + 1e-9)
            best, most = np.where(better, mesh.taken, best), np.where(better, score, most)
        return Mesh(torus, axes, best)

    def within(self, size: Ints) -> "Mesh":
        """Return this mesh with axes 1 and 2 regrouped into an inner axis of `size` ranks and an outer axis of the rest."""
        both = self.taken[:, 1] * self.taken[:, 2]
        left, first = size.copy(), np.ones_like(both)
        for axis, length in enumerate(both):
            first[axis] = np.gcd(left, length)
            left = left // first[axis]
        taken = self.taken.copy()
        taken[:, 1], taken[:, 2] = first, both // first
        rest = self.axes[1] * self.axes[2] // size
        return Mesh(self.torus, (self.axes[0], size, rest, *self.axes[3:]), taken)

    def size(self, first: int, last: int) -> Floats:
        """Return the number of ranks of the group over mesh axes `first` to `last`."""
        return np.prod(np.stack(self.axes[first : last + 1]).astype(float), axis=0)

    def _inner(self, first: int) -> Ints:
        return np.prod(self.taken[:, :first], axis=1)

    def _along(self, first: int, last: int) -> Ints:
        return np.prod(self.taken[:, first : last + 1], axis=1)

    def inside(self, first: int, last: int, pods: int) -> Floats:
        """Return how many ranks of that group are in one unit of `pods` pods."""
        in_pod, size = np.prod(self._along(first, last), axis=0), self.size(first, last)
        step = self.size(0, first - 1) // np.prod(self._inner(first), axis=0) if first else 1  # pods that inner axes span
        return in_pod * np.clip(pods // step, 1, size / in_pod)

    def _directions(self, first: int, last: int) -> Floats:
        """Return the neighbours of a rank on each torus axis: two on a ring, which spans a whole closed axis, one on a line, none where the
        group has one rank. An axis of two has one link."""
        along, length = self._along(first, last), np.array(self.torus.shape)[:, None]
        ring = np.array(self.torus.closed)[:, None] & (along * self._inner(first) == length) & (length > 2)
        return np.where(along > 1, np.where(ring, 2.0, 1.0), 0.0)

    def links(self, first: int, last: int) -> Floats:
        """Return the links that bring bytes to a rank: two for each torus axis that the group wraps around, one where it does not close,
        and a share of them where groups interleave. Worked: 2,240 data ranks over tp 4 on 16x20x28 wrap around the axes of 20 and 28, two
        links each, and with every fourth chip around that of 16, which four groups share: 4.5 in total."""
        return np.sum(self._directions(first, last) / self._inner(first), axis=0)

    def crossing(self, first: int, last: int) -> Floats:
        """Return the bytes over a link per byte that a rank sends in an all-to-all: half of the bytes of half of the ranks cross the middle
        of their longest line, over one link in each direction, and over two on a ring."""
        along, directions = self._along(first, last), np.maximum(self._directions(first, last), 1.0)
        return np.max(np.where(along > 1, along * self._inner(first) / (4 * directions), 0.0), axis=0)

    def neighbour(self, axis: int) -> Floats:
        """Return the links to the next rank on one mesh axis: a share of one link where it is several chips away, 0 where it is in another
        pod. Where the axis lies on several torus axes, the slowest step limits the others."""
        inner = np.max(np.where(self.taken[:, axis] > 1, self._inner(axis), 0), axis=0)
        return np.where(inner > 0, 1 / np.maximum(inner, 1), 0.0)

    def hops(self, first: int, last: int) -> Floats:
        """Return the chips that a collective passes in sequence: half of a ring, the whole of a line."""
        along = self._along(first, last)
        return np.sum(np.where(self._directions(first, last) == 2, along // 2, along - 1) * self._inner(first), axis=0)


def _laid(shape: tuple[int, ...], order: tuple[int, ...], axes: tuple[Ints, ...]) -> Ints:
    """Return the extent of every mesh axis along every torus axis, with torus axes assigned in this order."""
    free = [np.full_like(axes[0], length) for length in shape]
    taken = np.ones((len(shape), len(axes), len(axes[0])), dtype=np.int64)
    for which, axis in enumerate(axes):
        left = axis
        for i in order:
            taken[i, which] = np.gcd(left, free[i])
            left, free[i] = left // taken[i, which], free[i] // taken[i, which]
    return taken
