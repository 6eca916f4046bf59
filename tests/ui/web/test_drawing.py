"""Templates draw tables, bars and diagrams from their data."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise import api
from meshwise.cost.parts import TRAIN_PARTS, TRAIN_TIME
from meshwise.ui.views import plan as plan_views
from meshwise.ui.views import serve as serve_views
from meshwise.ui.views.tables import Column, Table
from meshwise.ui.web import drawing

values = st.dictionaries(st.sampled_from(TRAIN_PARTS), st.floats(0, 1e4), min_size=1)


@given(values, st.floats(1e-3, 1e5))
def test_the_pieces_of_a_bar_lie_side_by_side_and_add_up(parts: dict[str, float], full: float) -> None:
    bar = drawing.bar("tt", parts, full, str, "step")
    widths = sum(piece.width for piece in bar.pieces)
    dropped = sum(100 * value / full for value in parts.values() if 100 * value / full <= drawing.MIN_PIECE_PERCENT)
    assert widths == pytest.approx(100 * sum(parts.values()) / full - dropped, rel=1e-3, abs=0.02)
    for left, right in zip(bar.pieces, bar.pieces[1:], strict=False):
        assert right.x == pytest.approx(left.x + left.width, abs=2e-3)
    shares = [piece.share for piece in bar.largest]
    assert shares == sorted(shares, reverse=True)


@given(st.lists(st.one_of(st.none(), st.integers(-1000, 10**7)), max_size=20), st.booleans())
def test_sorting_keeps_every_row_and_puts_those_without_a_value_last(numbers: list[int | None], down: bool) -> None:
    column: Column[int | None] = Column("tokens/s", lambda n: "" if n is None else f"{n:,} (1-2)")
    order = drawing.ordered(Table([column], numbers), f"{'-' * down}tokens-s")
    assert sorted(order) == list(range(len(numbers)))
    shown = [numbers[i] for i in order]
    known = [n for n in shown if n is not None]
    assert known == sorted(known, reverse=down)
    assert shown[: len(known)] == known


def test_heads_of_a_table_ask_for_one_column_each() -> None:
    trained = api.plan("llama-debug", on="1x8xh100-sxm", batch=64, seq=512, tokens="1B")
    served = api.serve("llama-3.1-8b:q8_0", on="1xrtx4090", users=2)
    for columns in (plan_views.table(trained).columns, serve_views.table(served).columns):
        slugs = [drawing.slug(column.title) for column in columns]
        assert len(set(slugs)) == len(slugs)
        assert all(re.fullmatch(r"[a-z0-9-]+", slug) for slug in slugs)
    money = next(column for column in plan_views.table(trained).columns if column.title == "cost")
    assert drawing.sort_key(money, trained.best)[1] == trained.best.total_dollars


def test_every_part_has_a_colour_and_a_letter_that_can_be_read_on_it() -> None:
    css = drawing.styles()
    faint: list[str] = []
    for part in TRAIN_TIME:
        ink = re.search(rf"\.tt-{part.name}\{{[^}}]*--ink:(#\w+)", css)
        assert ink
        letter = 1.0 if ink[1] == "#fff" else 0.0
        pair = sorted((drawing.luminance(part.colour), letter))
        faint += [part.name] if (pair[1] + 0.05) / (pair[0] + 0.05) < 3 else []
    assert faint == []


def test_an_interval_is_drawn_around_its_value() -> None:
    (low, high) = drawing.whiskers([(90.0, 100.0, 120.0), (95.0, 101.0, 130.0)])
    assert low.low < low.middle < low.high <= 100
    assert 0 <= low.low < high.low < high.middle
