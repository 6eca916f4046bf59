"""Verdicts of `check` on launch files with common mistakes, and the patched copy that it writes."""

from pathlib import Path

import pytest

from meshwise import api
from meshwise.audit.check.verdict import Verdict
from meshwise.errors import UserError
from support.command import meshwise
from support.launch_files import FIXTURES

MEGATRON = """#!/bin/bash
#SBATCH --nodes={nodes}
#SBATCH --gpus-per-node=8
TP={tp}
PP={pp}
# TP=2 PP=2 was the size of the 7B
torchrun --nnodes {nodes} --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \\
    --ffn-hidden-size 14336 --swiglu --untie-embeddings-and-output-weights --vocab-size 32000 --disable-bias-linear \\
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP --micro-batch-size 1 --global-batch-size 256 \\
    --seq-length 4096 --max-position-embeddings 4096 --position-embedding-type rope --bf16 --train-iters 1000 {more}
"""


def checked(
    tmp_path: Path, more: str = "--use-distributed-optimizer", *, tp: int = 2, pp: int = 1, nodes: int = 2, on: str = "h100-sxm"
) -> Verdict:
    file = tmp_path / "train.sbatch"
    file.write_text(MEGATRON.format(nodes=nodes, tp=tp, pp=pp, more=more))
    return api.check(file, on=on)


def texts(verdict: Verdict, severity: str) -> list[str]:
    return [finding.message for finding in verdict.findings if finding.severity == severity]


def test_a_file_without_mistakes_fits(tmp_path: Path) -> None:
    verdict = checked(tmp_path)
    assert (verdict.code, verdict.fits, verdict.starts) == (0, True, True)
    assert verdict.own is not None
    assert verdict.own.layout["tp"] == 2
    assert verdict.own.layout["dp_shard"] == 8
    assert verdict.line.startswith("fits: dp8 tp2 pp1 mbs1 zero1")


def test_more_ranks_than_devices_cannot_start(tmp_path: Path) -> None:
    verdict = checked(tmp_path, tp=8, pp=4)
    assert verdict.code == 1
    assert texts(verdict, "stops") == [
        "tp 8 x pp 4 = 32 is more than the 16 devices: it cannot start as written; from 32 devices on it can"
    ]
    assert verdict.line.startswith("cannot start: tp 8 x pp 4")
    assert verdict.best is not None  # the same question still has an answer


def test_a_cluster_that_is_too_small_cannot_start_it(tmp_path: Path) -> None:
    verdict = checked(tmp_path, nodes=4, on="2x8xh100-sxm")
    assert texts(verdict, "stops") == ["it asks for 32 devices, and 2x8xh100-sxm has 16"]


def test_expert_parallelism_of_a_model_without_experts_does_nothing(tmp_path: Path) -> None:
    plain, cut = (checked(tmp_path, f"--use-distributed-optimizer {more}") for more in ("", "--expert-model-parallel-size 8"))
    assert "ep 8 does nothing: the model has no experts" in texts(cut, "warns")
    assert plain.own is not None
    assert cut.own is not None
    assert cut.own.step == pytest.approx(plain.own.step, rel=0.01)


def test_sequence_parallelism_without_tensor_parallelism_does_nothing(tmp_path: Path) -> None:
    verdict = checked(tmp_path, "--use-distributed-optimizer --sequence-parallel", tp=1)
    assert texts(verdict, "warns") == ["sequence parallelism does nothing: tp is 1"]
    assert verdict.facts.value("sp") == 0


def test_the_last_of_two_values_wins(tmp_path: Path) -> None:
    verdict = checked(tmp_path, "--use-distributed-optimizer --micro-batch-size 2")
    assert verdict.facts.value("mbs") == 2
    assert len(texts(verdict, "warns")) == 1
    assert "--micro-batch-size 1" in texts(verdict, "warns")[0]
    assert texts(verdict, "warns")[0].endswith(": the last one, 2, wins")


def test_expert_parallelism_counts_ranks_not_experts(tmp_path: Path) -> None:
    verdict = checked(tmp_path, "--num-experts 8 --expert-model-parallel-size 16")
    assert "ep 16 does not divide 8 experts; 16 looks like a count of experts per rank" in texts(verdict, "stops")


def test_a_batch_that_does_not_divide_cannot_start(tmp_path: Path) -> None:
    verdict = checked(tmp_path, "--global-batch-size 100")
    assert "a batch of 100 is not a multiple of micro-batch 1 x dp 8 = 8; 96 is" in texts(verdict, "stops")


def test_full_recompute_needs_a_method(tmp_path: Path) -> None:
    assert texts(checked(tmp_path, "--recompute-granularity full"), "stops") == [
        "full recompute needs --recompute-method (uniform or block)"
    ]


def test_fsdp_beats_the_distributed_optimizer(tmp_path: Path) -> None:
    more = "--use-distributed-optimizer --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params"
    verdict = checked(tmp_path, f"{more} --ckpt-format fsdp_dtensor")
    assert verdict.facts.value("zero") == 3
    assert texts(verdict, "notes") == ["Megatron-FSDP's strategy counts, not --use-distributed-optimizer"]


def test_stage_0_of_a_bf16_pipeline_is_stage_1() -> None:
    verdict = api.check(FIXTURES / "bloom-176b.slurm", on="jean-zay:48")
    assert verdict.facts.value("zero") == 1
    assert texts(verdict, "notes") == [
        "ZeRO stage 0 with bf16: DeepSpeed's pipeline shards the optimizer all the same, as stage 1 does"
    ]
    assert verdict.own is not None
    assert verdict.own.name == "dp8 tp4 pp12 mbs2 zero1 full recompute"


def test_a_float8_table_without_its_converter_is_off() -> None:
    verdict = api.check(FIXTURES / "titan-llama3-70b.toml", on="8x8xh100-sxm")
    assert verdict.facts.value("precision") == "bf16"
    assert any("does nothing: model.converters does not name the converter" in text for text in texts(verdict, "warns"))


def test_zero_in_a_second_file_is_unknown_until_it_is_given() -> None:
    alone = api.check(FIXTURES / "trainer-zero3.sh", on="h100-sxm")
    assert (alone.facts.value("zero"), alone.fits, alone.code) == (None, None, 0)
    assert alone.missing == (f"configs/zero3-auto.json (--deepspeed, {FIXTURES / 'trainer-zero3.sh'}:8) was not given",)
    both = api.check(FIXTURES / "trainer-zero3.sh", FIXTURES / "zero3-auto.json", on="h100-sxm")
    assert (both.facts.value("zero"), both.facts.value("mbs"), both.fits) == (3, 2, True)


def test_what_is_unknown_is_answered_by_set(tmp_path: Path) -> None:
    file = tmp_path / "train.sh"
    file.write_text(MEGATRON.format(nodes=2, tp="$1", pp=1, more=""))
    verdict = api.check(file, on="h100-sxm")
    assert verdict.facts.value("tp") is None
    assert verdict.own is None
    assert any(line.startswith("tp:") for line in verdict.unknown)
    assert api.check(file, on="h100-sxm", set=["TP=4"]).facts.value("tp") == 4
    assert api.check(file, on="h100-sxm", set=["tp=4"]).facts.value("tp") == 4


def test_without_a_cluster_only_arithmetic_is_checked(tmp_path: Path) -> None:
    file = tmp_path / "train.sbatch"
    file.write_text(MEGATRON.format(nodes=2, tp=2, pp=1, more=""))
    verdict = api.check(file)
    assert (verdict.code, verdict.fits) == (0, None)
    file.write_text(MEGATRON.format(nodes=2, tp=2, pp=16, more=""))
    assert api.check(file).code == 1


TASK = ("batch", "seq", "tokens", "steps", "samples", "precision", "devices", "model")
FIXED = {
    "nanotron-tiny.yaml": "8x8xh100-sxm",
    "titan-llama3-70b.toml": "8x8xh100-sxm",
    "llama3-8b-fp8.sh": "h100-sxm",
    "maxtext-llama3.sh": "tpu-v5p:4x4x4",
}


@pytest.mark.parametrize("name", FIXED)
def test_the_patched_copy_says_the_best_layout_and_is_otherwise_the_same(name: str, tmp_path: Path) -> None:
    verdict = api.check(FIXTURES / name, on=FIXED[name])
    assert verdict.best is not None
    (made,) = verdict.save(tmp_path / name)
    again = api.check(made, on=FIXED[name])
    assert again.own is not None
    assert again.own.layout == verdict.best.layout
    assert again.best is None
    assert {fact: again.facts.value(fact) for fact in TASK} == {fact: verdict.facts.value(fact) for fact in TASK}
    before, after = (FIXTURES / name).read_text().splitlines(), made.read_text().splitlines()
    changed = {change.span.line for change in verdict.changes if change.span is not None}
    added = sum(change.action == "insert" for change in verdict.changes)
    kept = [line for number, line in enumerate(before, 1) if number not in changed]
    assert sum(line in after for line in kept) >= len(kept) - added


def test_a_patch_that_would_not_read_back_is_refused_in_one_line(tmp_path: Path) -> None:
    """FSDP of the first version says ZeRO 2 in its list of words, which no single key changes."""
    verdict = api.check(FIXTURES / "axolotl-llama3.yml", on="8xh100-sxm")
    with pytest.raises(UserError, match="no single place in the files; make them by hand"):
        verdict.save(tmp_path / "out")


def test_a_file_that_is_best_already_is_not_patched(tmp_path: Path) -> None:
    verdict = api.check(FIXTURES / "bloom-176b.slurm", on="jean-zay:48")
    with pytest.raises(UserError, match="nothing is better"):
        verdict.save(tmp_path / "out")


def test_exit_codes_and_forms_of_the_verb(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.sbatch", tmp_path / "bad.sbatch"
    good.write_text(MEGATRON.format(nodes=2, tp=2, pp=1, more="--use-distributed-optimizer"))
    bad.write_text(MEGATRON.format(nodes=2, tp=8, pp=8, more=""))
    quiet = meshwise("check", str(good), "--on", "h100-sxm", "--quiet")
    assert (quiet.code, quiet.out.count("\n")) == (0, 1)
    assert meshwise("check", str(bad), "--on", "h100-sxm", "--quiet").out.startswith("cannot start: ")
    assert meshwise("check", str(bad), "--on", "h100-sxm").code == 1
    assert '"code": 0' in meshwise("check", str(good), "--on", "h100-sxm", "--json").out
    assert meshwise("check", str(tmp_path / "none.sh")).code == 2
    (tmp_path / "prose.txt").write_text("Dear all,\nthe run went well.\n")
    refused = meshwise("check", str(tmp_path / "prose.txt"))
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    (tmp_path / "train.py").write_text("print(1)\n")
    assert "Python is not read" in meshwise("check", str(tmp_path / "train.py")).err
