"""Findings are sorted by certainty, similar ones are merged, and figures are written in sentences."""

import math

from meshwise.audit.finding import Finding, near, number, percent, sort_findings


def test_similar_findings_of_one_file_are_merged():
    each = [
        Finding(rule="r", certainty="unusual", where=(f"x: line {i}",), message=f"a loss of {i}", arithmetic="") for i in range(5)
    ]
    (one,) = sort_findings(each)
    assert len(one.where) == 5
    assert "the first of 5 such findings" in one.message


def test_two_similar_findings_stay_apart_and_equal_ones_are_one():
    each = [
        Finding(rule="r", certainty="unusual", where=(f"x: line {i}",), message=f"a loss of {i}", arithmetic="")
        for i in (1, 2, 2)
    ]
    assert sort_findings(each) == each[:2]


def test_the_most_certain_finding_comes_first():
    levels = ("unusual", "certain", "likely")
    found = [Finding(rule=level, certainty=level, where=("x: line 1",), message="", arithmetic="") for level in levels]
    assert [one.certainty for one in sort_findings(found)] == ["certain", "likely", "unusual"]


def test_small_shares_keep_two_digits():
    assert [percent(share) for share in (0.348, 0.0015, 0.000026)] == ["34.8%", "0.15%", "0.0026%"]


def test_numbers_are_written_with_separators_or_five_digits():
    assert [number(value) for value in (16384.0, 7.5, 0.54911111, 1.5e13, math.nan)] == [
        "16,384",
        "7.5",
        "0.54911",
        "1.5e+13",
        "?",
    ]


def test_nan_agrees_with_nothing():
    assert near(100, 103, 0.03)
    assert not near(100, 104, 0.03)
    assert not near(math.nan, math.nan, 1.0)
