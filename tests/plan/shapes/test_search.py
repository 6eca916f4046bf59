"""The shape search: exact for the best shapes, however many layouts it does not evaluate."""

from dataclasses import fields, replace

import numpy as np
import pytest

from meshwise.catalogue.calibrations import Calibration
from meshwise.cost.axes import RECOMPUTE
from meshwise.cost.layout import Layouts
from meshwise.cost.train.question import Question
from meshwise.cost.train.step import evaluate, peak
from meshwise.plan.shapes import search as shape_search
from meshwise.plan.shapes.search import Fastest, Row, fastest, rule
from meshwise.plan.shapes.stack import Shapes, Stack, base_of, near, one_model, parse, shapes_of
from meshwise.plan.train.floors import memory_floor, time_floor
from meshwise.plan.train.search import blocks, search
from support.train_questions import found_model, question

pytestmark = pytest.mark.slow

WHERE = [
    ("megatron", "jean-zay:4"),
    ("megatron-deepspeed", "jean-zay:4"),
    ("torchtitan", "2x8xh100-sxm"),
    ("nanotron", "2x8xh100-sxm"),
    ("fsdp", "2x(4xrtx3090)@10Gbps"),
    ("maxtext", "tpu-v5e:4x4"),
    ("hai-llm", "2x(2x8xh100-sxm)@100Gbps,20ms"),
]


def asked(
    framework: str = "megatron", cluster: str = "jean-zay:4", params: float = 8e9, every: int = 7, like: str = "bloom-176b"
) -> tuple[Question, Stack]:
    """Return a question with every n-th shape near a parameter count."""
    base = base_of(found_model(like), 50_000)
    shapes = near(base, params)
    calibration = Calibration(activations=1.2)
    return replace(question(like, cluster, framework, calibration), model=base), Stack(
        base, shapes.take(slice(None, None, every))
    )


def one(q: Question, stack: Stack, i: int) -> Question:
    return replace(q, model=one_model(stack.base, stack.shapes, i))


@pytest.mark.parametrize(("framework", "cluster"), WHERE)
def test_the_best_of_each_shape_is_what_a_search_of_it_alone_finds(framework: str, cluster: str) -> None:
    q, stack = asked(framework, cluster, every=37)
    found = fastest(q, stack, {}, len(stack.shapes))
    alone = [search(one(q, stack, i), top=1) for i in range(len(stack.shapes))]
    assert found.candidates == sum(each.evaluated for each in alone)
    assert found.params.tolist() == [one(q, stack, i).model.params for i in range(len(stack.shapes))]
    for i, each in enumerate(alone):
        assert np.isfinite(found.step[i]) == (len(each.layouts) > 0)
        if len(each.layouts):
            again = evaluate(one(q, stack, i), found.layouts.take(np.array([i])))
            assert again.step[0] == pytest.approx(each.cost.step[0], rel=1e-12)
            assert again.peak[0] <= q.chip.memory * (1 - q.work.reserve)
    assert np.isfinite(found.step).any()


@pytest.mark.parametrize("top", [1, 5])
@pytest.mark.parametrize(("framework", "cluster"), WHERE)
def test_the_best_shapes_are_exact_and_few_layouts_are_evaluated(
    framework: str, cluster: str, top: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, stack = asked(framework, cluster)
    exact = fastest(q, stack, {}, len(stack.shapes))
    evaluated = 0

    def counted(q: Question, layouts: Layouts) -> object:
        nonlocal evaluated
        evaluated += len(layouts)
        return evaluate(q, layouts)

    monkeypatch.setattr(shape_search, "evaluate", counted)
    monkeypatch.setattr(shape_search, "LAYOUTS_PER_ROUND", 64)
    found = fastest(q, stack, {}, top)
    best = exact.order()[:top]
    assert found.order()[:top].tolist() == best.tolist()
    assert found.step[best].tolist() == exact.step[best].tolist()
    for f in fields(Layouts):
        assert getattr(found.layouts, f.name)[best].tolist() == getattr(exact.layouts, f.name)[best].tolist()
    assert found.candidates == exact.candidates
    # without tensor ranks there are fewer cuts, and bounds tell less of them apart: 72% of HAI-LLM's are evaluated
    assert evaluated < found.candidates * (3 / 5 if q.work.framework.tensor_parallel else 4 / 5)


@pytest.mark.parametrize(("framework", "cluster"), WHERE)
def test_no_layout_is_below_its_lower_bounds_on_time_and_memory(framework: str, cluster: str) -> None:
    q, stack = asked(framework, cluster, every=41)
    number = 0
    for here, layouts, _ in blocks(replace(q, model=stack), {}, (), {}):
        cost = evaluate(here, layouts)
        assert np.all(time_floor(here, layouts, layouts.recompute) <= cost.step * (1 + 1e-12))
        for recompute in range(len(RECOMPUTE)):
            rows = layouts.recompute == recompute
            few = replace(here, model=here.model.take(rows))
            if rows.any():
                assert np.all(memory_floor(few, layouts.take(rows), recompute) <= peak(few, layouts.take(rows)) * (1 + 1e-12))
                assert np.all(
                    time_floor(few, layouts.take(rows), np.zeros(len(few.model.variant), int)) <= cost.step[rows] * (1 + 1e-12)
                )
        number += len(layouts)
    assert number > 100


@pytest.mark.slow
@pytest.mark.parametrize("pairs", [1, 1000])
def test_the_result_does_not_depend_on_how_many_are_evaluated_at_once(pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    q, stack = asked(every=23)
    expected = fastest(q, stack, {}, 3)
    monkeypatch.setattr("meshwise.plan.train.search.BLOCK_PAIRS", pairs)
    monkeypatch.setattr("meshwise.plan.train.search.BLOCK_SIZE", 100)
    found = fastest(q, stack, {}, 3)
    best = expected.order()[:3]
    assert found.order()[:3].tolist() == best.tolist()
    assert found.step[best].tolist() == expected.step[best].tolist()
    assert (found.candidates, found.rejected) == (expected.candidates, expected.rejected)


def test_only_layouts_that_a_user_allows_are_searched() -> None:
    q, stack = asked(every=11)
    found = fastest(q, stack, {"tp": (4, 4), "mbs": (2, 2), "recompute": (2, 2)}, 5)
    best = found.layouts.take(found.order()[:5])
    assert set(best.tp.tolist()) == {4}
    assert set(best.mbs.tolist()) == {2}
    assert set(best.recompute.tolist()) == {2}
    assert found.candidates < fastest(q, stack, {}, 5).candidates


def test_shapes_are_ordered_by_seconds_per_parameter_and_equals_by_their_numbers() -> None:
    numbers = [(256, 4, 4), (256, 2, 4), (256, 2, 2), (128, 8, 2)]
    shapes = shapes_of([{"hidden": h, "layers": n, "heads": a, "kv_heads": a, "ffn": 512} for h, n, a in numbers])
    params, step = np.array([2.0, 1.0, 1.0, 1.0]), np.array([2.0, 1.0, 1.0, np.inf])
    found = Fastest(shapes, params, step, Layouts.of(tp=np.ones(4, int)), 4, {})
    assert found.per_parameter.tolist()[:3] == [1, 1, 1]
    assert found.order().tolist() == [2, 1, 0]  # fewer heads, then fewer layers; a shape that does not fit is left out
    faster = Fastest(shapes, params, np.array([1.9, 1.0, 1.0, 0.5]), found.layouts, 4, {})
    assert faster.order().tolist()[:2] == [3, 0]


def test_a_row_is_the_shape_as_a_model_of_its_own() -> None:
    q, _ = asked()
    stack = Stack(q.model, parse(q.model, ("4096x30x32", "4096x30x64")))
    found = fastest(q, stack, {}, 2)
    row = Row.of(q, stack, found, 1, {})
    assert row.name == "4096x30x64"
    assert row.choice is not None
    assert row.choice.step == pytest.approx(found.step[1], rel=1e-12)
    assert row.per_parameter == pytest.approx(found.per_parameter[1], rel=1e-12)
    assert row.to_json()["params"] == one(q, stack, 1).model.params


def test_a_shape_that_fits_nowhere_says_why() -> None:
    q, _ = asked(cluster="8xrtx4090")
    stack = Stack(q.model, parse(q.model, ("1024x16x16", "65536x99x256")))
    rows = [Row.of(q, stack, fastest(q, stack, {}, 2), i, {}) for i in (0, 1)]
    assert rows[0].choice is not None
    assert rows[1].choice is None
    assert rows[1].per_parameter == np.inf
    assert rows[1].to_json()["seconds_per_parameter"] is None
    (fault,) = rows[1].faults
    assert fault.words.startswith("65536x99x256 does not fit on 8xrtx4090: the smallest of ")
    assert fault.cost is None


def test_the_rule_says_what_the_best_have_in_common() -> None:
    sizes = [(4096, 30, 32, 16384), (8192, 40, 64, 28672)]
    shapes = shapes_of([{"hidden": h, "layers": n, "heads": a, "kv_heads": a, "ffn": f} for h, n, a, f in sizes])
    found = Fastest(shapes, np.ones(2), np.ones(2), Layouts.of(tp=np.array([4, 8])), 2, {})
    assert rule(found, np.array([0, 1])) == (
        "The 2 fastest have heads of 128, all multiples of 8; 137 to 205 hidden units per layer; "
        "an FFW of 3.5 to 4 times the hidden size; hidden / tp a multiple of 1024."
    )


def test_no_shape_is_listed_where_none_fits() -> None:
    q, _ = asked(cluster="1xrtx4090")
    stack = Stack(q.model, near(q.model, 1e11).take(slice(0, 5)))
    found = fastest(q, stack, {}, 5)
    assert not len(found.order())
    assert isinstance(found.shapes, Shapes)
