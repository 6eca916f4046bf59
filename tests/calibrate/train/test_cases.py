"""Tables of training runs: rows as cases, reasons for skipped rows, and refused files."""

import json
import re
from collections import Counter
from itertools import product
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwise.calibrate.train import cases
from meshwise.catalogue import files
from meshwise.errors import UserError
from support.command import one_line
from support.every import check_every
from support.measured_rows import ROW, built_in, read, table

BUILT_IN = {  # rows used, rows in the file: the files' own README
    "bloom_prequel": (75, 112),
    "korthikanti2022_iteration": (9, 10),
    "megatron2021_table1": (10, 10),
    "nanotron_h100_small": (415, 905),
    "vtrain_a100_single_node": (1440, 1440),
}
SERVED = {"h200_transformers_14b", "h200_transformers_3b", "h200_transformers_8b", "llamacpp_fit_dryrun", "local_rig_notes"} | {
    f"xiongjiedai_{it}" for it in ("llama3_bench", "memory_buffers", "notebook_runs")
}


def test_every_row_of_a_built_in_table_is_used_or_skipped_with_a_reason() -> None:
    def check(name: str) -> None:
        used, skipped = built_in(name)
        assert (len(used), len(used) + len(skipped)) == BUILT_IN[name]
        assert all(skip.reason for skip in skipped)

    check_every(check, [(one,) for one in BUILT_IN])


def test_every_built_in_table_is_tested() -> None:
    assert set(files.files("measurements", ".csv")) == set(BUILT_IN) | SERVED


def test_the_bloom_table_keeps_its_runs_out_of_memory_and_skips_repeats_and_flagged_rows() -> None:
    used, skipped = built_in("bloom_prequel")
    assert [case.row_id for case in used if not case.ran] == ["bloom-101", "bloom-108", "bloom-109"]
    reasons = Counter(skip.reason for skip in skipped)
    assert reasons["repeats another row"] == 13  # the table's dup_of column
    assert reasons["flagged in the table as not adding up"] == 16  # chk_flag, less the repeats among them


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


def test_a_run_out_of_memory_has_no_time(tmp_path: Path) -> None:
    (case,) = read(tmp_path, {"outcome": "oom", "sec_per_iter": ""})
    assert not case.ran
    assert not case.timed
    assert not case.has_memory


def test_the_size_tells_a_gated_model_and_a_tied_head_apart() -> None:
    used, _ = built_in("nanotron_h100_small")
    sizes = {case.model.decoder.hidden: (case.model.decoder.tied, case.model.params / 1e9) for case in used}
    assert sizes[2048] == (True, pytest.approx(1.34, abs=0.005))  # the figures of the playbook
    assert sizes[4096] == (False, pytest.approx(8.86, abs=0.005))


def test_a_model_without_sizes_is_the_preset_of_that_name(tmp_path: Path) -> None:
    blank = dict.fromkeys(("n_layers", "d_model", "n_heads", "vocab"), "")
    (case,) = read(tmp_path, blank | {"model": "Llama-3-8B"})
    assert case.model.params == 8_030_261_248  # meta-llama/Meta-Llama-3-8B


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


def test_a_framework_is_found_by_part_of_its_name(tmp_path: Path) -> None:
    def check(text: str, key: str) -> None:
        (case,) = read(tmp_path, {"framework": text})
        assert (case.work.framework.key, case.assumed) == (key, ())

    check_every(
        check,
        [
            ("Megatron-DeepSpeed", "megatron-deepspeed"),
            ("NeMo (Megatron-LM)", "megatron"),
            ("PyTorch FSDP", "fsdp"),
            ("nanotron", "nanotron"),
        ],
    )


def test_an_unknown_framework_is_replaced_and_noted(tmp_path: Path) -> None:
    replicated, sharded = read(tmp_path, {"framework": "homegrown"}, {"framework": "homegrown", "zero_stage": "3"})
    assert (replicated.work.framework.key, sharded.work.framework.key) == ("megatron", "fsdp")
    assert replicated.assumed == ("framework 'homegrown' evaluated as Megatron-LM",)


def test_a_stated_sequence_parallelism_overrides_the_frameworks_default(tmp_path: Path) -> None:
    base = {"framework": "nanotron", "tp": "2", "dp": "4"}
    silent, stated = read(tmp_path, base, base | {"seq_parallel": "no"})
    assert (silent.layout["sp"], stated.layout["sp"]) == (1, 0)


def test_a_row_that_cannot_be_evaluated_is_skipped_with_the_reason(tmp_path: Path) -> None:
    def check(row: dict[str, str], reason: str) -> None:
        used, (skip,) = cases.read_cases(table(tmp_path, {}, row))
        assert [case.row_id for case in used] == ["a"]
        assert (skip.row_id, skip.reason) == ("b", reason)

    check_every(
        check,
        [
            ({"dp": "4"}, "dp 4, tp 1, pp 1 and cp 1 do not multiply to 8 devices"),
            ({"tp": "3"}, "tp 3, pp 1 and cp 1 do not divide 8 devices"),
            ({"tp": "0"}, "tp 0, pp 1 and cp 1 do not divide 8 devices"),
            ({"tp": ""}, "tp is not stated"),
            ({"n_layers": "many"}, "n_layers is 'many', not a number"),
            ({"micro_batch": "1.5"}, "micro_batch is 1.5, not a whole number"),
            ({"n_gpus": "12"}, "12 devices are not a whole number of nodes of 8"),
            ({"recompute": "sometimes"}, "recompute is 'sometimes'; expected none, selective or full"),
            ({"outcome": "fail"}, "failed for a reason the table does not tell"),
            ({"outcome": "odd"}, "outcome is 'odd'"),
            ({"sec_per_iter": ""}, "neither a time nor a memory is stated"),
            ({"dup_of": "x"}, "repeats another row"),
            ({"chk_flag": "GBS does not add up"}, "flagged in the table as not adding up"),
            ({"global_batch_seqs": "0"}, "the batch or the sequence is empty"),
        ],
    )


def test_an_unknown_chip_is_named_with_its_nearest(tmp_path: Path) -> None:
    _, (skip,) = cases.read_cases(table(tmp_path, {}, {"gpu": "A100-81GB"}))
    assert "did you mean" in skip.reason


def test_a_measurement_that_is_not_positive_is_refused_with_its_line(tmp_path: Path) -> None:
    def check(text: str, column: str) -> None:
        with pytest.raises(UserError) as refused:
            cases.read_cases(table(tmp_path, {}, {column: text}))
        assert one_line(refused.value) == (
            f"runs.csv, line 3: {column} is '{text}'; expected a number above zero, or an empty field if it was not measured"
        )

    check_every(check, product(["nan", "NaN", "inf", "-1", "0", "fast"], ["sec_per_iter", "mem_gb"]))


def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path) -> None:
    def check(text: str, words: str) -> None:
        path = tmp_path / "runs.csv"
        path.write_text(text)
        with pytest.raises(UserError) as refused:
            cases.read_cases(path)
        assert one_line(refused.value).startswith(words)

    check_every(
        check,
        [
            ("", "runs.csv: empty; expected a CSV file"),
            ("\n\n", "runs.csv: empty; expected a CSV file"),
            (",".join(ROW), "runs.csv: no rows below the header"),
            ("a,b\n1,2", "runs.csv: the column 'n_gpus' is missing"),
            ("a,a\n1,2", "runs.csv: the column 'a' appears twice"),
            (",".join(ROW) + "\n1,2", f"runs.csv, line 2: 2 fields, where the header has {len(ROW)}"),
            (",".join(ROW) + '\n"1,2', "runs.csv, line 2: not valid CSV"),
            ("n_gpus,tp,pp,dp,global_batch_seqs,seq_len,gpu\n", "runs.csv: no column with a measurement"),
        ],
    )


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    def check(column: str) -> None:
        with pytest.raises(UserError, match=f"the column '{column}' is missing"):
            cases.read_cases(table(tmp_path, {}, without=(column,)))

    check_every(check, [(one,) for one in cases.NEEDED])


def test_a_table_without_a_usable_row_states_the_most_common_reason(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="none of its 2 rows can be evaluated; 2 of them: tp is not stated"):
        cases.read_cases(table(tmp_path, {"tp": ""}, {"tp": ""}))


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = table(tmp_path, {})
    path.write_text("\ufeff" + path.read_text())
    assert len(cases.read_cases(path)[0]) == 1


words = st.sampled_from(["", "0", "-1", "1e9", "nan", "8", "3", "x", "9" * 400, "1.5", "none", "H100-80GB", "2048", "[/red]", "‮"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    column=st.sampled_from(sorted({*ROW, "cp", "ep", "interleave", "sharding", "grad_accum", "params_b", "d_ff", "model"})),
    text=words,
)
def test_any_cell_content_is_read_skipped_or_refused_in_one_line(tmp_path: Path, column: str, text: str) -> None:
    try:
        used, skipped = cases.read_cases(table(tmp_path, {}, {column: text}))
    except UserError as error:
        one_line(error)
    else:
        assert len(used) + len(skipped) == 2


# What `meshwise run` keeps.

KEPT = {
    "model": "llama-debug", "n_layers": 4, "d_model": 256, "d_ff": 768, "n_heads": 8, "n_kv_heads": 4, "vocab": 512, "seq_len": 128,
    "gpu": "h200", "n_gpus": 2, "gpus_per_node": 2, "framework": "meshwise", "precision": "bf16", "dp": 1, "tp": 2, "pp": 1, "cp": 1,
    "zero_stage": 0, "micro_batch": 4, "global_batch_seqs": 8, "recompute": "none", "seq_parallel": "yes", "sec_per_iter": 0.25,
    "mem_gb": 0.5, "mem_unit": "GiB", "outcome": "ok",
}  # fmt: skip


def test_rows_written_by_a_run_are_read_as_cases(tmp_path: Path) -> None:
    path = tmp_path / "measurement.jsonl"
    path.write_text((json.dumps(KEPT) + "\n") * 2)
    used, skipped = cases.read_cases(path)
    assert (len(used), skipped) == (2, [])
    assert (used[0].seconds, used[0].memory, used[0].layout["tp"]) == (0.25, 2**29, 2)
    assert used[0].work.framework.name == "meshwise"


def test_damaged_rows_of_a_run_are_refused_with_their_line(tmp_path: Path) -> None:
    def check(text: str, words: str) -> None:
        path = tmp_path / "measurement.jsonl"
        path.write_text(text)
        with pytest.raises(UserError, match=re.escape(words)):
            cases.read_cases(path)

    check_every(
        check,
        [
            ("", "empty"),
            ("{", "line 1: not valid JSON"),
            ("[1]", "line 1: expected an object"),
            (json.dumps({key: value for key, value in KEPT.items() if key != "tp"}), "line 1: the column 'tp' is missing"),
            (json.dumps(KEPT | {"sec_per_iter": -1}), "line 1: sec_per_iter is '-1'"),
        ],
    )
