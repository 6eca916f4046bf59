"""Tables and charts at any width: columns are dropped, words wrap, and no number is ever cut."""

import csv
import io
import re
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from meshwise import api
from meshwise.plan.ask import ServeAsk, TrainAsk
from meshwise.ui.views import plan, serve, serve_points, shapes, vary
from meshwise.ui.views.chart import chart
from meshwise.ui.views.tables import Column, Table, as_csv, bullets, wrapped

NUMBER = re.compile(r"\d(?:[\d.,]*\d)?")
WIDTHS = (40, 50, 60, 72, 80, 90, 100, 120, 160, 200)
WIDE = 1000


def shown(view: RenderableType, width: int) -> str:
    """Return the text that a console of this width prints."""
    console = Console(width=width, markup=False, emoji=False, highlight=False)
    with console.capture() as captured:
        console.print(view)
    return captured.get()


def numbers(text: str) -> set[str]:
    return set(NUMBER.findall(text))


def fully(table: Table[Any]) -> set[str]:
    """Every number of a table, in full cells and in short ones."""
    return {one for short in (False, True) for one in numbers(shown(table.whole(short=short), WIDE))}


# Questions whose answers have long layouts, several requests, prices, targets, points without an answer.

TRAIN: dict[str, dict[str, Any]] = {
    "bloom": {
        "model": "bloom-176b",
        "on": "jean-zay:48",
        "batch": "2048x2048",
        "framework": "megatron-deepspeed",
        "tokens": "366B",
    },
    "long layouts": {"model": "llama-3-70b", "on": "64x8xh100-sxm", "batch": "512x8192", "tokens": "15T", "price": "$2.5/h"},
    "offload": {"model": "llama-3-70b", "on": "4x8xa100-40gb-sxm", "batch": "256", "framework": "fsdp"},
    "experts": {"model": "mixtral-8x7b", "on": "16x8xh100-sxm", "batch": "4M", "tokens": "10T"},
    "tiny": {"model": "llama-debug", "on": "8xh100-sxm", "batch": "64x512", "tokens": "9876.54321T"},
}
SERVE: dict[str, dict[str, Any]] = {
    "rig": {"model": "llama-3.3-70b:q4_k_m", "on": "4xrtx4060ti-16gb", "context": "16k"},
    "targets": {"model": "llama-3.3-70b", "on": "8xh100-sxm", "users": 32, "ttft": "1s", "per_user": 15},
    "prices": {"model": "llama-3.3-70b:q4_k_m", "on": "2x(4xrtx3090)@10Gbps", "users": 4, "price": "$12345/h", "measured": 3},
    "long layouts": {"model": "mixtral-8x7b:q4_k_m", "on": "2xrtx3060-12gb", "context": "4k"},
}


@cache
def train(name: str) -> Any:
    made = api.plan(**TRAIN[name])
    return made, made.explain()


@cache
def served(name: str) -> Any:
    return api.serve(**SERVE[name])


def check(view: Any, known: set[str], width: int) -> None:
    """`view` at a width has no ellipsis, no line that is too long, and only numbers that the widest view has."""
    text = shown(view(width), width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    assert numbers(text) <= known


@pytest.mark.parametrize("verbose", [False, True], ids=["short", "verbose"])
@pytest.mark.parametrize("name", TRAIN)
def test_a_training_plan_keeps_its_numbers_at_every_width(name: str, verbose: bool) -> None:
    made, why = train(name)
    known = fully(plan.table(made)) | numbers(shown(plan.plan_view(made, WIDE, why=why, verbose=verbose), WIDE))
    for width in WIDTHS:
        check(lambda width: plan.plan_view(made, width, why=why, verbose=verbose), known, width)


@pytest.mark.parametrize("verbose", [False, True], ids=["short", "verbose"])
@pytest.mark.parametrize("name", SERVE)
def test_a_serving_plan_keeps_its_numbers_at_every_width(name: str, verbose: bool) -> None:
    made = served(name)
    known = fully(serve.table(made)) | numbers(shown(serve.plan_view(made, WIDE, verbose=verbose), WIDE))
    for width in WIDTHS:
        check(lambda width: serve.plan_view(made, width, verbose=verbose), known, width)


POINTS = {
    "nodes": (vary.points_view, lambda: api.vary(TrainAsk(**TRAIN["long layouts"]), "nodes=1,8..64")),
    "grid": (vary.points_view, lambda: api.vary(TrainAsk(**TRAIN["tiny"]), "chip=h100-sxm,a100-40gb-sxm", "batch=64,128")),
    "no tokens": (vary.points_view, lambda: api.vary(TrainAsk("llama-3-8b", on="8xh100-sxm", batch="64"), "nodes=1,2")),
    "cheapest": (vary.cheapest_view, lambda: api.cheapest(TrainAsk("llama-3-8b", batch="1M", tokens="100B", within="30d"))),
    "cards": (serve_points.points_view, lambda: api.vary_serve(ServeAsk(**SERVE["rig"]), "gpus=2..6")),
    "requests": (serve_points.points_view, lambda: api.vary_serve(ServeAsk(**SERVE["targets"]), "users=8,16", "kv=f16,fp8")),
    "shapes": (
        shapes.shapes_view,
        lambda: api.shapes(on="jean-zay:2", batch="256x2048", framework="megatron-deepspeed", params="7B", vocab=32000),
    ),
}


@pytest.mark.parametrize("name", POINTS)
def test_many_points_keep_their_numbers_at_every_width(name: str) -> None:
    view, ask = POINTS[name]
    found = ask()
    known = numbers(shown(view(found, WIDE), WIDE))
    for width in WIDTHS[2:]:
        # short layouts have 'z1' for 'zero1': the numbers are the same
        check(lambda width: view(found, width), known, width)


# Any table.

WORDS = st.text("abc def", min_size=1, max_size=40)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[Column[int]], int, int]:
    """Columns, rows and a width that the numbers of rank 0 fit into."""
    number = draw(st.integers(1, 6))
    first = draw(st.lists(WORDS, min_size=number, max_size=number))
    columns: list[Column[int]] = [Column("words", first.__getitem__, text=True)]
    for i in range(draw(st.integers(1, 7))):
        cells = draw(st.lists(st.integers(10**5, 10**9).map(lambda n: f"{n:,}"), min_size=number, max_size=number))
        columns.append(Column(f"n{i}", cells.__getitem__, rank=draw(st.integers(0, 3)) if i else 0))
    least = sum(max(len(one.cell(i)) for i in range(number)) + 2 for one in columns if not one.rank)
    return columns, number, draw(st.integers(least + 10, least + 60))


@given(tables())
def test_any_table_fits_and_shows_the_numbers_of_rank_0_whole(drawn: tuple[list[Column[int]], int, int]) -> None:
    columns, number, width = drawn
    text = shown(Table(columns, range(number)).fitted(width), width)
    assert max(map(len, text.splitlines())) <= width
    every = {one.cell(i) for one in columns[1:] for i in range(number)}
    assert numbers(text) - numbers("".join(one.title for one in columns)) <= every
    for one in columns[1:]:
        assert one.rank or all(one.cell(i) in text for i in range(number))


@given(tables())
def test_a_wider_terminal_never_shows_fewer_columns(drawn: tuple[list[Column[int]], int, int]) -> None:
    columns, number, width = drawn
    shown_columns = [len(Table(columns, range(number)).fitted(some).columns) for some in range(width, width + 60, 10)]
    assert all(narrow <= wide for narrow, wide in pairwise(shown_columns))


def test_columns_of_the_highest_rank_are_dropped_first_and_short_cells_come_before_that() -> None:
    columns: list[Column[int]] = [
        Column("layout", lambda _: "a long name of a layout", text=True, short=lambda _: "short name"),
        Column("kept", lambda _: "1,111"),
        Column("second", lambda _: "2,222", rank=1),
        Column("first", lambda _: "3,333", rank=2),
    ]

    def titles(width: int) -> list[str]:
        return [str(column.header) for column in Table(columns, [0]).fitted(width).columns]

    assert "a long name" in shown(Table(columns, [0]).fitted(60), 60)
    assert titles(40) == ["layout", "kept", "second", "first"]
    assert "short name" in shown(Table(columns, [0]).fitted(40), 40)
    assert titles(28) == ["layout", "kept", "second"]
    assert titles(20) == ["layout", "kept"]


@given(
    st.lists(st.floats(0.1, 1e6), min_size=1, max_size=8),
    st.integers(1, 3),
    st.integers(40, 200),
    st.booleans(),
)
def test_any_chart_fits_and_its_numbers_are_whole(values: list[float], number: int, width: int, marked: bool) -> None:
    panels: Any = [(f"figure {i}", lambda c: c, lambda c: f"{c:,.1f}") for i in range(number)]
    points = [([str(i)], value, "cheapest" if marked and not i else "") for i, value in enumerate(values)]
    text = shown(chart(["nodes"], points, panels, width), width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    assert all(f" {value:,.1f}" in text for value in values)


@given(WORDS, st.integers(10, 100))
def test_a_wrapped_sentence_keeps_its_words(text: str, width: int) -> None:
    assert wrapped(text, width, "- ", "  ").plain.split() == ["-", *text.split()]


def test_reasons_stop_where_the_lines_are_used_up_but_not_before_the_third() -> None:
    long, short = "word " * 40, "A short reason."
    assert [text.plain[:3] for text in bullets([long] * 5, 80)] == ["- w"] * 3
    assert len(bullets([short] * 5, 80)) == 5
    assert [text.plain[:6] for text in bullets([short, "  inner"], 80)] == ["- A sh", "    in"]


def test_a_cell_of_csv_is_no_formula() -> None:
    """Names in files of others end up in spreadsheets."""
    rows = [{"name": text, "number": -1.5} for text in ("=1+2", "@a", "-cmd|' /C calc'!A0", "+a", "-5", "+1.5", "a=b", "")]
    names = [row["name"] for row in csv.DictReader(io.StringIO(as_csv(rows)))]
    assert names == ["'=1+2", "'@a", "'-cmd|' /C calc'!A0", "'+a", "-5", "+1.5", "a=b", ""]
    assert as_csv(rows[:1]).endswith("-1.5")
