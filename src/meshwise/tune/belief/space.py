"""Space: the layouts that a run may try, with what the cost model predicts for each and how each prediction depends on its coefficients."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from meshwise.calibrate.train.fit import SLOPE_STEP, memory_widths, widths_of, with_logs
from meshwise.catalogue.calibrations import COEFFICIENTS
from meshwise.cost.axes import MODEL_CUTS, Bounds, layout_name
from meshwise.cost.layout import Floats, Ints, Layouts
from meshwise.cost.train.question import Question
from meshwise.cost.train.step import evaluate, peak
from meshwise.errors import UserError
from meshwise.plan.train.search import blocks, check_divides, concatenated

Mask = NDArray[np.bool_]
Options = Mapping[str, str]

MAX_ROWS = 100_000  # rows of a space: the fastest that the cost model predicts
MAX_TIME_RATIO = 4.0
"""A layout that is predicted to take more than this many times the fastest is no candidate: no calibration errs that much among layouts of
one model on one machine."""
MAX_MEMORY_RATIO = 1.25  # a layout whose predicted memory exceeds a device's by more than this factor is no candidate
SIZES = (*MODEL_CUTS, "mbs", "vpp", "dp_shard")
"""Axes of a layout that are numbers of devices, sequences or chunks: what matters is how often they double."""
CHOICES = ("zero", "recompute", "sp", "schedule", "offload")


@dataclass(frozen=True)
class Axis:
    """One axis of a space: a number, which counts by its logarithm, or a choice between words."""

    values: Floats  # Base-2 logarithms of a number; indices of `words` of a choice
    words: tuple[str, ...] = ()

    @property
    def choice(self) -> bool:
        return bool(self.words)

    @staticmethod
    def of(values: Sequence[str | float] | Floats) -> "Axis":
        """Read an axis from its values by row: words make a choice, numbers count by their logarithm."""
        if any(isinstance(value, str) for value in values):
            words = tuple(sorted({str(value) for value in values}))
            index = {word: i for i, word in enumerate(words)}
            return Axis(np.array([float(index[str(value)]) for value in values]), words)
        return Axis(np.log2(np.maximum(1.0, np.asarray(values, dtype=np.float64))))

    def text(self, row: int) -> str:
        value = float(self.values[row])
        return self.words[int(value)] if self.words else f"{2**value:g}"

    def take(self, rows: Ints | Mask) -> "Axis":
        return replace(self, values=self.values[rows])

    @staticmethod
    def joined(parts: "Sequence[tuple[Axis | None, int]]") -> "Axis":
        """Join the same axis of several spaces, given with their lengths. A space without it has 1, or the empty word."""
        words = tuple(sorted({word for axis, _ in parts for word in (axis.words if axis else ("",))}))
        if not any(axis and axis.choice for axis, _ in parts):
            return Axis(np.concatenate([axis.values if axis else np.zeros(length) for axis, length in parts]))
        columns = [
            np.array([float(words.index(word)) for word in axis.words])[axis.values.astype(np.int64)]
            if axis
            else np.full(length, float(words.index("")))
            for axis, length in parts
        ]
        return Axis(np.concatenate(columns), words)


@dataclass(frozen=True)
class Space:
    """Candidates, one row each, with their predicted seconds and bytes. `slopes` and `memory_slopes` have a column for each coefficient:
    the change of ln(seconds) or ln(bytes) for one standard deviation of that coefficient between machines."""

    seconds: Floats
    memory: Floats
    capacity: Floats  # bytes that a device offers
    axes: Mapping[str, Axis]  # axes in which the candidates differ
    traits: Mapping[str, Mask]
    """Traits that may be slow or broken on a machine, with the rows that have each: 'pp > 1', 'zero 1', 'tp across nodes'."""
    slopes: Mapping[str, Floats]
    memory_slopes: Mapping[str, Floats]
    memory_spread: float = 0.13  # standard deviation of ln(predicted / measured) memory
    layouts: Layouts | None = None
    chosen: tuple[Options, ...] = ()  # options of the program beside the layout, by question: {"compile": "yes"}
    which: Ints | None = None  # index into `chosen` of each row
    names: tuple[str, ...] = ()  # words for each row of a space without layouts

    def __len__(self) -> int:
        return len(self.seconds)

    @property
    def best(self) -> int:
        """The row that is predicted to be the fastest of those predicted to fit."""
        fits = self.memory <= self.capacity
        return int(np.argmin(np.where(fits, self.seconds, np.inf))) if fits.any() else int(np.argmin(self.seconds))

    def layout(self, row: int) -> dict[str, int | str]:
        """Return the layout of a row in words, as in plan.json."""
        if self.layouts is None:
            raise UserError("the candidates of this space have no layouts")
        return self.layouts.row(row)

    def options(self, row: int) -> dict[str, str]:
        """Return what the row sets beside its layout."""
        return dict(self.chosen[int(self.which[row])]) if self.chosen and self.which is not None else {}

    def words(self, row: int) -> str:
        """Return the row as text: 'dp8 tp4 pp12 mbs2 zero1, compile yes'."""
        if self.layouts is None:
            return self.names[row]
        return ", ".join([layout_name(self.layouts.row(row)), *(f"{k} {v}" for k, v in self.options(row).items())])

    @cached_property
    def physics(self) -> Floats:
        """Slopes of ln(seconds) as a matrix: a row per candidate, a column per coefficient."""
        return _matrix(self.slopes, len(self))

    @cached_property
    def memory_physics(self) -> Floats:
        return _matrix(self.memory_slopes, len(self))

    def take(self, rows: Ints | Mask) -> "Space":
        """Return some rows."""
        return replace(
            self,
            seconds=self.seconds[rows],
            memory=self.memory[rows],
            capacity=self.capacity[rows],
            axes={name: axis.take(rows) for name, axis in self.axes.items()},
            traits={name: mask[rows] for name, mask in self.traits.items()},
            slopes={name: slope[rows] for name, slope in self.slopes.items()},
            memory_slopes={name: slope[rows] for name, slope in self.memory_slopes.items()},
            layouts=self.layouts.take(rows) if self.layouts is not None else None,
            which=self.which[rows] if self.which is not None else None,
            names=tuple(np.array(self.names, dtype=object)[rows]) if self.names else (),
        )

    @staticmethod
    def of_layouts(question: Question, layouts: Layouts, options: Options | None = None) -> "Space":
        """Evaluate given layouts of one question. `options`: what else this question sets, as further axes."""
        chosen = dict(options or {})
        words = {name: Axis(np.zeros(len(layouts)), (value,)) for name, value in chosen.items()}
        sizes = {name: Axis.of(getattr(layouts, name)) for name in SIZES}
        choices = {name: Axis.of([str(value) for value in getattr(layouts, name)]) for name in CHOICES}
        cost = evaluate(question, layouts)
        seconds, memory = (np.broadcast_to(values, len(layouts)).astype(np.float64) for values in (cost.step, cost.peak))
        calibration = question.calibration
        if (
            calibration.frameworks
        ):  # a coefficient that was fitted to this chip and framework elsewhere counts like one of its level
            calibration = replace(calibration, learned=COEFFICIENTS)
        return Space(
            seconds=seconds,
            memory=memory,
            capacity=np.full(len(layouts), question.chip.memory * (1 - question.work.reserve)),
            axes=sizes | choices | words,
            traits=_traits(question, layouts)
            | {f"{name} {value}": np.ones(len(layouts), bool) for name, value in chosen.items()},
            slopes=_slopes(
                question, layouts, widths_of(calibration), np.log(seconds), lambda q: np.log(evaluate(q, layouts).step)
            ),
            memory_slopes=_slopes(question, layouts, memory_widths(), np.log(memory), lambda q: np.log(peak(q, layouts))),
            memory_spread=question.calibration.memory_spread,
            layouts=layouts,
            chosen=(chosen,),
            which=np.zeros(len(layouts), dtype=np.int64),
        )

    @staticmethod
    def search(
        question: Question, bounds: Bounds | None = None, options: Options | None = None, nodes: tuple[int, ...] = (),
        most: int = MAX_ROWS,
    ) -> "Space":  # fmt: skip
        """Enumerate every layout of a question that obeys the rules and may fit, and keep the `most` fastest."""
        limits = dict(bounds or {})
        check_divides(question, limits, nodes)
        found = _enumerated(question, limits, nodes, most, offloads="offload" in limits)
        if not len(found) and question.work.framework.offload:
            found = _enumerated(question, limits, nodes, most, offloads=True)
        if not len(found):
            raise UserError(
                "no layout of this plan's question obeys every rule and may fit in memory, so there is nothing to try"
            )
        return Space.of_layouts(question, found, options)

    @staticmethod
    def of_table(
        axes: Mapping[str, Sequence[str | float]], seconds: Sequence[float] | Floats, memory: Sequence[float] | Floats,
        capacity: float, words: Sequence[str], spread: float = 0.13,
    ) -> "Space":  # fmt: skip
        """Make a space of axes and predictions without coefficients, such as the options of a server: runs teach its common factor."""
        known = {name: Axis.of(values) for name, values in axes.items()}
        return Space(
            seconds=np.asarray(seconds, dtype=np.float64), memory=np.asarray(memory, dtype=np.float64),
            capacity=np.full(len(words), capacity), axes=known, traits=_traits_of_axes(known, len(words)), slopes={},
            memory_slopes={}, memory_spread=spread, names=tuple(words),
        )  # fmt: skip

    @staticmethod
    def joined(spaces: "Sequence[Space]") -> "Space":
        """Join the rows of several questions. They share coefficients by name."""
        if len(spaces) == 1:
            return spaces[0]
        sizes = [len(space) for space in spaces]

        def columns(name: str) -> dict[str, Floats]:
            parts: list[Mapping[str, NDArray[np.generic]]] = [getattr(space, name) for space in spaces]
            keys = dict.fromkeys(key for part in parts for key in part)
            kind = np.bool_ if name == "traits" else np.float64
            pieces = {key: [part.get(key, np.zeros(n, kind)) for part, n in zip(parts, sizes, strict=True)] for key in keys}
            return {key: np.concatenate(values) for key, values in pieces.items()}

        layouts = [space.layouts for space in spaces if space.layouts is not None]
        axes = dict.fromkeys(name for space in spaces for name in space.axes)
        first = np.cumsum([0, *(len(space.chosen) for space in spaces)])
        numbers = [
            space.which if space.which is not None else np.zeros(n, np.int64) for space, n in zip(spaces, sizes, strict=True)
        ]
        return Space(
            seconds=np.concatenate([space.seconds for space in spaces]),
            memory=np.concatenate([space.memory for space in spaces]),
            capacity=np.concatenate([space.capacity for space in spaces]),
            axes={name: Axis.joined([(space.axes.get(name), len(space)) for space in spaces]) for name in axes},
            traits=columns("traits"),
            slopes=columns("slopes"),
            memory_slopes=columns("memory_slopes"),
            memory_spread=max(space.memory_spread for space in spaces),
            layouts=concatenated(layouts) if layouts else None,
            chosen=tuple(chosen for space in spaces for chosen in space.chosen),
            which=np.concatenate([number + start for number, start in zip(numbers, first, strict=False)]),
            names=tuple(name for space in spaces for name in space.names),
        )


def _matrix(columns: Mapping[str, Floats], rows: int) -> Floats:
    return np.stack(list(columns.values()), axis=1) if columns else np.zeros((rows, 0))


def _slopes(
    question: Question, layouts: Layouts, widths: Mapping[str, float], at: Floats, predict: Callable[[Question], Floats]
) -> dict[str, Floats]:
    """Return the change of a predicted logarithm for one deviation of each coefficient on which any row depends."""
    calibration = question.calibration
    found: dict[str, Floats] = {}
    for name, width in widths.items():
        value = float(getattr(calibration, name))
        if value <= 0:
            continue
        moved = with_logs(calibration, (name,), np.array([np.log(value) - SLOPE_STEP]))
        slope = (at - predict(replace(question, calibration=moved))) / SLOPE_STEP * width
        if np.any(slope):
            found[name] = np.broadcast_to(slope, len(layouts))
    return found


def _traits(question: Question, layouts: Layouts) -> dict[str, Mask]:
    """Return what may be slow or broken with these layouts: each axis in use, and groups that reach beyond a node."""
    a, node = layouts, question.cluster.node.devices
    several = a.devices > node
    found: dict[str, Mask] = {"any layout": np.ones(len(a), dtype=bool)}
    found |= {f"{name} > 1": getattr(a, name) > 1 for name in ("tp", "pp", "cp", "ep", "vpp", "mbs")}
    found |= {ACROSS_TP: a.tp > node, ACROSS_PP: (a.pp > 1) & several}
    for name in CHOICES:
        values = getattr(a, name)
        found |= {f"{name} {a.row(int(np.argmax(values == v)))[name]}": values == v for v in np.unique(values) if v}
    return {name: mask for name, mask in found.items() if mask.any()}


ACROSS_TP, ACROSS_PP = "tp across nodes", "pp across nodes"


def _traits_of_axes(axes: Mapping[str, Axis], rows: int) -> dict[str, Mask]:
    found: dict[str, Mask] = {"any layout": np.ones(rows, dtype=bool)}
    for name, axis in axes.items():
        if axis.choice:
            found |= {f"{name} {word}": axis.values == i for i, word in enumerate(axis.words)}
        else:
            found[f"{name} > least"] = axis.values > axis.values.min()
    return {name: mask for name, mask in found.items() if name == "any layout" or not mask.all()}


def _enumerated(question: Question, limits: Bounds, nodes: tuple[int, ...], most: int, *, offloads: bool) -> Layouts:
    """Return the fastest layouts that may fit."""
    room = question.chip.memory * MAX_MEMORY_RATIO
    parts: list[Layouts] = []
    times: list[Floats] = []
    best = np.inf
    for block_question, block, _ in blocks(question, limits, nodes, {}, offloads=offloads):
        fits = peak(block_question, block) <= room
        block = block.take(fits)
        if not len(block):
            continue
        step = evaluate(block_question, block).step
        best = min(best, float(step.min()))
        near = step <= MAX_TIME_RATIO * best
        parts.append(block.take(near))
        times.append(step[near])
    if not parts:
        return Layouts.of(tp=np.zeros(0, dtype=np.int64))
    layouts, seconds = concatenated(parts), np.concatenate(times)
    order = np.argsort(seconds, kind="stable")[:most]
    return layouts.take(np.sort(order[seconds[order] <= MAX_TIME_RATIO * best]))
