"""Faults that were planted in real runs are named first or second, clean runs have no certain fault, and parts add up to the step.

The traces are those of benchmarks/doctor/plant.py and unseen.py (CPU, gloo) and of plain PyTorch steps on an H200, without what no reader
looks at."""

from functools import cache
from pathlib import Path

import pytest

from meshwise import api

TRACES = Path(__file__).parents[2] / "fixtures" / "doctor"
PLANTED = {
    "no-flash-attention": "no flash attention", "unfused-optimizer": "no fused optimizer", "slow-loader": "data loader",
    "slow-workers": "data loader", "recompilation": "recompilation", "eager-loss": "eager loss", "head-size": "head size",
    "checkpoint": "checkpoint in the step", "uneven-experts": "expert imbalance", "host-work": "host work",
    "tiny-messages": "tiny messages", "slow-rank": "slow rank", "slow-data-of-a-rank": "slow rank", "no-overlap": "no overlap",
    "h200-no-flash": "no flash attention", "h200-fp32-no-tf32": "TF32 off", "h200-unfused-optimizer": "no fused optimizer",
    "h200-starving-loader": "data loader", "h200-item-each-layer": "synchronisation", "h200-input-not-pinned": "pageable copies",
    "h200-logits-to-the-host": "copies to the host",
    "own-update-loop": "no fused optimizer", "saved-each-step": "checkpoint in the step", "numpy-checkpoint": "checkpoint in the step",
    "two-busy-experts": "expert imbalance", "one-hot-loss": "eager loss", "sharded-in-turns": "no overlap",
    "late-data-of-first-rank": "slow rank", "pattern-of-text": "data loader",
}  # fmt: skip
CLEAN = ("clean", "clean-deep", "clean-workers", "clean-micro-batches", "clean-experts", "clean-heads-of-32", "clean-data-parallel",
         "clean-capacity", "clean-autocast", "clean-inference", "h200-clean", "h200-run-llama-1b", "h200-run-olmoe")  # fmt: skip


def traces(name: str) -> list[Path]:
    return sorted(TRACES.glob(f"{name}.*")) or [TRACES / name]


@cache
def diagnosed(name: str):
    return api.doctor(*traces(name))


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_named_first_or_second(name):
    found = diagnosed(name)
    assert PLANTED[name] in [fault.name for fault in found.faults[:2]], found.verdict


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_run_has_no_certain_fault(name):
    found = diagnosed(name)
    assert [fault.name for fault in found.faults if fault.certainty == "certain"] == []


def test_layers_of_different_widths_are_not_taken_for_experts():
    assert "expert imbalance" not in [fault.name for fault in diagnosed("h200-near-the-limit").faults]


@pytest.mark.parametrize("name", ["clean", "tiny-messages", "h200-clean", "h200-run-olmoe", "recompilation"])
def test_parts_add_up_to_the_step(name):
    for one in diagnosed(name).profiles:
        assert sum(one.parts.values()) == pytest.approx(one.step, rel=0.005)


def test_the_slow_rank_is_named_with_its_part():
    (fault,) = [fault for fault in diagnosed("slow-rank").faults if fault.name == "slow rank"]
    assert fault.ranks == (1,)
    assert "matrix products" in fault.message  # the other job of plant.py multiplies matrices
    (fault,) = [fault for fault in diagnosed("slow-data-of-a-rank").faults if fault.name == "slow rank"]
    assert fault.ranks == (2,)
    assert "waiting for data" in fault.message


@pytest.mark.parametrize(("name", "layers"), [("llama-1b", 16), ("olmoe", 6)])
def test_a_run_of_our_trainer_is_compared_with_its_own_plan(name, layers):
    found = api.doctor(TRACES / f"h200-run-{name}")
    rows = {row.part: row for row in found.rows}
    assert found.prediction is not None
    assert found.prediction.whole
    assert found.profiles[0].layers == layers
    assert rows["step"].measured == pytest.approx(rows["step"].should_be, rel=0.05)
    # 13% in attention of Llama and 24% in the elementwise part of OLMoE are the worst (H200, 2026-11-18)
    for part in ("matmul", "optimizer"):
        assert rows[part].measured == pytest.approx(rows[part].should_be, rel=0.1)


def test_products_of_an_h200_are_near_the_roofline_of_their_shapes():
    one = diagnosed("h200-clean").profiles[0]
    assert (one.micro_batches, one.layers) == (1, 4)  # as planted
    assert {(p.m, p.n, p.k) for p in one.products} >= {(8192, 128256, 2048), (8192, 8192, 2048)}
    for product in one.products[:6]:
        assert product.seconds == pytest.approx(product.should_be, rel=0.15)


def test_flags_give_the_prediction_of_a_run_that_has_no_folder(tmp_path):
    bare = tmp_path / "trace.json.gz"
    bare.write_bytes((TRACES / "h200-run-llama-1b" / "trace-rank0.json.gz").read_bytes())
    found = api.doctor(bare, model="llama-3.2-1b", batch="8", seq="2k", on="1x1xh200", framework="meshwise", mbs=8)
    assert found.prediction is not None
    assert found.prediction.whole
    assert found.rows[-1].measured == pytest.approx(found.rows[-1].should_be, rel=0.1)
