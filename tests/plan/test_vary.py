"""`axis=values`: valid texts, their meaning, and the errors for mistakes. The questions here are plain dictionaries."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.errors import DoesNotFit, UserError
from meshwise.plan.vary import MAX_POINTS, Axis, Value, parse, variants
from support.command import one_line

Asked = dict[str, Any]


def axis(name: str, **more: Any) -> Axis[Asked]:
    return Axis(
        name,
        "1..4",
        lambda text, ask: int(text),
        lambda v, ask: f"<{v}>",
        lambda ask, v: ask | {name: v, "order": [*ask["order"], name]},
        **more,
    )


def word(text: str, ask: Asked) -> Value:
    if text not in ("red", "blue"):
        raise UserError(f"unknown colour {text!r}")
    return text


def odd(ask: Asked, value: Value) -> Asked:
    if int(value) % 2 == 0:
        raise DoesNotFit(f"{value} is even")
    return ask | {"odd": value}


START: Asked = {"order": []}
AXES: dict[str, Axis[Asked]] = {
    "first": axis("first"),
    "users": axis("users", settles="the number of people"),
    "seats": axis("seats", settles="the number of people"),
    "rate": Axis(
        "rate", "0.5..8", lambda text, ask: float(text), lambda v, ask: str(v), lambda ask, v: ask | {"rate": v}, whole=False
    ),
    "colour": Axis("colour", "red,blue", word, lambda v, ask: str(v), lambda ask, v: ask | {"colour": v}, ordered=False),
    "odd": Axis("odd", "1,3", lambda text, ask: int(text), lambda v, ask: str(v), odd),
}


def values(text: str) -> list[Value]:
    (varied,) = parse([text], AXES, START)
    return list(varied.values)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("users=8", [8]),
        ("users=8,3,5", [8, 3, 5]),
        (" users = 8 , 3 ", [8, 3]),
        ("USERS=8", [8]),
        ("users=8..512", [8, 16, 32, 64, 128, 256, 512]),
        ("users=8..48", [8, 16, 32, 48]),  # the last point is in it
        ("users=8..8", [8]),
        ("users=8..32:8", [8, 16, 24, 32]),
        ("users=8..30:8", [8, 16, 24, 30]),
        ("users=1..64:x4", [1, 4, 16, 64]),
        ("users=2..7:x1.5", [2, 3, 4, 6, 7]),  # whole numbers stay whole: 4.5 is 4, 6 of 4 x 1.5
        ("users=1..4,10,20..40", [1, 2, 4, 10, 20, 40]),
        ("rate=0.5..3", [0.5, 1.0, 2.0, 3.0]),
        ("colour=blue,red", ["blue", "red"]),
    ],
)
def test_lists_and_ranges(text: str, expected: list[Value]) -> None:
    assert values(text) == expected


@given(st.integers(1, 1000), st.integers(1, 10**6))
def test_a_range_has_both_ends_and_never_more_than_doubles(low: int, span: int) -> None:
    found = [int(value) for value in values(f"users={low}..{low + span}")]
    assert (found[0], found[-1]) == (low, low + span)
    assert all(a < b <= 2 * a for a, b in pairwise(found))


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["usres=8"], "there is no axis 'usres'; did you mean 'users'?"),
        (["=8"], "there is no axis ''; axes: first, users, seats, rate, colour, odd"),
        (["users"], "expected values, such as users=1..4"),
        (["users="], "a value is missing"),
        (["users=8,,9"], "a value is missing"),
        (["users=512..8"], "an empty range, 512 is more than 8"),
        (["users=8.."], "a range has two ends"),
        (["users=..8"], "a range has two ends"),
        (["users=8,4,8"], "<8> is given twice"),
        (["users=1..8,4"], "<4> is given twice"),
        (["users=1..100000:1"], f"more than {MAX_POINTS} points"),
        (["users=1..9:0"], f"more than {MAX_POINTS} points"),
        (["users=1..9:x1"], "'x1' is not a factor above 1"),
        (["users=1..9:xx"], "'xx' is not a factor above 1"),
        (["users=1..9:xinf"], "'xinf' is not a factor above 1"),
        (["colour=red..blue"], "colour has no ranges; list its values: colour=red,blue"),
        (["colour=green"], "unknown colour 'green'"),
        (["users=1", "users=2"], "--vary users is given twice"),
        (["users=1", "seats=2"], "--vary users and --vary seats both set the number of people"),
        (["users=1", "first=1", "rate=1"], "--vary is given 3 times; a table has at most 2 axes"),
        (["users=1..200:1", "rate=1,2"], "--vary makes 400 points; at most 256"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line(texts: list[str], words: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(texts, AXES, START)
    assert words in one_line(caught.value)
    assert caught.value.exit_code == 2


def test_two_axes_make_a_grid_the_last_fastest_and_change_in_the_order_of_the_axes() -> None:
    varied = parse(["users=1,2", "first=7,8"], AXES, START)
    found = variants(START, varied, AXES)
    assert [variant.labels for variant in found] == [("<1>", "<7>"), ("<1>", "<8>"), ("<2>", "<7>"), ("<2>", "<8>")]
    assert found[2].values == {"users": 2, "first": 7}
    assert found[2].ask == {"order": ["first", "users"], "users": 2, "first": 7}


def test_an_impossible_point_is_kept_with_its_reason() -> None:
    found = variants(START, parse(["odd=1,2,3"], AXES, START), AXES)
    assert [(variant.ask is None, variant.refusal) for variant in found] == [(False, ""), (True, "2 is even"), (False, "")]
