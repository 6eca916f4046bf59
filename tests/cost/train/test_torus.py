"""Mesh axes on a torus: how many links a group has, by the facts of How to Scale Your Model (jax-ml.github.io/scaling-book)."""

import math
from itertools import permutations
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.catalogue.calibrations import Calibration
from meshwise.catalogue.chips import find_chip
from meshwise.cost.layout import Layouts
from meshwise.cost.train.comm import CONGESTION_PER_DOUBLING, Communicators, Fabric
from meshwise.cost.train.torus import Mesh, Torus
from meshwise.plan.train.search import divisors
from support.every import check_every
from support.train_questions import found_cluster

ICI = 90e9
"""Bytes per second of one link of a v5p, one direction."""
DCN = 6.25e9
"""Bytes per second of a chip to other pods."""
POD = Torus.of((16, 20, 28), (True, True, True), ICI)
IDEAL = Calibration(link=1.0, network=1.0, link_latency=0.0, network_latency=0.0)

TP, CP, SHARD, REPLICATE, PP = range(5)


def mesh(torus: Torus = POD, tp: int = 1, cp: int = 1, shard: int = 1, replicate: int = 1, pp: int = 1) -> Mesh:
    return Mesh.of(torus, tuple(np.array([n]) for n in (tp, cp, shard, replicate, pp)))


def links(first: int, last: int, torus: Torus = POD, **axes: int) -> float:
    return float(mesh(torus, **axes).links(first, last)[0])


def communicators(cluster: str, **axes: Any) -> Communicators:
    return Communicators.of(Fabric.of(found_cluster(cluster), IDEAL), Layouts.of(**axes).as_floats())


# The scaling book's own numbers.


def test_fsdp_over_a_whole_pod_has_the_six_links_of_a_chip() -> None:
    """Part 6: 850 tokens per chip hide FSDP over three axes, 459e12 / (6 x 90e9)."""
    assert links(CP, SHARD, shard=8960) == 6
    assert 459e12 / communicators("tpu-v5p:16x20x28", dp_shard=8960).shard.bandwidth.item() == pytest.approx(850, rel=1e-3)


@pytest.mark.parametrize(("axes", "tokens"), [((28,), 2550), ((28, 20), 1275), ((28, 20, 16), 850)])
def test_k_closed_axes_have_k_times_the_bandwidth_of_one(axes: tuple[int, ...], tokens: int) -> None:
    """Part 5: FSDP is bound by links below 2550 / M tokens per chip of a v5p, with M axes."""
    torus = Torus.of(axes, (True,) * len(axes), ICI)
    assert 459e12 / (links(CP, SHARD, torus, shard=prod(axes)) * ICI) == pytest.approx(tokens, rel=1e-3)


def test_a_ring_around_an_axis_has_two_links_and_a_line_has_one() -> None:
    """Part 3: without the wraparound a collective takes twice as long."""
    line = Torus.of((16,), (True,), ICI)
    assert links(TP, TP, line, tp=16, shard=1) == 2
    assert links(TP, TP, line, tp=4, shard=4) == 1
    assert communicators("tpu-v5p:16x20x28", tp=16, dp_shard=560).tp.bandwidth.item() == 2 * ICI


def test_an_axis_that_does_not_close_has_one_link() -> None:
    assert links(CP, SHARD, Torus.of((4, 4), (False, False), ICI), shard=16) == 2
    assert links(CP, SHARD, Torus.of((4, 4), (True, False), ICI), shard=16) == 3


def test_interleaved_groups_share_the_links() -> None:
    """tp 4 on the ring of 16: every fourth chip is a data group, which goes round too; four groups have two links."""
    ring = Torus.of((16,), (True,), ICI)
    assert links(CP, SHARD, ring, tp=4, shard=4) == 2 / 4
    assert links(CP, SHARD, Torus.of((16,), (False,), ICI), tp=4, shard=4) == 1 / 4
    assert links(CP, SHARD, tp=4, shard=2240) in (2 + 2 + 2 / 4, 2 + 2 + 1)  # whichever axis tp lies on: no more than it leaves


def test_an_all_to_all_moves_an_eighth_of_the_ring_over_each_link() -> None:
    """Part 3: a quarter of an all-gather of the same bytes, which on a ring of n takes n / 2 per byte and link; a line twice that."""

    def check(length: int, closed: bool, cost: float) -> None:
        torus = Torus.of((length,), (closed,), ICI)
        assert mesh(torus, shard=length).crossing(CP, SHARD).item() == cost

    check_every(check, [(16, True, 16 / 8), (8, True, 8 / 8), (16, False, 16 / 4), (2, False, 0.5)])


def test_the_longest_axis_limits_an_all_to_all() -> None:
    assert mesh(shard=8960).crossing(CP, SHARD).item() == 28 / 8


def test_a_ring_takes_half_its_length_in_hops_and_a_line_its_whole_length() -> None:
    """Part 3: a hop takes about a microsecond, and a ring needs half its length."""
    assert mesh(shard=8960).hops(CP, SHARD).item() == 8 + 10 + 14
    assert mesh(Torus.of((4, 4), (False, False), ICI), shard=16).hops(CP, SHARD).item() == 3 + 3


# Which axes of a slice wrap round.


def test_an_axis_wraps_round_where_the_chip_says_so() -> None:
    def check(chip: str, shape: tuple[int, ...], closed: tuple[bool, ...]) -> None:
        assert find_chip(chip).closes(shape) == closed

    check_every(
        check,
        [
            ("tpu-v5e", (16, 16), (True, True)),  # parts 2 and 3: v5e and v6e wrap only the whole 16 of a pod
            ("tpu-v5e", (8, 16), (False, True)),
            ("tpu-v6e", (4, 8), (False, False)),
            ("tpu-v5p", (16, 20, 28), (True, True, True)),  # cubes of 4x4x4 joined by optical switches
            ("tpu-v5p", (4, 8, 12), (True, True, True)),
            ("tpu-v5p", (2, 2, 4), (False, False, True)),
            ("tpu-v4", (4, 6, 1), (True, False, False)),
            ("tpu-v7", (8, 8, 2), (True, True, False)),
            ("h100-sxm", (8,), (False,)),  # no torus
        ],
    )


def test_an_axis_of_one_carries_nothing_and_of_two_has_one_link() -> None:
    assert communicators("tpu-v5p:4x4x1", dp_shard=16).shard.bandwidth.item() == 4 * ICI
    assert communicators("tpu-v5p:2x2x1", dp_shard=4).shard.bandwidth.item() == 2 * ICI
    assert Torus.of((2, 1), (True, True), ICI).links == (1, 0)  # both directions of a ring of two would be the same wire


def test_a_single_chip_communicates_in_no_time() -> None:
    lone = communicators("tpu-v5p:1x1x1")
    assert lone.shard.gather(np.full(1, 1e12)).item() == lone.ep.seconds(np.full(1, 1e12)).item() == 0


# Several pods.


def test_the_rest_of_the_mesh_is_spread_over_pods() -> None:
    """Four pods of 8,960: copies of the weights are reduced over the data-center network, 6.25 GB/s a chip, of which two doublings of the
    pods lose a share of CONGESTION_PER_DOUBLING each."""
    cut = communicators("4 pods of tpu-v5p", dp_replicate=4, dp_shard=2240, tp=4)
    assert cut.replicate.bandwidth.item() == pytest.approx(DCN / (1 + 2 * CONGESTION_PER_DOUBLING))
    assert cut.shard.bandwidth.item() > 4 * ICI
    whole = communicators(
        "4 pods of tpu-v5p", dp_shard=4 * 2240, tp=4
    )  # one ring over all: all 2,240 ranks of a pod bring their share
    assert whole.shard.bandwidth.item() == pytest.approx(min(4.5 * ICI, 2240 * DCN))


def test_a_group_of_three_in_three_pods_has_a_chips_share_of_the_network_each() -> None:
    """No axis of 4x4x4 has a factor of 3, so the ranks of such a group are in three pods, whatever lies outside it. Three pods are log2(3)
    doublings."""
    share = pytest.approx(DCN / (1 + math.log2(3) * CONGESTION_PER_DOUBLING))
    assert communicators("3xtpu-v5p:4x4x4", dp_replicate=64, dp_shard=3).shard.bandwidth.item() == share
    assert communicators("3xtpu-v5p:4x4x4", dp_shard=64, cp=3).cp.bandwidth.item() == share


def test_the_network_between_pods_loses_bandwidth_with_every_doubling_of_the_slices() -> None:
    """From 2 to 32 slices of a v5e pod: no slice loses anything inside, and a chip's share of the network falls by the same steps."""
    shares = [
        communicators(f"{pods} x v5e-256", dp_replicate=pods, dp_shard=256).replicate.bandwidth.item()
        for pods in (2, 4, 8, 16, 32)
    ]
    chip = found_cluster("2 x v5e-256").chip
    assert chip.network is not None
    assert [chip.network.bandwidth / share for share in shares] == pytest.approx(
        [1 + CONGESTION_PER_DOUBLING * n for n in (1, 2, 3, 4, 5)]
    )
    inside = {communicators(f"{pods} x v5e-256", dp_replicate=pods, dp_shard=256).shard.bandwidth.item() for pods in (2, 32)}
    assert inside == {communicators("v5e-256", dp_shard=256).shard.bandwidth.item()}


def test_stages_in_other_pods_send_over_the_network_and_neighbours_over_a_link() -> None:
    assert communicators("tpu-v5p:4x4x4", dp_shard=16, pp=4).stage.bandwidth.item() == ICI
    assert communicators("2xtpu-v5p:4x4x4", dp_shard=64, pp=2).stage.bandwidth.item() == DCN
    assert (
        communicators("2xtpu-v5p:4x4x4", dp_shard=16, pp=8).stage.bandwidth.item() == DCN
    )  # 4 in each pod: the slowest step counts


def test_experts_take_the_first_context_and_data_ranks() -> None:
    laid = mesh(Torus.of((16, 16), (True, True), ICI), tp=4, shard=64).within(np.array([16]))
    assert (laid.size(1, 1).item(), laid.size(2, 2).item()) == (16, 4)
    cut = communicators("2xtpu-v5p:4x4x4", dp_shard=128, ep=128)
    assert cut.ep.nodes.item() == 2
    assert cut.ep.far.item() == pytest.approx(0.5 / DCN)  # half of the bytes go to the other pod
    assert cut.experts.size.item() == 1


def test_a_line_between_sites_limits_the_groups_across_it() -> None:
    """2 sites of 2 pods of 64 with a line of 1 GB/s: all 128 chips of a site reduce over it."""
    cut = communicators("2x(2xtpu-v5p:4x4x4@1TB/s)@1GB/s", dp_replicate=4, dp_shard=64)
    assert cut.replicate.bandwidth.item() == pytest.approx(2 * 1e9 / 128)  # two of the four ranks are in a site
    assert cut.shard.bandwidth.item() == 6 * ICI


# What always holds.


@st.composite
def laid(draw: st.DrawFn) -> tuple[Torus, dict[str, int], int]:
    """A slice of one to three axes, and axes that multiply to its chips times some pods."""
    shape = tuple(draw(st.lists(st.sampled_from((1, 2, 3, 4, 6, 8, 12, 16, 20, 28)), min_size=1, max_size=3)))
    closed = tuple(draw(st.lists(st.booleans(), min_size=len(shape), max_size=len(shape))))
    pods = draw(st.sampled_from((1, 1, 2, 3, 4)))
    left, axes = pods * prod(shape), {}
    for axis in ("tp", "cp", "shard", "replicate"):
        axes[axis] = draw(st.sampled_from(divisors(left)))
        left //= axes[axis]
    return Torus.of(shape, closed, ICI), axes | {"pp": left}, pods


@given(laid())
def test_every_axis_is_laid_on_the_torus_and_the_rest_on_pods(drawn: tuple[Torus, dict[str, int], int]) -> None:
    torus, axes, pods = drawn
    found = mesh(torus, **axes)
    assert tuple(np.prod(found.taken[:, :, 0], axis=1)) == torus.shape
    on_torus = np.prod(found.taken[:, :, 0], axis=0)
    beyond = [n // int(extent) for n, extent in zip(axes.values(), on_torus, strict=True)]
    assert [int(extent) * out for extent, out in zip(on_torus, beyond, strict=True)] == [*axes.values()]
    assert prod(beyond) == pods


@given(laid())
def test_no_group_has_more_links_than_a_chip(drawn: tuple[Torus, dict[str, int], int]) -> None:
    torus, axes, _ = drawn
    found = mesh(torus, **axes)
    spans = [(first, last) for first in range(5) for last in range(first, 5)]
    assert all(0 <= found.links(*span).item() <= sum(torus.links) for span in spans)
    # Tensor and data groups work at the same time: on a torus that closes they do not have more than there is.
    if all(torus.closed):
        assert found.links(TP, TP).item() + found.links(CP, SHARD).item() <= 2 * sum(n > 1 for n in torus.shape)


@given(laid(), st.integers(1, 4))
def test_the_ranks_within_pods_divide_the_group(drawn: tuple[Torus, dict[str, int], int], unit: int) -> None:
    torus, axes, pods = drawn
    found = mesh(torus, **axes)
    for first, last in ((TP, TP), (CP, SHARD), (REPLICATE, REPLICATE), (PP, PP), (TP, PP)):
        size, inside = found.size(first, last).item(), found.inside(first, last, unit).item()
        assert 1 <= inside <= size
        assert pods > unit or inside == size or size % inside == 0
    assert found.inside(TP, PP, pods).item() == found.size(TP, PP).item()


@given(laid())
def test_expert_ranks_and_the_rest_make_up_the_context_and_data_ranks(drawn: tuple[Torus, dict[str, int], int]) -> None:
    torus, axes, _ = drawn
    found = mesh(torus, **axes)
    for ep in divisors(axes["cp"] * axes["shard"]):
        inner = found.within(np.array([ep]))
        assert np.array_equal(inner.taken[:, 1] * inner.taken[:, 2], found.taken[:, 1] * found.taken[:, 2])
        assert inner.size(1, 2).item() == found.size(1, 2).item()
        assert ep % np.prod(inner.taken[:, 1]) == 0


@given(st.permutations((4, 8, 16)), st.sampled_from(divisors(512)), st.sampled_from((1, 2, 8)), st.sampled_from((1, 4)))
def test_a_slice_named_the_other_way_round_is_the_same_slice(sides: list[int], tp: int, cp: int, pp: int) -> None:
    cut = {"tp": min(tp, 16), "cp": cp, "pp": pp}
    axes = cut | {"dp_shard": 512 // prod(cut.values()), "ep": 2 if cp > 1 else 1}
    one, other = (communicators(f"tpu-v5p:{'x'.join(map(str, shape))}", **axes) for shape in ((16, 8, 4), sides))
    for name in ("tp", "cp", "shard", "experts", "replicate", "stage"):
        assert getattr(one, name).bandwidth.item() == getattr(other, name).bandwidth.item()
    assert one.ep.near.item() == other.ep.near.item()


def test_every_order_of_three_sides_is_the_same_torus() -> None:
    assert len({Torus.of(shape, (True,) * 3, ICI) for shape in permutations((16, 20, 28))}) == 1


def test_many_layouts_are_mapped_like_each_alone() -> None:
    table = [(tp, cp, 64 // (tp * cp * pp), pp) for tp in (1, 2, 4) for cp in (1, 2) for pp in (1, 2, 4)]
    columns = dict(zip(("tp", "cp", "dp_shard", "pp"), np.array(table).T, strict=True))
    together = communicators("tpu-v5p:4x4x4", **columns)
    for i, (tp, cp, shard, pp) in enumerate(table):
        alone = communicators("tpu-v5p:4x4x4", tp=tp, cp=cp, dp_shard=shard, pp=pp)
        for name in ("tp", "cp", "shard", "experts", "replicate", "stage"):
            assert getattr(together, name).bandwidth[i] == getattr(alone, name).bandwidth[0]
