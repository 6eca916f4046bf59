"""The search on TPU pods, whose sides are no powers of two, and on nodes of odd sizes."""

import numpy as np
import pytest

from meshwise.cost.layout import Layouts
from meshwise.cost.train.step import evaluate
from meshwise.errors import UserError
from meshwise.plan.train.rules import PADDING, cut_rules
from meshwise.plan.train.search import Found, check_divides, search, usable_part
from support.command import one_line
from support.train_questions import devices, question


@pytest.fixture(scope="module")
def pod() -> Found:
    """Llama 3 70B with 4M tokens on a pod of TPU v5p: How to Scale Your Model, part 6."""
    return search(POD)


POD = question("llama-3-70b", "tpu-v5p:16x20x28", "maxtext", batch=1024, seq=4096)


def test_layouts_of_a_pod_have_all_of_its_chips(pod: Found) -> None:
    assert len(pod.layouts)
    assert {devices(pod.layouts.row(i)) for i in range(len(pod.layouts))} == {8960}


def test_data_ranks_may_pad_the_batch_by_a_quarter_and_no_more(pod: Found) -> None:
    """No power of two of data ranks goes with 8,960 = 2^8 x 5 x 7 chips: 1,120 of them compute 1,120 sequences for 1,024."""
    computed = np.ceil(1024 / (pod.layouts.dp * pod.layouts.mbs)) * pod.layouts.dp * pod.layouts.mbs
    assert np.all(computed <= 1.25 * 1024)
    assert np.any(computed > 1024)
    for dp, valid in ((1120, True), (1280, True), (1281, False), (2048, False), (512, True)):
        assert cut_rules(POD, Layouts.of(dp_shard=dp))[PADDING].item() is valid


def test_padding_costs_what_it_computes() -> None:
    """7 data ranks compute 7 x 2 sequences for a batch of 8, and take as long as for 14."""
    eight, fourteen = (question("llama-debug", "tpu-v5p:7x1x1", "maxtext", batch=n) for n in (8, 14))
    assert evaluate(eight, Layouts.of(dp_shard=7, zero=3)).step == evaluate(fourteen, Layouts.of(dp_shard=7, zero=3)).step


def test_frameworks_that_do_not_pad_need_data_ranks_that_divide_the_batch() -> None:
    q = question("llama-3-70b", "tpu-v5p:16x20x28", "megatron", batch=1024)
    assert not cut_rules(q, Layouts.of(dp_shard=1120))["dp divides the batch"].item()
    assert PADDING not in cut_rules(q, Layouts.of(dp_shard=1120))


def test_the_best_layout_of_a_pod_is_no_pure_fsdp_and_uses_tensor_parallelism(pod: Found) -> None:
    """Part 6: FSDP alone is bound by links; 4-way tensor parallelism or so makes it compute-bound."""
    best = pod.layouts.row(0)
    assert 2 <= int(best["tp"]) <= 16
    assert best["pp"] == 1
    assert pod.cost.time["dp"][0] < 0.05 * pod.cost.step[0]  # nearly all hidden: compute-bound


@pytest.mark.parametrize("cluster", ["tpu-v5e:4x4", "tpu-v5p:2x2x1", "tpu-v4:4", "tpu-v5p:1x1x1", "3xtpu-v5p:2x2x2"])
def test_slices_of_any_shape_can_be_planned(cluster: str) -> None:
    q = question("llama-debug", cluster, "maxtext", batch=48)
    found = search(q, top=3)
    assert len(found.layouts)
    assert np.all(np.isfinite(found.cost.step))
    assert devices(found.layouts.row(0)) == q.cluster.devices


def test_layouts_with_experts_on_a_torus_are_evaluated() -> None:
    found = search(question("mixtral-8x7b", "2xtpu-v5p:4x4x2", "maxtext", batch=64, seq=1024))
    assert np.any(found.layouts.ep > 1)
    assert np.all(np.isfinite(found.cost.step))


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"tp": (3, 3)}, "--fix or --allow tp=3: none divides the 8,960 devices; the nearest that does is 2 or 4"),
        ({"dp": (9000, 10000)}, "dp=9000..10000: none divides the 8,960 devices; the nearest that does is 8960"),
    ],
)
def test_an_axis_that_divides_no_pod_is_refused_with_the_nearest(limits: dict[str, tuple[int, int]], message: str) -> None:
    with pytest.raises(UserError) as refused:
        check_divides(POD, limits)
    assert message in one_line(refused.value)


def test_of_fewer_nodes_one_number_that_divides_is_enough() -> None:
    q = question("llama-debug", "jean-zay:4")
    check_divides(q, {"tp": (3, 3)}, (1, 2, 3))  # 24 devices
    check_divides(q, {"mbs": (3, 3)})  # no axis of devices


def test_layouts_outside_the_bounds_do_not_count_under_other_rules() -> None:
    found = search(POD, bounds={"tp": (1, 1), "pp": (1, 1), "cp": (1, 1)})
    assert [rule for rule in found.rejected if not rule.startswith("--fix")] == [PADDING]


def test_the_usable_part_of_nodes_of_an_odd_size_has_fewer_devices_per_node() -> None:
    assert usable_part(question("llama-3-8b", "3x7xh100-sxm", batch=64)) == (3, 6)


def test_devices_that_nothing_divides_are_answered_with_a_usable_number() -> None:
    """100,000 = 2^5 x 5^5 devices: 128 heads, 126 layers and a batch of 2^12 sequences have no fives; 12,288 = 2^12 x 3 nodes do."""
    q = question("llama-3.1-405b", "12500x8xh100-sxm", batch=4096, seq=8192)
    assert search(q).evaluated == 0
    assert usable_part(q) == (12288, 8)
