"""The order of samples: each once per epoch, in an order that depends on seed and epoch."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from meshwise.workers.trainer.contract.files.order import permute, shuffled_index

COUNTS = st.integers(1, 700)
KEYS = st.integers(0, 2**64 - 1)


@given(COUNTS, KEYS)
def test_a_permutation_holds_every_number_once(count: int, key: int) -> None:
    assert sorted(permute(i, count, key) for i in range(count)) == list(range(count))


@given(st.integers(1, 2**48), KEYS, st.data())
def test_numbers_of_large_ranges_stay_within_them_and_apart(count: int, key: int, data: st.DataObject) -> None:
    some = data.draw(st.lists(st.integers(0, count - 1), unique=True, max_size=20))
    found = [permute(i, count, key) for i in some]
    assert all(0 <= place < count for place in found)
    assert len(set(found)) == len(some)


@given(COUNTS, st.integers(0, 1000), st.integers(0, 5))
def test_every_epoch_reads_every_sample_once(count: int, seed: int, epoch: int) -> None:
    read = [shuffled_index(seed, number, count) for number in range(epoch * count, (epoch + 1) * count)]
    assert sorted(read) == list(range(count))


def test_epochs_and_seeds_differ_in_order() -> None:
    orders = {tuple(shuffled_index(seed, epoch * 100 + i, 100) for i in range(100)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25
    assert tuple(range(100)) not in orders


def test_neighbours_stay_adjacent_only_by_chance() -> None:
    """In a random permutation of n, one pair of neighbours in n / 2 differs by one: about two pairs in all."""
    found = [shuffled_index(0, i, 10_000) for i in range(10_000)]
    assert sum(abs(a - b) == 1 for a, b in pairwise(found)) < 12
    # the mean of the first half of a permutation of n lies near n / 2; its deviation is n / sqrt(12 n) x about 1: 29 here
    assert abs(sum(found[:5000]) / 5000 - 5000) < 150
