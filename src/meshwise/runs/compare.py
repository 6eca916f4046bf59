"""A run against the planner: its own layout with its cost, layouts that are better for the same question, and where they differ."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from meshwise.catalogue import levels
from meshwise.cost.axes import Bounds
from meshwise.cost.layout import Layouts
from meshwise.cost.train.question import Question
from meshwise.cost.train.step import evaluate
from meshwise.plan.train.choice import Choice, Difference, choice, differences
from meshwise.plan.train.search import Found, search
from meshwise.runs.train.case import Case
from meshwise.runs.train.predict import MICRO_BATCHES, predict

MAX_TRIED = 32  # layouts that are searched where a program may not be able to run the fastest ones


@dataclass(frozen=True)
class Judged:
    """The layout of a run beside the best one for its question; `best` is None where no layout fits."""

    question: Question
    own: Choice
    best: Choice | None

    @property
    def differences(self) -> list[Difference]:
        """Parts of the step in which the best layout differs, the largest first."""
        return differences(self.best, self.own) if self.best else []


def always(_: Choice) -> bool:
    return True


def layouts(
    q: Question,
    can: Callable[[Choice], bool] = always,
    *,
    bounds: Bounds | None = None,
    tried: int = MAX_TRIED,
    found: Found | None = None,
) -> Iterator[Choice]:
    """Yield the layouts of a question that fit and that a program `can` run, fastest first. `found`: a search that was made already."""
    found = found or search(q, bounds=bounds or {}, top=tried)
    for number in range(len(found.layouts)):
        one = choice(q, found.layouts, found.cost, number)
        if can(one):
            yield one


def question_of(case: Case) -> Question:
    """Return the question that a case answers, as `plan` asks it."""
    return Question.of(case.model, case.cluster, case.work, levels.choose_for(case.cluster, case.work.framework))


def own_choice(q: Question, layout: Layouts) -> Choice:
    """Return one layout of a question with its cost, whether or not it fits."""
    return choice(q, layout, evaluate(q, layout), 0)


def judge(case: Case, can: Callable[[Choice], bool] = always) -> Judged:
    """Return a case's own layout and the best one. A micro-batch that is not stated is the one that `predict` takes."""
    axes = case.layout if case.layout["mbs"] else case.layout | {"mbs": fastest_micro_batch(case)}
    q = question_of(case)
    own = own_choice(q, Layouts.of(**{axis: np.array([value]) for axis, value in axes.items()}))
    return Judged(q, own, next(layouts(q, can), None))


def fastest_micro_batch(case: Case) -> int:
    """Return the micro-batch behind a prediction of a run that states none: the fastest that fits."""
    chosen = predict([case]).seconds[0]
    tried = predict([replace(case, layout=case.layout | {"mbs": mbs}) for mbs in MICRO_BATCHES])
    return MICRO_BATCHES[int(np.argmin(np.abs(tried.seconds - chosen)))]
