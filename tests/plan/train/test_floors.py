"""Lower bounds of partial layouts: never above what they bound, and a search that uses them finds the same layouts."""

from dataclasses import fields
from itertools import islice

import numpy as np
import pytest

from meshwise.cost.axes import RECOMPUTE
from meshwise.cost.layout import Layouts
from meshwise.cost.train.question import Question
from meshwise.cost.train.step import evaluate, peak
from meshwise.plan.train import search as train_search
from meshwise.plan.train.floors import memory_floor, time_floor
from meshwise.plan.train.search import blocks, search
from support.train_questions import question

WHERE = [
    ("mixtral-8x7b", "16x8xh100-sxm", "megatron"),
    ("deepseek-v3", "32x8xh800-sxm", "hai-llm"),
    ("mixtral-8x7b", "8x8xh100-sxm", "torchtitan"),
    ("llama-3-8b", "tpu-v5e:8x8", "maxtext"),
]


def asked(model: str, cluster: str, framework: str) -> Question:
    return question(model, cluster, framework)


@pytest.mark.parametrize(("model", "cluster", "framework"), WHERE)
def test_no_layout_is_below_its_bounds(model: str, cluster: str, framework: str) -> None:
    q = asked(model, cluster, framework)
    for here, layouts, _ in islice(blocks(q, {}, (), {}), 0, 12, 3):
        seconds, held = evaluate(here, layouts).step, peak(here, layouts)
        floor = time_floor(here, layouts, layouts.recompute)
        assert np.all(floor <= seconds * (1 + 1e-9)), layouts.row(int(np.argmax(floor / seconds)))
        assert np.all(time_floor(here, layouts, np.zeros_like(layouts.recompute)) <= seconds * (1 + 1e-9))
        for how in set(layouts.recompute.tolist()):
            rows = layouts.recompute == how
            least = memory_floor(here, layouts.take(rows), how)
            assert np.all(least <= held[rows] * (1 + 1e-9)), RECOMPUTE[how]


@pytest.mark.parametrize(("model", "cluster", "framework"), WHERE[:1])
def test_a_search_with_bounds_finds_the_same_layouts(
    model: str, cluster: str, framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    q = asked(model, cluster, framework)
    plain = search(q, top=3)
    monkeypatch.setattr(train_search, "MIN_LAYOUTS_FOR_BOUNDS", 1)
    bounded = search(q, top=3)
    assert (bounded.evaluated, bounded.rejected) == (plain.evaluated, plain.rejected)
    assert bounded.cost.step.tolist() == plain.cost.step.tolist()
    for f in fields(Layouts):
        assert getattr(bounded.layouts, f.name).tolist() == getattr(plain.layouts, f.name).tolist()
    limited = search(q, top=1, faster_than=float(plain.cost.step[0]))
    assert limited.evaluated < plain.evaluated / 2
    assert limited.layouts.row(0) == plain.layouts.row(0)
