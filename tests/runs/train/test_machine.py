"""The machine and the program of a row: chip, cluster, slices, network, framework and precision."""

from pathlib import Path

import pytest

from meshwise.catalogue.chips import fabric_of
from meshwise.units import GIB
from support.every import check_every
from support.measured_rows import read, skipped


def test_a_framework_is_found_by_part_of_its_name(tmp_path: Path) -> None:
    def check(text: str, key: str) -> None:
        (case,) = read(tmp_path, {"framework": text})
        assert (case.work.framework.key, case.assumed) == (key, ())

    check_every(
        check,
        [
            ("Megatron-DeepSpeed", "megatron-deepspeed"),
            ("NeMo (Megatron-LM)", "megatron"),
            ("NeMo 24.07", "megatron-bridge"),
            ("Megatron-Bridge 26.02", "megatron-bridge"),
            ("torchtitan (nightly)", "torchtitan"),
            ("MaxText", "maxtext"),
            ("PyTorch FSDP", "fsdp"),
            ("nanotron", "nanotron"),
        ],
    )


def test_an_unknown_framework_is_replaced_and_noted(tmp_path: Path) -> None:
    replicated, sharded = read(tmp_path, {"framework": "homegrown"}, {"framework": "homegrown", "zero_stage": "3"})
    assert (replicated.work.framework.key, sharded.work.framework.key) == ("megatron", "fsdp")
    assert replicated.assumed == ("framework 'homegrown' evaluated as Megatron-LM",)


def test_an_unknown_chip_is_named_with_its_nearest(tmp_path: Path) -> None:
    assert "unknown chip 'H10O'; did you mean 'h100-sxm'" in skipped(tmp_path, {"gpu": "H10O"})


def test_a_chip_is_found_inside_a_longer_name(tmp_path: Path) -> None:
    def check(text: str, key: str) -> None:
        (case,) = read(tmp_path, {"gpu": text})
        assert case.chip.key == key

    check_every(
        check,
        [
            ("H100-80GB-700W", "h100-sxm"),
            ("DGX-GB300", "gb300"),
            ("DGX-H100", "h100-sxm"),
            ("NVIDIA A100-SXM4-80GB", "a100-80gb-sxm"),
        ],
    )


def test_a_memory_in_the_name_of_the_chip_counts(tmp_path: Path) -> None:
    (case,) = read(tmp_path, {"gpu": "H100-64GB"})
    assert case.chip.memory == 64 * GIB
    assert case.limit == 64 * GIB * 0.96  # 4% kept free


def test_64_of_the_72_in_a_rack_are_one_node(tmp_path: Path) -> None:
    (case,) = read(tmp_path, {"gpu": "DGX-GB300", "n_gpus": "64", "gpus_per_node": "", "dp": "64"})
    assert (case.cluster.node_count, case.cluster.devices) == (1, 64)


TPU = {"gpus_per_node": "", "framework": "MaxText", "zero_stage": "", "sharding": "fsdp", "micro_batch": ""}


def test_slices_are_read_from_their_column_their_note_or_the_number_of_chips(tmp_path: Path) -> None:
    def check(row: dict[str, str], devices: int, pods: int, shape: tuple[int, ...]) -> None:
        size = {"n_gpus": str(devices), "dp": str(devices), "global_batch_seqs": str(devices)}
        (case,) = read(tmp_path, {**TPU, **size, **row})
        assert (case.cluster.node_count, case.cluster.torus, case.cluster.devices) == (pods, shape, devices)

    check_every(
        check,
        [
            ({"gpu": "TPU v5e", "cluster": "tpu-v5e:16x16"}, 256, 1, (16, 16)),
            ({"gpu": "TPU v5e", "cluster": "32 x v5e-256"}, 8192, 32, (16, 16)),
            ({"gpu": "TPU v5e", "note": "4 x v5e-256"}, 1024, 4, (16, 16)),
            ({"gpu": "TPU v5e"}, 1024, 4, (16, 16)),  # no larger slice exists
            ({"gpu": "TPU v5p", "cluster": "v5p-128"}, 64, 1, (4, 4, 4)),
            ({"gpu": "TPU v5p"}, 128, 1, (4, 4, 8)),
        ],
    )


def test_several_slices_shard_inside_a_slice_and_replicate_between_them(tmp_path: Path) -> None:
    size = {"n_gpus": "1024", "dp": "1024", "global_batch_seqs": "1024"}
    (case,) = read(tmp_path, {**TPU, **size, "gpu": "TPU v5e", "cluster": "4 x v5e-256"})
    assert (case.layout["dp_shard"], case.layout["dp_replicate"]) == (256, 4)


def test_a_cluster_of_another_size_than_the_row_is_skipped(tmp_path: Path) -> None:
    assert skipped(tmp_path, {"cluster": "v5e-256"}) == "cluster 'v5e-256' has 256 devices, but n_gpus is 8"
    assert "unknown" in skipped(tmp_path, {"cluster": "banana"})


def test_a_stated_network_names_the_fabric(tmp_path: Path) -> None:
    two = {"n_gpus": "16", "dp": "16"}
    silent, stated, rate = read(tmp_path, two, two | {"network": "EFA"}, two | {"inter_node_gbps_per_gpu": "100"})
    assert (fabric_of(silent.cluster.network), fabric_of(stated.cluster.network)) == ("infiniband", "efa")
    assert any(note.startswith("network not given") for note in silent.cluster.notes)
    assert not any(note.startswith("network not given") for note in stated.cluster.notes)
    assert rate.cluster.network is not None
    assert rate.cluster.network.bandwidth == pytest.approx(8 * 100e9 / 8)  # 100 Gb/s for each of 8 devices


def test_a_framework_may_have_run_with_another_attention_kernel(tmp_path: Path) -> None:
    off, on = read(tmp_path, {"flash_attention": "no"}, {"framework": "Megatron-DeepSpeed", "flash_attention": "yes"})
    assert (off.work.framework.attention, on.work.framework.attention) == ("unfused", "fa2")


def test_precisions_are_read_in_the_words_of_tables(tmp_path: Path) -> None:
    def check(text: str, precision: str) -> None:
        (case,) = read(tmp_path, {"precision": text})
        assert case.work.precision == precision

    check_every(
        check,
        [("NVFP4", "nvfp4"), ("FP8-CS", "fp8"), ("FP8-MX", "mxfp8"), ("float8", "fp8"), ("bfloat16", "bf16"), ("FP16", "fp16")],
    )


@pytest.mark.parametrize("text", ["int8", "fp32", "foo"])
def test_an_unknown_precision_is_skipped_in_one_line(tmp_path: Path, text: str) -> None:
    assert f"precision '{text}' is unknown" in skipped(tmp_path, {"precision": text})


def test_compile_is_read_and_narrow_runs_of_torchtitan_are_compiled(tmp_path: Path) -> None:
    plain, said, narrow, eager = read(
        tmp_path,
        *(
            {"framework": "torchtitan", "gpu": "H100", "zero_stage": "3"} | row
            for row in ({}, {"compile": "yes"}, {"precision": "float8"}, {"precision": "float8", "compile": "no"})
        ),
    )
    assert [case.work.compiled for case in (plain, said, narrow, eager)] == [False, True, True, False]
