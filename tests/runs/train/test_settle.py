"""Tables as cases: the built-in ones, and what rows do not state, chosen once for a source."""

from collections import Counter
from pathlib import Path

import pytest

from meshwise.catalogue import files
from meshwise.cost.axes import RECOMPUTE
from meshwise.models.find import find_model
from meshwise.runs.train.case import Case
from meshwise.runs.train.predict import predict
from support.every import check_every
from support.measured_rows import built_in, read

BUILT_IN = {  # rows used, rows in the file: the files' own README
    "answerai_fsdp_qlora": (33, 33),
    "bloom_prequel": (75, 112),
    "dgxc_benchmarking": (88, 88),
    "fitcheck_t4": (158, 158),
    "fms_a100_liger": (323, 323),
    "h200_transformers_tuned": (18, 18),
    "internevo_a100": (36, 36),
    "korthikanti2022_iteration": (10, 10),
    "llm_foundry_a100": (138, 139),
    "maxtext_tpu": (44, 44),
    "megatron2021_table1": (10, 10),
    "megatron_bridge_to_2602": (107, 109),
    "mindspeed_llm_ascend": (55, 55),
    "mlperf_training": (21, 21),
    "mlperf_training_lora": (34, 36),
    "nanotron_h100_128": (408, 695),
    "nanotron_h100_small": (415, 905),
    "nemo_h100": (12, 12),
    "neuron_trn1_training": (18, 18),
    "torchtitan_2024": (14, 15),
    "torchtune_readme": (15, 17),
    "vtrain_a100_single_node": (1440, 1440),
}
SERVED = {
    "llamacpp_fit_dryrun",
    "local_rig_notes",
    "strix_halo_rpc",
    "tensorrt_llm_hopper",
    "alcf_vllm_trt",
    "engines_at_load",
    "h200_llamacpp",
    "h200_vllm",
    "h200_vllm_bench",
    "h200_vllm_server",
    "localmaxxing_community",
    "llamacpp_gb10",
    "rocm_vllm_mi300x",
    *(f"h200_transformers_{it}" for it in ("14b", "3b", "8b", "gemma2", "qwen3_moe")),
    *(f"xiongjiedai_{it}" for it in ("llama3_bench", "memory_buffers", "notebook_runs")),
}


def test_every_row_of_a_built_in_table_is_used_or_skipped_with_a_reason() -> None:
    def check(name: str) -> None:
        used, skipped = built_in(name)
        assert (len(used), len(used) + len(skipped)) == BUILT_IN[name]
        assert all(skip.reason for skip in skipped)

    check_every(check, [(one,) for one in BUILT_IN])


def test_every_built_in_table_is_tested() -> None:
    assert set(files.files("measurements", ".csv")) == set(BUILT_IN) | SERVED | {"rl_steps"}


def test_the_bloom_table_keeps_its_runs_out_of_memory_and_skips_repeats_and_flagged_rows() -> None:
    used, skipped = built_in("bloom_prequel")
    assert [case.row_id for case in used if not case.ran] == ["bloom-101", "bloom-108", "bloom-109"]
    reasons = Counter(skip.reason for skip in skipped)
    assert reasons["repeats another row"] == 13  # the table's dup_of column
    assert reasons["flagged in the table as not adding up"] == 16  # chk_flag, less the repeats among them


# What rows do not state.

SILENT = {"zero_stage": "", "recompute": "", "precision": "", "sharding": ""}


def recompute_of(case: Case) -> str:
    return RECOMPUTE[case.layout["recompute"]]


def test_an_unstated_axis_has_the_frameworks_documented_value(tmp_path: Path) -> None:
    (case,) = read(tmp_path, {**SILENT, "framework": "torchtitan"})
    assert (recompute_of(case), case.layout["zero"]) == ("selective", 3)
    assert "recompute not stated: selective, the default of torchtitan" in case.assumed


def test_an_axis_that_nobody_documents_is_the_cheapest_under_which_all_runs_of_a_source_fit(tmp_path: Path) -> None:
    """24 layers of 2048 on 8 A100 fit without any; a micro-batch of 8 sequences of 8192 does not, so both runs of that model recompute."""
    easy = read(tmp_path, SILENT, SILENT)
    assert {(recompute_of(case), case.layout["zero"]) for case in easy} == {("none", 0)}
    notes = {"recompute not stated: none, the cheapest that fits", "ZeRO not stated: 0, the cheapest that fits"}
    assert all(notes <= set(case.assumed) for case in easy)
    large = {**SILENT, "seq_len": "8192", "micro_batch": "8"}
    ways = {recompute_of(case) for case in read(tmp_path, {**large, "micro_batch": "1"}, large)}
    assert len(ways) == 1
    assert ways != {"none"}


def test_a_stated_memory_tells_what_was_recomputed(tmp_path: Path) -> None:
    """Full recompute saves tens of GB in this run, so its memory tells which of the two was used."""
    row = {**SILENT, "zero_stage": "1", "seq_len": "4096", "micro_batch": "4"}
    stated = [predict(read(tmp_path, {**row, "recompute": how, "mem_gb": "40"})).memory.item() for how in ("none", "full")]
    for size, how in zip(stated, ("none", "full"), strict=True):
        (case,) = read(tmp_path, {**row, "mem_gb": f"{size / 1e9:.2f}"})
        assert recompute_of(case) == how


def test_a_stated_axis_is_never_replaced(tmp_path: Path) -> None:
    (case,) = read(tmp_path, {"recompute": "full", "zero_stage": "0", "precision": "fp16", "framework": "torchtitan"})
    assert (recompute_of(case), case.layout["zero"], case.work.precision) == ("full", 0, "fp16")
    assert case.assumed == ()


def seconds_at(share: float, tflops: float) -> str:
    """Seconds of a step of Llama 3 8B, 64 sequences of 8192 on 8 devices, at a share of a peak in TFLOP/s."""
    return f"{find_model('llama-3-8b').flops(64 * 8192, 8192) / (8 * share * tflops * 1e12):.6f}"


LLAMA = {**dict.fromkeys(("n_layers", "d_model", "n_heads", "vocab"), ""), "model": "Llama-3-8B", "seq_len": "8192"}


@pytest.mark.parametrize(("share", "precision"), [(0.5, "bf16"), (0.9, "fp8")])
def test_a_run_that_16_bits_cannot_be_that_fast_used_8(tmp_path: Path, share: float, precision: str) -> None:
    """H100: 989.4 TFLOP/s in bf16, of which no training run sustains 0.9; fp8 has twice that. A slower row of the table used the same."""
    row = {**LLAMA, "precision": "", "gpu": "H100", "micro_batch": "1"}
    cases = read(tmp_path, {**row, "sec_per_iter": seconds_at(share, 989.4)}, {**row, "sec_per_iter": seconds_at(0.3, 989.4)})
    assert {case.work.precision for case in cases} == {precision}
    assert any(f"precision not stated: {precision}" in note for note in cases[0].assumed)


def test_a_chip_without_8_bits_used_16_however_fast(tmp_path: Path) -> None:
    (case,) = read(tmp_path, {**LLAMA, "precision": "", "gpu": "A100-80GB", "sec_per_iter": seconds_at(0.9, 312)})
    assert case.work.precision == "bf16"


def test_runs_are_grouped_by_chip_precision_and_framework(tmp_path: Path) -> None:
    """A planner chooses among runs of one model on the same devices; a run in fp8 or of another program is another question."""
    same = read(tmp_path, {}, {"tp": "2", "dp": "4"})
    assert len({case.group for case in same}) == 1
    cases = read(
        tmp_path,
        {},
        {"gpu": "H100"},
        {"gpu": "H100", "precision": "fp8"},
        {"framework": "nanotron"},
        {"n_gpus": "16", "dp": "16"},
    )
    assert len({case.group for case in cases}) == 5
    assert len({case.source for case in cases}) == 4  # more devices are the same source
