"""Groups of equal layouts: two layouts share a result only where no column that the formula reads differs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwise.cost.train.distinct import Groups
from meshwise.cost.train.step import evaluate
from meshwise.plan.train.search import blocks
from support.train_questions import question

columns = st.integers(1, 40).flatmap(
    lambda length: st.lists(
        st.lists(st.sampled_from((0, 1, 2, 3, 7, 10**9)), min_size=length, max_size=length).map(np.array), min_size=1, max_size=4
    )
)


def _distinct_rows(table: list[np.ndarray]) -> int:
    return len(set(zip(*(column.tolist() for column in table), strict=True)))


@settings(max_examples=60)
@given(columns)
def test_results_per_group_expand_to_the_right_layouts(table: list[np.ndarray]) -> None:
    for groups in (Groups.of(*table), Groups.of_runs(*table)):
        for column in table:
            assert groups.expand(column[groups.rows]).tolist() == column.tolist()
    assert len(Groups.of(*table).rows) == _distinct_rows(table)


@settings(max_examples=60)
@given(columns)
def test_only_consecutive_equal_layouts_form_a_run(table: list[np.ndarray]) -> None:
    changes = [any(column[i] != column[i - 1] for column in table) for i in range(1, len(table[0]))]
    groups = Groups.of_runs(*table)
    assert groups.which.tolist() == np.cumsum([0, *changes]).tolist()


@settings(max_examples=60)
@given(columns)
def test_split_groups_differ_by_group_and_by_choice(table: list[np.ndarray]) -> None:
    choice = np.arange(len(table[0])) % 3
    groups = Groups.of(*table).split_by(choice, 3)
    assert len(groups.rows) == (len(choice) if groups.trivial else _distinct_rows([*table, choice]))
    for column in (*table, choice):
        assert groups.expand(column[groups.rows]).tolist() == column.tolist()


@settings(max_examples=60)
@given(columns)
def test_groups_of_representatives_compose_to_groups_of_layouts(table: list[np.ndarray]) -> None:
    below = Groups.of_runs(*table)
    groups = Groups.of(table[0][below.rows]).compose(below)
    assert groups.expand(table[0][groups.rows]).tolist() == table[0].tolist()
    assert len(groups.rows) == _distinct_rows(table[:1])


def test_expand_row_takes_the_row_chosen_for_each_layout() -> None:
    groups = Groups.of(np.array([4, 5, 4]))
    first, last = groups.expand(np.array([1.0, 2.0])), groups.expand(np.array([10.0, 20.0]))
    picked = groups.expand_row(np.array([[1.0, 2.0], [10.0, 20.0]]), np.array([0, 1, 1]))
    assert picked.tolist() == [first[0], last[1], last[2]]


@pytest.mark.parametrize(
    ("model", "cluster", "framework"),
    [
        ("llama-3-8b", "jean-zay:4", "torchtitan"),
        ("mixtral-8x7b", "2x8xh100-sxm", "megatron"),
        ("llama-debug", "1x8xh100-sxm", "meshwise"),
        ("llama-3-8b", "tpu-v5p:4x4x8", "maxtext"),
    ],
)
def test_layouts_in_the_order_of_a_search_cost_the_same_as_each_alone(model: str, cluster: str, framework: str) -> None:
    """Ranks that share out state on a torus take links from tensor groups: there, cuts that only differ in those are not one."""
    q = question(model, cluster, framework, batch=64)
    _, block, _ = next(iter(blocks(q, {}, (), {})))
    together = evaluate(q, block)
    for row in np.random.default_rng(0).choice(len(block), 60, replace=False).tolist():
        alone = evaluate(q, block.take(np.array([row])))
        for name, value in (alone.time | alone.memory).items():
            assert (together.time | together.memory)[name][row] == pytest.approx(value.item(), rel=1e-12), name
