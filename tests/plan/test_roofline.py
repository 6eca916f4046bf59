"""Verdicts without a search, by How to Scale Your Model, parts 5 and 6 (jax-ml.github.io/scaling-book)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.plan.roofline import Roofline, roofline, verdicts
from support.train_questions import found_cluster, found_model

BATCH = 4 * 2**20
"""4M tokens: 1024 sequences of 4096."""
POD = "tpu-v5p:16x20x28"


def bounds(model: str = "llama-3-70b", cluster: str = POD, batch: float = BATCH, seq: int = 4096) -> Roofline:
    return roofline(found_model(model), found_cluster(cluster), batch, seq)


def sentences(model: str = "llama-3-70b", cluster: str = POD, batch: float = BATCH, seq: int = 4096) -> list[str]:
    return verdicts(found_model(model), found_cluster(cluster), batch, seq)


def test_data_parallelism_alone_stops_at_the_sequences_of_a_batch() -> None:
    assert bounds().sequences == 1024
    assert sentences()[0] == "Data parallelism alone stops at 1,024 of the 8,960 devices: a batch has that many sequences."
    assert not sentences(cluster="tpu-v5p:8x8x16")[0].startswith("Data parallelism alone")  # 1,024 chips


def test_fsdp_over_batch_and_sequence_has_468_tokens_and_needs_850() -> None:
    r = bounds()
    assert int(r.tokens) == 468
    assert r.fsdp == pytest.approx(850, rel=1e-3)
    assert (
        "FSDP over batch and sequence would be communication-bound: 468 tokens per device and step, 850 needed" in sentences()[1]
    )


def test_fsdp_with_tensor_parallelism_needs_113_and_is_best_near_1618() -> None:
    """2550^2 / (2 x 28672) = 113; sqrt(2 x 4.19e6 x 8960 / 28672) = 1618; in powers of two 2048 x 4."""
    r = bounds()
    assert r.mixed == pytest.approx(113, rel=5e-3)
    assert r.best_fsdp == pytest.approx(1618, rel=1e-3)
    assert r.powers == (2048, 4)
    assert "FSDP with tensor parallelism would be compute-bound: 113 tokens per device needed" in sentences()[2]


def test_a_number_of_chips_that_no_block_of_the_pod_has_is_reported() -> None:
    """2048 x 4 = 8,192 = 2^13, and 16x20x28 has at most 16 x 4 x 4 = 2^8 in powers of two."""
    assert sentences()[3].startswith("No block of 16x20x28 has 8,192 chips")
    assert not any("No block" in line for line in sentences(cluster="tpu-v5p:16x16x16"))


def test_70b_on_four_pods_is_just_compute_bound() -> None:
    """Question 1 of part 6: 117 tokens per chip against 113; between pods 459e12 / 6.25e9 = 73,440 tokens per pod."""
    r = bounds(cluster="tpu-v5p-4pods")
    assert r.tokens == pytest.approx(117, rel=1e-3)
    assert r.mixed == pytest.approx(113, rel=5e-3)
    assert r.pod == pytest.approx(73440)
    assert r.pod_tokens == BATCH / 4
    lines = sentences(cluster="tpu-v5p-4pods")
    assert "FSDP with tensor parallelism would be compute-bound" in lines[2]
    assert "in each pod" in lines[2]
    assert lines[-1].startswith(
        "Data parallelism between pods would be compute-bound: 1,048,576 tokens per pod and step, 73,440 needed"
    )


def test_405b_on_eight_pods_is_just_communication_bound() -> None:
    """Question 2 of part 6: 58.5 tokens per chip against 2550^2 / (2 x 53248) = 61."""
    r = bounds("llama-3-405b", "tpu-v5p-8pods")
    assert r.tokens == pytest.approx(58.5, rel=1e-3)
    assert r.mixed == pytest.approx(61, rel=5e-3)
    assert "FSDP with tensor parallelism would be communication-bound" in sentences("llama-3-405b", "tpu-v5p-8pods")[2]


def test_jean_zay_has_a_ring_through_every_node() -> None:
    """One ring over all devices enters and leaves a node once, with its whole network: 312e12 / 50e9 = 6,240 tokens."""
    r = bounds("bloom-176b", "jean-zay:48", 2048 * 2048, 2048)
    assert r.fsdp == pytest.approx(6240)
    assert (r.mixed, r.pod) == (None, None)
    (line,) = sentences("bloom-176b", "jean-zay:48", 2048 * 2048, 2048)
    assert line.startswith("Pure FSDP would be compute-bound: 10,923 tokens per device and step, 6,240 needed")


def test_inside_a_node_the_link_is_the_roof() -> None:
    """8 H100: 989.4e12 / 450e9 = 2,199 tokens."""
    assert bounds("llama-3-8b", "1x8xh100-sxm", 48 * 2048, 2048).fsdp == pytest.approx(2199, rel=1e-3)


def test_a_slow_line_between_sites_raises_the_roof() -> None:
    """Two sites of four nodes with 1 GB/s between them: 989.4e12 / 1e9 tokens."""
    assert bounds(cluster="2x(4x8xh100-sxm)@1GB/s").fsdp == pytest.approx(989.4e3)


def test_experts_that_a_token_does_not_need_are_gathered_too() -> None:
    """Part 5: a mixture needs total over active parameters times as many tokens. Mixtral: 46.7 over 12.9 billion."""
    dense, mixture = bounds("llama-3-8b", "jean-zay:4"), bounds("mixtral-8x7b", "jean-zay:4")
    assert dense.fsdp is not None
    assert mixture.fsdp == pytest.approx(dense.fsdp * 46.7 / 12.88, rel=1e-3)
    assert bounds("mixtral-8x7b").mixed is None


def test_axes_that_do_not_close_have_half_the_links() -> None:
    """v5e: 4x4 does not wrap round, 16x16 does; (197e12 / 45e9)^2 / (links x links x 14336)."""
    open_, closed = bounds("llama-3-8b", "tpu-v5e:4x4", 2**16), bounds("llama-3-8b", "tpu-v5e:16x16", 2**16)
    assert open_.fsdp == pytest.approx(197e12 / (2 * 45e9))
    assert closed.fsdp == pytest.approx(197e12 / (4 * 45e9))
    assert open_.mixed == pytest.approx((197e12 / 45e9) ** 2 / 14336 * 1)
    assert closed.mixed == pytest.approx((197e12 / 45e9) ** 2 / (2 * 2 * 14336))


def test_axes_of_length_one_do_not_count() -> None:
    flat, thin = bounds("llama-3-8b", "tpu-v5p:16x16", 2**16), bounds("llama-3-8b", "tpu-v5p:16x16x1", 2**16)
    assert flat == thin
    assert flat.mixed is not None
    assert bounds("llama-3-8b", "tpu-v5p:16x1x1", 2**14).mixed is None  # one axis cannot do both


def test_where_pure_fsdp_is_best_no_tensor_parallelism_is_suggested() -> None:
    """8B on 64 chips with 4M tokens: sqrt(2 x 4.19e6 x 64 / 14336) = 193 data ranks, more than there are devices."""
    assert bounds("llama-3-8b", "tpu-v5p:4x4x4").mixed is None
    assert len(sentences("llama-3-8b", "tpu-v5p:4x4x4")) == 1


@pytest.mark.parametrize("cluster", ["h100-sxm", "tpu-v5p:1x1x1"])
def test_one_device_has_no_communication_to_hide(cluster: str) -> None:
    assert bounds("llama-3-8b", cluster).fsdp is None
    assert sentences("llama-3-8b", cluster) == []


@given(
    st.sampled_from(("llama-3-8b", "mixtral-8x7b", "deepseek-v3", "mamba2-130m", "gpt2")),
    st.sampled_from(
        (POD, "tpu-v5p-4pods", "tpu-v5e:8x4", "tpu-v4:4x4x2", "tpu-v7:2x2x1", "jean-zay:4", "8xrtx4090", "2xm2-ultra@40Gbps")
    ),
    st.floats(1, 1e9),
)
def test_every_verdict_is_a_line_with_a_bound_that_its_numbers_bear_out(model: str, cluster: str, batch: float) -> None:
    r, lines = bounds(model, cluster, batch), sentences(model, cluster, batch)
    assert all(line.isprintable() and line.endswith(".") for line in lines)
    fsdp = next((line for line in lines if "hide the all-gather of weights" in line), "")
    assert bool(fsdp) == (r.fsdp is not None)
    assert r.fsdp is None or ("communication-bound" in fsdp) == (r.tokens < r.fsdp)
    if r.best_fsdp is not None:
        data, tensor = r.powers
        assert 1 <= data * tensor <= r.devices * 1.5
        assert r.mixed is not None
