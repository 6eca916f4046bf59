"""A table someone wrote by hand: every mistake is reported in one line, with its place and what was expected."""

from dataclasses import dataclass, field
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.catalogue import records
from meshwise.errors import UserError
from meshwise.units import Bytes, Seconds
from support.command import one_line


@dataclass(frozen=True, kw_only=True)
class Wheel:
    kind: Literal["steel", "rubber"]
    delay: Seconds | None = None


@dataclass(frozen=True, kw_only=True)
class Cart:
    key: str = field(default="", metadata={"derived": True})
    name: str
    load: Bytes
    wheels: tuple[Wheel, ...] = ()
    loads: dict[Literal["left", "right"], Bytes] = field(default_factory=dict)
    spare: Wheel | None = None
    seats: int = 1
    roofed: bool = False

    def __post_init__(self) -> None:
        if self.name == "sledge":
            raise UserError("a sledge is no cart")


GOOD = {"name": "mule", "load": "2KiB"}


def refused(table: object) -> str:
    with pytest.raises(UserError) as caught:
        records.read(Cart, table, "cart.toml")
    message = one_line(caught.value)
    assert message.startswith("cart.toml: ")
    return message.removeprefix("cart.toml: ")


def test_units_lists_and_tables_are_read() -> None:
    table = GOOD | {
        "wheels": [{"kind": "steel"}, {"kind": "rubber", "delay": "2ms"}],
        "loads": {"left": "1kB"},
        "spare": {"kind": "steel"},
        "seats": 4,
        "roofed": True,
    }
    assert records.read(Cart, table, "cart.toml") == Cart(
        name="mule",
        load=2048,
        wheels=(Wheel(kind="steel"), Wheel(kind="rubber", delay=0.002)),
        loads={"left": 1000.0},
        spare=Wheel(kind="steel"),
        seats=4,
        roofed=True,
    )


def test_an_omitted_key_keeps_its_default() -> None:
    assert records.read(Cart, GOOD, "cart.toml") == Cart(name="mule", load=2048)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"laod": 1}, "unknown key 'laod'; did you mean 'load'?"),
        ({"zzz": 1}, "unknown key 'zzz'; known: name, load, wheels, loads, spare, seats, roofed"),
        ({"key": "mine"}, "unknown key 'key'"),
        ({"name": 3}, "name: expected text in quotes, found 3"),
        ({"load": "2s"}, "load: '2s' is not a size in bytes but a time"),
        ({"load": True}, "load: True is not a size in bytes"),
        ({"wheels": {"kind": "steel"}}, "wheels: expected a list, found {'kind': 'steel'}"),
        ({"wheels": [{"kind": "steel"}, 7]}, "wheels[1]: expected a table, found 7"),
        ({"wheels": [{"kind": "stel"}]}, "wheels[0]: kind: 'stel' is not one of steel, rubber; did you mean 'steel'?"),
        ({"wheels": [{"kind": []}]}, "wheels[0]: kind: [] is not one of steel, rubber"),
        ({"spare": {}}, "spare: the key 'kind' is missing"),
        ({"spare": {"kind": "steel", "delay": "1B"}}, "spare: delay: '1B' is not a time"),
        ({"loads": 3}, "loads: expected a table, found 3"),
        ({"loads": {"lfet": 1}}, "loads: 'lfet' is not one of left, right; did you mean 'left'?"),
        ({"loads": {"left": "1"}}, "loads.left: '1' is not a size in bytes: it has no unit"),
        ({"seats": 0}, "seats: expected a whole number from 1 to 1e9, found 0"),
        ({"seats": -3}, "seats: expected a whole number from 1 to 1e9, found -3"),
        ({"seats": 10**10}, "seats: expected a whole number from 1 to 1e9, found 10000000000"),
        ({"seats": 2.0}, "seats: expected a whole number, found 2.0"),
        ({"seats": True}, "seats: expected a whole number, found True"),
        ({"roofed": 1}, "roofed: expected true or false, found 1"),
        ({"name": "sledge"}, "a sledge is no cart"),
    ],
)
def test_a_mistake_is_reported_with_its_place(change: dict[str, object], message: str) -> None:
    assert refused(GOOD | change).startswith(message)


def test_a_missing_key_is_named() -> None:
    assert refused({"name": "mule"}) == "the key 'load' is missing"


@pytest.mark.parametrize("table", [None, [], "cart", 3])
def test_anything_but_a_table_is_refused(table: object) -> None:
    assert refused(table) == f"expected a table, found {table!r}"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["kind", "delay", "left", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    st.dictionaries(
        st.sampled_from(["wheels", "loads", "spare", "seats", "roofed", "key", "lod"]) | st.text(), VALUES, max_size=3
    )
)
def test_any_table_is_a_record_or_one_line_of_error(change: dict[str, object]) -> None:
    try:
        found = records.read(Cart, GOOD | change, "cart.toml")
    except UserError as error:
        message = one_line(error)
        assert message.startswith("cart.toml: ")
    else:
        assert found.load >= 0
        assert found.key == ""
