"""A layout is called better only where the difference is larger than its uncertainty."""

from meshwise.audit.check.difference import DIFFERENCE_STD, interval, is_faster, words


def test_a_small_gain_is_within_the_uncertainty_and_a_large_one_is_not() -> None:
    assert not is_faster(1.01)
    assert not is_faster(1.15)
    assert is_faster(1.25)


def test_the_interval_is_narrower_than_that_of_two_independent_levels() -> None:
    low, high = interval(1.0)
    assert low * high == 1.0
    assert 1.1 < high < 1.25  # 90% of differences; levels have +-20% each, so +-29% together
    assert DIFFERENCE_STD < 0.1


def test_a_gain_is_told_with_its_interval() -> None:
    assert words(1.43) == "43% faster (90%: 21% to 69%)"
