"""Rows of tables of training runs as cases: times, memory, layouts, and reasons for skipped rows."""

from pathlib import Path

import pytest

from meshwise.cost.axes import OFFLOAD, RECOMPUTE
from meshwise.cost.finetune import FULL, Finetune
from meshwise.runs.train.predict import predict
from support.every import check_every
from support.measured_rows import built_in, read, skipped


def test_seconds_come_from_whichever_column_states_them(tmp_path: Path) -> None:
    none = {"sec_per_iter": ""}
    direct, rate, milliseconds = read(
        tmp_path, {"sec_per_iter": "2.5"}, none | {"tokens_per_sec_per_gpu": "1000"}, none | {"ms_per_iter": "372.16"}
    )
    assert direct.seconds == 2.5
    assert rate.seconds == pytest.approx(64 * 1024 / (1000 * 8))  # 65,536 tokens over 8 devices
    assert milliseconds.seconds == pytest.approx(0.37216)


def test_tflops_are_read_as_megatron_counts_them() -> None:
    """The notes of the table give the time that eq. 3 of arXiv:2104.04473 implies."""
    used, _ = built_in("megatron2021_table1")
    assert used[0].seconds == pytest.approx(3.528, rel=1e-3)
    assert used[1].seconds == pytest.approx(3.697, rel=1e-3)


def test_memory_is_read_in_the_unit_of_the_row(tmp_path: Path) -> None:
    decimal, binary = read(tmp_path, {"mem_gb": "40"}, {"mem_gb": "40", "mem_unit": "GiB"})
    assert (decimal.memory, binary.memory) == (40e9, 40 * 2**30)


def test_an_optimizer_that_the_planner_knows_is_read_and_any_other_is_adamw(tmp_path: Path) -> None:
    cases = read(tmp_path, {"optimizer": "adamw-bf16"}, {"optimizer": "FusedAdam"}, {})
    assert [case.work.optimizer for case in cases] == ["adamw-bf16", "adamw", "adamw"]


def test_a_run_out_of_memory_has_no_time(tmp_path: Path) -> None:
    (case,) = read(tmp_path, {"outcome": "oom", "sec_per_iter": ""})
    assert not case.ran
    assert not case.timed
    assert not case.has_memory


def test_sharding_is_a_stage_or_a_word(tmp_path: Path) -> None:
    def check(row: dict[str, str], zero: int, shard: int, replicate: int) -> None:
        (case,) = read(tmp_path, row)
        assert (case.layout["zero"], case.layout["dp_shard"], case.layout["dp_replicate"]) == (zero, shard, replicate)

    check_every(
        check,
        [
            ({"zero_stage": "0"}, 0, 1, 8),
            ({"zero_stage": "1"}, 1, 8, 1),
            ({"zero_stage": "", "sharding": "zero2"}, 2, 8, 1),
            ({"zero_stage": "", "sharding": "FSDP"}, 3, 8, 1),
            ({"zero_stage": "", "sharding": "ddp"}, 0, 1, 8),
            ({"zero_stage": "", "sharding": "hsdp", "n_gpus": "16", "dp": "16"}, 3, 8, 2),
        ],
    )


def test_omitted_columns_are_derived_from_others(tmp_path: Path) -> None:
    (case,) = read(tmp_path, {"dp": "", "tp": "2", "global_batch_seqs": "", "micro_batch": "4", "grad_accum": "3"})
    assert case.layout["dp_shard"] == 4  # 8 devices over tp 2
    assert case.work.batch == 4 * 4 * 3


def test_a_stated_sequence_parallelism_overrides_the_frameworks_default(tmp_path: Path) -> None:
    base = {"framework": "nanotron", "tp": "2", "dp": "4"}
    silent, stated = read(tmp_path, base, base | {"seq_parallel": "no"})
    assert (silent.layout["sp"], stated.layout["sp"]) == (1, 0)


def test_a_row_that_cannot_be_evaluated_is_skipped_with_the_reason(tmp_path: Path) -> None:
    def check(row: dict[str, str], reason: str) -> None:
        assert skipped(tmp_path, row) == reason

    ways = "expected one of " + ", ".join(RECOMPUTE)
    check_every(
        check,
        [
            ({"dp": "4"}, "dp 4, tp 1, pp 1 and cp 1 do not multiply to 8 devices"),
            ({"tp": "3"}, "tp 3, pp 1 and cp 1 do not divide 8 devices"),
            ({"tp": "0"}, "tp is 0; expected a whole number of 1 or more, or an empty field if it is not known"),
            ({"pp": "0"}, "pp is 0; expected a whole number of 1 or more, or an empty field if it is not known"),
            ({"cp": "0"}, "cp is 0; expected a whole number of 1 or more, or an empty field if it is not known"),
            ({"dp": "0"}, "dp is 0; expected a whole number of 1 or more, or an empty field if it is not known"),
            ({"ep": "0"}, "ep is 0; expected a whole number of 1 or more, or an empty field if it is not known"),
            ({"etp": "0"}, "etp is 0; expected a whole number of 1 or more, or an empty field if it is not known"),
            ({"interleave": "0"}, "interleave is 0; expected a whole number of 1 or more, or an empty field if it is not known"),
            ({"dp_shard": "0"}, "dp_shard is 0; expected a whole number of 1 or more, or an empty field if it is not known"),
            (
                {"micro_batch": "0"},
                "micro_batch is 0; expected a whole number of 1 or more, or an empty field if it is not known",
            ),
            ({"n_heads": "0"}, "n_heads is 0; expected a whole number of 1 or more, or an empty field if it is not known"),
            ({"cp": "16", "dp": ""}, "tp 1, pp 1 and cp 16 do not divide 8 devices"),
            ({"ep": "3"}, "ep 3 with etp 1 does not divide the 8 devices of a pipeline stage"),
            ({"ep": "4", "etp": "4"}, "ep 4 with etp 4 does not divide the 8 devices of a pipeline stage"),
            ({"dp_shard": "3"}, "dp_shard 3 does not divide dp 8"),
            ({"n_layers": "many"}, "n_layers is 'many', not a number"),
            ({"micro_batch": "1.5"}, "micro_batch is 1.5, not a whole number"),
            ({"n_gpus": "12"}, "12 devices are not a whole number of nodes of 8"),
            ({"n_gpus": "0"}, "n_gpus is 0"),
            ({"recompute": "sometimes"}, f"recompute is 'sometimes'; did you mean 'selective'?; {ways}"),
            ({"recompute": "fulll"}, f"recompute is 'fulll'; did you mean 'full'?; {ways}"),
            ({"offload": "disk"}, f"offload is 'disk'; expected one of {', '.join(OFFLOAD)}"),
            ({"outcome": "fail"}, "failed for a reason the table does not tell"),
            ({"outcome": "odd"}, "outcome is 'odd'"),
            ({"sec_per_iter": ""}, "neither a time nor a memory is stated"),
            ({"dup_of": "x"}, "repeats another row"),
            ({"chk_flag": "GBS does not add up"}, "flagged in the table as not adding up"),
            ({"global_batch_seqs": "0"}, "the batch or the sequence is empty"),
        ],
    )


# Times in other words.


def gpt_flops(factor: int) -> float:
    """FLOPs of a step of ROW's GPT by eq. 3 of arXiv:2104.04473, with 96 in the formula where layers are recomputed and 72 where not."""
    b, s, layers, h, v = 64, 1024, 24, 2048, 51200
    return factor * b * s * layers * h**2 * (1 + s / (6 * h)) + 6 * b * s * h * v


@pytest.mark.parametrize(
    ("column", "recompute", "factor"), [("mfu", "none", 72), ("mfu", "full", 72), ("hfu", "none", 72), ("hfu", "full", 96)]
)
def test_a_utilization_is_the_time_that_it_implies(tmp_path: Path, column: str, recompute: str, factor: int) -> None:
    """40% of the 312 TFLOP/s of 8 A100. An HFU counts the second forward pass of recomputed layers, an MFU does not."""
    seconds = gpt_flops(factor) / (0.4 * 312e12 * 8)
    share, time = read(tmp_path, {"sec_per_iter": "", column: "40", "recompute": recompute}, {"sec_per_iter": f"{seconds:.6f}"})
    assert share.seconds == pytest.approx(time.seconds, rel=1e-3)


def test_teraflops_are_the_time_that_they_imply(tmp_path: Path) -> None:
    (case,) = read(tmp_path, {"sec_per_iter": "", "tflops_per_gpu": "124.8"})
    assert case.seconds == pytest.approx(gpt_flops(72) / (124.8e12 * 8), rel=1e-3)


def test_a_utilization_in_8_bits_is_of_the_8_bit_peak(tmp_path: Path) -> None:
    wide, narrow = read(tmp_path, *({"gpu": "H100", "sec_per_iter": "", "mfu": "30", "precision": p} for p in ("bf16", "fp8")))
    assert wide.seconds / narrow.seconds == pytest.approx(2, rel=0.01)


def test_a_stated_time_precedes_a_utilization(tmp_path: Path) -> None:
    (case,) = read(tmp_path, {"sec_per_iter": "2.5", "mfu": "40", "tflops_per_gpu": "9"})
    assert case.seconds == 2.5


# Axes in other words.


def test_recompute_goes_by_the_words_of_programs(tmp_path: Path) -> None:
    def check(text: str, value: str) -> None:
        (case,) = read(tmp_path, {"recompute": text})
        assert RECOMPUTE[case.layout["recompute"]] == value

    check_every(
        check,
        [
            ("no", "none"),
            ("yes", "full"),
            ("Full", "full"),
            ("selective", "selective"),
            ("core_attn", "selective"),
            ("selective op", "selective"),
            ("mlp", "mlp"),
            ("layernorm", "layernorm"),
            ("moe_act", "moe_act"),
            ("minimal_flash", "minimal"),
            ("save_qkv_proj", "save_qkv_proj"),
            ("save_out_proj", "save_out_proj"),
        ],
    )


def test_offload_is_a_word_or_part_of_a_policy(tmp_path: Path) -> None:
    def check(row: dict[str, str], value: str) -> None:
        (case,) = read(tmp_path, row)
        assert OFFLOAD[case.layout["offload"]] == value

    check_every(
        check,
        [
            ({}, "none"),
            ({"offload": "no"}, "none"),
            ({"offload": "cpu"}, "optimizer"),
            ({"offload": "optimizer"}, "optimizer"),
            ({"offload": "parameters"}, "parameters"),
            ({"offload": "activations"}, "activations"),
            ({"recompute": "qkv_proj_offloaded"}, "activations"),  # MaxText
        ],
    )


def test_a_sequence_cut_over_context_ranks_keeps_its_zero_stage_without_data_ranks(tmp_path: Path) -> None:
    """Llama 3 8B at 256k tokens over cp 8: one data rank, and FSDP over the context ranks."""
    (case,) = read(tmp_path, {"cp": "8", "dp": "1", "zero_stage": "3", "framework": "torchtitan", "global_batch_seqs": "8"})
    assert (case.layout["zero"], case.layout["dp_shard"], case.layout["cp"]) == (3, 1, 8)
    (alone,) = read(tmp_path, {"n_gpus": "1", "dp": "1", "zero_stage": "3"})
    assert alone.layout["zero"] == 0


def test_data_ranks_that_shard_are_read(tmp_path: Path) -> None:
    (case,) = read(tmp_path, {"dp_shard": "4", "zero_stage": "3", "framework": "torchtitan"})
    assert (case.layout["dp_shard"], case.layout["dp_replicate"]) == (4, 2)


MIXTURE = {"n_experts": "8", "top_k": "2", "d_ff": "4096", "tp": "4", "dp": "2"}


def test_experts_are_cut_like_other_layers_unless_their_group_spans_tensor_ranks(tmp_path: Path) -> None:
    """8 devices, tp 4: of 2 data ranks no group of 8 experts can be made, so experts are whole; Megatron-Bridge has them whole anyway."""
    cut, spanning, bridge, stated = read(
        tmp_path,
        MIXTURE | {"ep": "2"},
        MIXTURE | {"ep": "8"},
        MIXTURE | {"ep": "2", "framework": "Megatron-Bridge"},
        MIXTURE | {"ep": "2", "etp": "1"},
    )
    assert [case.layout["etp"] for case in (cut, spanning, bridge, stated)] == [4, 1, 1, 1]


def test_dropped_tokens_leave_no_rank_with_more_than_the_mean(tmp_path: Path) -> None:
    free, dropped = read(tmp_path, MIXTURE, MIXTURE | {"router": "drop and pad"})
    assert free.work.imbalance > dropped.work.imbalance == 1.0


def test_accumulation_steps_tell_the_micro_batch(tmp_path: Path) -> None:
    """64 sequences over 8 ranks in 4 steps: 2 at a time."""
    (case,) = read(tmp_path, {"micro_batch": "", "grad_accum": "4"})
    assert case.layout["mbs"] == 2


def test_a_fine_tuned_run_is_predicted_as_such(tmp_path: Path) -> None:
    row = {
        "model": "llama-3.2-1b",
        "d_model": "",
        "n_layers": "",
        "n_heads": "",
        "n_gpus": "1",
        "dp": "1",
        "framework": "meshwise",
    }
    whole, lora = read(tmp_path, row, row | {"tune": "lora:16"})
    assert whole.work.finetune == FULL
    assert lora.work.finetune == Finetune("lora", 16, ("all-linear",))
    assert whole.group != lora.group
    predicted = predict([whole, lora])
    assert predicted.memory[1] < 0.5 * predicted.memory[0]
    assert predicted.seconds[1] < predicted.seconds[0]


def test_a_method_that_the_model_lacks_skips_the_row(tmp_path: Path) -> None:
    row = {"model": "llama-3.2-1b", "d_model": "", "n_layers": "", "n_heads": ""}
    assert "has no module 'w_pack'" in skipped(tmp_path, row | {"tune": "lora:16:w_pack"})
    assert "unknown fine-tuning method 'lroa:16'" in skipped(tmp_path, row | {"tune": "lroa:16"})
