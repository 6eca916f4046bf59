"""Records that come back from JSON: only as their fields say, and with a reason where they do not."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from meshwise.catalogue import records
from meshwise.errors import UserError


@dataclass(frozen=True)
class Inner:
    name: str
    size: float | None = None


@dataclass(frozen=True)
class Outer:
    parts: tuple[Inner, ...]
    counts: dict[str, int]
    best: Inner
    flag: bool = False


GOOD = {"parts": [{"name": "a", "size": 1}], "counts": {"x": 2}, "best": {"name": "b"}}


def test_nested_records_are_restored() -> None:
    assert records.restore(Outer, GOOD) == Outer((Inner("a", 1.0),), {"x": 2}, Inner("b"))


@pytest.mark.parametrize(
    "more",
    [
        {"parts": [1]},
        {"parts": {"name": "a"}},
        {"counts": {"x": 1.5}},
        {"counts": []},
        {"best": None},
        {"best": {"name": "b", "size": float("nan")}},
        {"best": {"name": 3}},
        {"flag": 1},
        {"more": 1},
    ],
)
def test_a_value_of_another_type_is_refused(more: dict[str, object]) -> None:
    with pytest.raises(TypeError):
        records.restore(Outer, GOOD | more)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not valid JSON"),
        ("[]", "not a plan; make one with"),
        ('{"a": 1}', "not a plan; make one with"),
        ('{"format": 9}', "a plan of format 9; this version reads format 1"),
        ('{"format": 1, "kind": "serve"}', "a plan for serving; expected a plan for training"),
    ],
)
def test_a_file_that_is_not_the_expected_plan_is_refused_with_the_reason(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "plan.json"
    file.write_text(text)
    with pytest.raises(UserError, match=words):
        records.plan_table(file, 1)
