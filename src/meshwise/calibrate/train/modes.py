"""Find modes: groups of slow runs of one source whose excess over the prediction is one time for each of something counted.

Of the slow runs of a source, a mixture of two is fitted for each mechanism: runs in the mode, whose seconds are those predicted with it,
and runs that are slow for other reasons, equally likely at any slowness. The mechanism that explains most beyond chance is kept if runs of
several models are in it, and if it explains more than a common factor does: what scales with the prediction is an error of the prediction.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwise.catalogue.modes import Counted, Effect, Mode, Stages
from meshwise.cost.layout import Floats
from meshwise.cost.modes import MIN_LOG_SLOWDOWN, Sizes, runs_of, seconds_in, time_of, with_effect
from meshwise.runs.train.case import Case

MIN_NORMAL_SHARE, MIN_NORMAL_ROWS = 0.1, 10
"""Least share of a source's runs, and least runs, that are assumed to be normal: their errors are the narrowest range that has so many."""
SLOW_STDS = 3.0
MIN_SLOW = 0.25
"""A slow run is this many standard deviations of normal runs above them, and ln(measured / predicted) at least this far."""
MIN_ROWS = 5
MIN_MODELS = 2  # least runs in a mode, and least models with two of them: what one model shows may be an error of its prediction
MIN_EVIDENCE = 10.0
"""Least gain of twice the logarithm of the likelihood, less BIC's penalty: 'very strong' by Kass and Raftery 1995 (recalled)."""
PARAMETERS = 3  # of a mode: its seconds, its spread and its share
MAX_SPREAD = 0.2  # most standard deviation of ln(measured / predicted) among runs of one mode
MIN_SPREAD = 0.03
POSSIBLE = (1e-9, 1e12)  # of a step; a table may state anything
MAX_MODES = 6  # most modes of one source
STARTS = 12  # values of the slow runs from which a fit starts
SHORT_ROUNDS, LONG_ROUNDS = 4, 12  # rounds from every start, and from the best of them
MAX_FITTED = 500  # most slow runs that a fit uses, spread evenly
TINY = 1e-6

_MECHANISMS: tuple[tuple[Effect, Counted], ...] = (
    ("adds", "step"),
    ("adds", "micro-batch"),
    ("adds", "layer and tensor rank"),
    ("at least", "layer and tensor rank"),
)
_STAGES: tuple[Stages, ...] = ("any", "several", "one", "two", "more than two")


@dataclass(frozen=True)
class Source:
    """The timed runs of one source."""

    rows: list[int]  # their positions in the table
    seconds: Floats
    normal: Floats  # predicted seconds of normal runs
    predicted: Floats  # predicted seconds with the modes found so far
    sizes: Sizes
    models: Floats  # a number for each model


@dataclass(frozen=True)
class Found:
    """A mode of one source, and its runs."""

    source: tuple[str, str, str]  # table, chip and framework
    mode: Mode
    rows: tuple[int, ...]  # positions of the runs in the mode
    visible: int  # runs that would show it

    @property
    def sentence(self) -> str:
        """The mode in one line: '61 of 61 runs with two stages take 1.3 s longer for each micro-batch, whatever the model'."""
        most = ": most of them, so perhaps a cost that the prediction lacks" if self.mode.usual else ""
        return f"{len(self.rows)} of {self.visible} {runs_of(self.mode)} take {time_of(self.mode)}, whatever the model{most}"


def merged(found: Sequence[Found]) -> tuple[Mode, ...]:
    """Return the modes of several sources as those of one calibration: the same mechanism is one mode."""
    same: dict[tuple[str, ...], list[Found]] = {}
    for each in found:
        same.setdefault((each.mode.effect, each.mode.per, each.mode.stages), []).append(each)
    return tuple(_merged(group) for group in same.values())


def _merged(group: Sequence[Found]) -> Mode:
    rows = np.array([float(len(each.rows)) for each in group])
    logs, spreads = (np.array(v) for v in zip(*((np.log(each.mode.seconds), each.mode.spread) for each in group), strict=True))
    mean = float(np.average(logs, weights=rows))
    spread = float(np.sqrt(np.average(spreads**2 + (logs - mean) ** 2, weights=rows)))
    share = float(np.sum(rows)) / sum(each.visible for each in group)
    return replace(group[0].mode, seconds=float(np.exp(mean)), spread=spread, share=share, rows=float(np.sum(rows)))


@dataclass(frozen=True)
class _Mixture:
    """Runs in a mode, and runs that are slow for any other reason: several fits side by side, one a row."""

    effect: Effect
    amount: Floats  # seconds for each counted thing
    spread: Floats
    share: Floats
    chance: float  # density of ln(measured / predicted) of runs that are slow for another reason
    repeats: float  # slow runs that each fitted one stands for
    gains: Floats

    @property
    def evidence(self) -> float:
        return float(self.gains[0])

    def _errors(self, seconds: Floats, normal: Floats, counts: Floats) -> Floats:
        return np.log(seconds / with_effect(self.effect, normal, self.amount * counts))

    def _density(self, errors: Floats) -> Floats:
        return self.share * np.exp(-((errors / self.spread) ** 2) / 2) / (self.spread * np.sqrt(2 * np.pi))

    def weights(self, seconds: Floats, normal: Floats, counts: Floats) -> Floats:
        """Return the probability that each run is in the mode; of the first fit."""
        density = self._density(self._errors(seconds, normal, counts))
        return (density / (density + (1 - self.share) * self.chance))[0]

    def improved(self, own: Floats, seconds: Floats, normal: Floats, counts: Floats) -> "_Mixture":
        """Return the fits after one round. `own`: the seconds for each counted thing if a run were in the mode."""
        errors = self._errors(seconds, normal, counts)
        density = self._density(errors)
        weight = density / (density + (1 - self.share) * self.chance)
        total = np.maximum(np.sum(weight, axis=1, keepdims=True), TINY)
        spread = np.sqrt(np.sum(weight * errors**2, axis=1, keepdims=True) / total)
        decides = weight * (self.amount * counts / seconds) ** 2
        moved = np.sum(decides * np.log(own / self.amount), axis=1, keepdims=True)
        moved /= np.maximum(np.sum(decides, axis=1, keepdims=True), TINY)
        share = np.clip(total / len(seconds), TINY, 1 - TINY)
        amount = self.amount * np.exp(moved)
        return replace(self, amount=amount, spread=np.clip(spread, MIN_SPREAD, MAX_SPREAD), share=share)

    def best(self, seconds: Floats, normal: Floats, counts: Floats) -> "_Mixture":
        """Return the fit with the most evidence: twice the logarithm of the likelihood over that of no mode, less BIC's penalty."""
        density = self._density(self._errors(seconds, normal, counts))
        likelihood = self.repeats * np.sum(np.log(density / self.chance + 1 - self.share), axis=1)
        gains = 2 * likelihood - PARAMETERS * np.log(self.repeats * len(seconds))
        best = [int(np.argmax(gains))]
        return replace(self, amount=self.amount[best], spread=self.spread[best], share=self.share[best], gains=gains[best])


@dataclass(frozen=True)
class _Fit:
    """A mechanism fitted to the slow runs of a source."""

    effect: Effect
    per: Counted
    stages: Stages
    mixture: _Mixture
    members: Floats  # of all runs of the source, those more likely in the mode than slow for another reason


def find(cases: Sequence[Case], predicted: Floats) -> list[Found]:
    """Return the modes of each source, from measured and predicted seconds."""
    rows: dict[tuple[str, str, str], list[int]] = {}
    for i, case in enumerate(cases):
        if case.timed:
            rows.setdefault(case.source[:3], []).append(i)
    return [found for source, inside in rows.items() for found in _modes(source, _source(cases, predicted, inside))]


def rows_in(found: Iterable[Found]) -> set[int]:
    """Return the positions of the runs in any of these modes."""
    return {row for each in found for row in each.rows}


def sizes_of(cases: Sequence[Case]) -> Sizes:
    """Return what modes count in the layouts of cases."""
    a = {name: np.array([float(case.layout[name]) for case in cases]) for name in ("dp_replicate", "dp_shard", "mbs", "pp", "tp")}
    layers, batch = (
        np.array(values) for values in zip(*((len(c.model.layers), float(c.work.batch)) for c in cases), strict=True)
    )
    return Sizes.of(layers, batch, a["dp_replicate"] * a["dp_shard"], a["mbs"], a["pp"], a["tp"])


def _source(cases: Sequence[Case], predicted: Floats, rows: list[int]) -> Source:
    chosen, expected = [cases[i] for i in rows], np.clip(predicted[rows], *POSSIBLE)
    number: dict[str, int] = {}
    models = np.array([number.setdefault(case.model.name, len(number)) for case in chosen])
    return Source(rows, np.clip([case.seconds for case in chosen], *POSSIBLE), expected, expected, sizes_of(chosen), models)


def _modes(name: tuple[str, str, str], source: Source) -> Iterator[Found]:
    for _ in range(MAX_MODES):
        centre, limit = _normal(np.log(source.seconds / source.predicted))
        source = replace(source, normal=source.normal * np.exp(centre), predicted=source.predicted * np.exp(centre))
        limit -= centre
        fits = list(_fits(source, limit))
        if not fits:
            return
        best, made, visible = _best(source, fits, limit)
        yield Found(name, made, tuple(source.rows[i] for i in np.flatnonzero(best.members)), visible)
        source = _with_mode(source, made, best.members, limit)


def _normal(errors: Floats) -> tuple[float, float]:
    """Return the centre of the errors of normal runs, and the error beyond which a run is slow. Runs are slow for many reasons and fast
    for few, so the spread is that of the errors below the centre."""
    ordered = np.sort(errors)
    size = min(len(ordered), max(MIN_NORMAL_ROWS, int(np.ceil(MIN_NORMAL_SHARE * len(ordered)))))
    widths = ordered[size - 1 :] - ordered[: len(ordered) - size + 1]
    start = int(np.argmin(widths))
    centre = float(np.median(ordered[start : start + size]))
    below = centre - ordered[ordered <= centre]
    return centre, centre + max(MIN_SLOW, SLOW_STDS * 1.4826 * float(np.median(below)))


def _fits(source: Source, limit: float) -> Iterator[_Fit]:
    """Yield the mechanisms that explain slow runs of several models, and more of them than a common factor does."""
    errors = np.log(source.seconds / source.predicted)
    slow = errors > limit
    for stages in _STAGES:
        for effect, per in _MECHANISMS:
            counts = source.sizes.counts(per, stages)
            inside = np.flatnonzero(slow & (counts > 0))
            if len(inside) < MIN_ROWS:
                continue
            width = max(1.0, float(np.max(errors[inside])) - limit)
            some = _some(inside, errors)
            repeats = len(inside) / len(some)
            fitted = _mixture(effect, source.seconds[some], source.predicted[some], counts[some], width, repeats)
            members = np.zeros(len(errors), dtype=bool)
            members[inside] = fitted.weights(source.seconds[inside], source.predicted[inside], counts[inside]) > 0.5
            fit = _Fit(effect, per, stages, fitted, members)
            if fitted.evidence < MIN_EVIDENCE or not _is_general(source, fit):
                continue
            factor = _mixture("at least", source.seconds[some], np.zeros(1), source.predicted[some], width, repeats)
            if fitted.evidence > factor.evidence:
                yield fit


def _some(rows: Floats, errors: Floats) -> Floats:
    """Return not more than MAX_FITTED of these rows, spread evenly over their errors."""
    ordered = rows[np.argsort(errors[rows], kind="stable")]
    return ordered[:: -(-len(rows) // MAX_FITTED)]


def _mixture(effect: Effect, seconds: Floats, normal: Floats, counts: Floats, width: float, repeats: float) -> _Mixture:
    """Fit the mixture by expectation and maximization: a few rounds from several starts, then more from the best of them."""
    own = (seconds - normal if effect == "adds" else seconds) / counts
    starts = np.quantile(own, np.linspace(0.02, 0.98, STARTS))[:, None]
    spread, share = np.full_like(starts, MAX_SPREAD), np.full_like(starts, 0.5)
    tried = _Mixture(effect, starts, spread, share, 1 / width, repeats, np.zeros(STARTS))
    for rounds in (SHORT_ROUNDS, LONG_ROUNDS):
        for _ in range(rounds):
            tried = tried.improved(own, seconds, normal, counts)
        tried = tried.best(seconds, normal, counts)
    return tried


def _is_general(source: Source, fit: _Fit) -> bool:
    """Return whether enough runs of several models are in the mode, and far slower than normal ones."""
    _, sizes = np.unique(source.models[fit.members], return_counts=True)
    if np.sum(fit.members) < MIN_ROWS or np.sum(sizes >= 2) < MIN_MODELS:
        return False
    return float(np.median(np.log(source.seconds / source.normal)[fit.members])) > MIN_LOG_SLOWDOWN


def _best(source: Source, fits: Sequence[_Fit], limit: float) -> tuple[_Fit, Mode, int]:
    """Return the fit with the most evidence, as a mode; where it has nearly as much for fewer stages, for those that show it most."""
    most = max(fits, key=lambda fit: fit.mixture.evidence)
    same = [fit for fit in fits if (fit.effect, fit.per) == (most.effect, most.per)]
    near = [fit for fit in same if fit.mixture.evidence > most.mixture.evidence - MIN_EVIDENCE]
    return max(((fit, *_mode(source, fit, limit)) for fit in near), key=lambda each: (each[1].share, each[0].mixture.evidence))


def _mode(source: Source, fit: _Fit, limit: float) -> tuple[Mode, int]:
    """Return the mode, and the number of runs that would show it."""
    rows = int(np.sum(fit.members))
    amount, spread = float(fit.mixture.amount[0, 0]), float(fit.mixture.spread[0, 0])
    made = Mode(effect=fit.effect, per=fit.per, stages=fit.stages, seconds=amount, spread=spread, share=0.0, rows=float(rows))
    inside = seconds_in(made, source.predicted, source.sizes)
    shown = np.log(inside / source.predicted) > limit
    visible = int(np.sum((shown & (source.seconds < inside)) | fit.members))  # a slower run may be in it, and in another one too
    return replace(made, share=rows / visible), visible


def _with_mode(source: Source, mode: Mode, members: Floats, limit: float) -> Source:
    """Return the source with the mode in the predictions of its runs; where most runs are in it, in those of all slow runs."""
    slow = np.log(source.seconds / source.predicted) > limit
    inside = slow if mode.share > 0.5 and mode.effect == "at least" else members
    with_it = seconds_in(mode, source.predicted, source.sizes)
    return replace(source, predicted=np.where(inside, with_it, source.predicted))
