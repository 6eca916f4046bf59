"""Kernels of a step are added up by part, with communication that nothing hides, and idle time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.workers.trainer.report.kernels import Span, by_part, part_of

NAMES = {
    "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN": "products",
    "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<...grouped...>>": "products",
    "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x128_1x4x1_cga1x1": "attention",
    "void cudnn::fusion::compute_dot_do_o_specialized<true, 128>(void const*)": "attention",
    "triton_tem_fused_flex_attention_backward_transpose_view_5": "attention",
    "_update": "optimizer",
    "void at::native::multi_tensor_apply_kernel<at::native::FusedAdamMathFunctor<float>>": "optimizer",
    "_rows": "loss",
    "_by_rows": "products",
    "wide_forward": "attention",
    "wide_by_keys": "attention",
    "_by_weights": "products",
    "_gated": "products",
    "triton_red_fused__fused_rms_norm__unsafe_view_add_gather_rows_view_wide_product_2": "other",
    "_gate": "other",
    "_heads_backward": "other",
    "triton_red_fused__fused_rms_norm_fused_linear_0": "other",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "communication",
}
"""Kernels as torch 2.11 named them on an H200."""


def test_a_kernel_belongs_to_a_part_by_its_name() -> None:
    assert {name: part_of(name) for name in NAMES} == NAMES


def test_communication_is_exposed_where_nothing_else_runs() -> None:
    found = by_part([Span("nvjet", 0, 40), Span("nccl", 20, 70), Span("_gate", 80, 100)])
    assert found.seconds == pytest.approx(100e-9)
    assert found.parts == pytest.approx(
        {"products": 40e-9, "other": 20e-9, "communication, exposed": 30e-9, "communication, hidden": 20e-9, "idle": 10e-9}
    )


def span(name: str, start: int, length: int) -> Span:
    return Span(name, start, start + length)


spans = st.lists(st.builds(span, st.sampled_from(sorted(NAMES)), st.integers(0, 999), st.integers(1, 99)), min_size=1)


@given(spans)
def test_idle_time_is_what_no_kernel_covers(every: list[Span]) -> None:
    found = by_part(every)
    covered = {tick for span in every for tick in range(span.start, span.end)}
    computing = {tick for span in every if part_of(span.name) != "communication" for tick in range(span.start, span.end)}
    first, last = min(span.start for span in every), max(span.end for span in every)
    assert found.parts["idle"] == pytest.approx((last - first - len(covered)) / 1e9, abs=1e-15)
    assert found.parts.get("communication, exposed", 0.0) == pytest.approx(len(covered - computing) / 1e9, abs=1e-15)
