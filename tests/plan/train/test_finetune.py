"""A plan of fine-tuning says what is trained, what fits, what the data takes, and what would fit where nothing does."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshwise.cost.axes import RECOMPUTE
from meshwise.cost.layout import Floats, Layouts
from meshwise.cost.train.question import Question
from meshwise.cost.train.step import peak
from meshwise.errors import DoesNotFit, UserError
from meshwise.plan.ask import TrainAsk
from meshwise.plan.train import finetune
from meshwise.plan.train.plan import TrainPlan, make

ASK = TrainAsk("llama-3.1-8b", on="1xrtx3090", batch=8, seq=2048, finetune="qlora:16")


@pytest.fixture(scope="module")
def plan() -> TrainPlan:
    return make(ASK)


def test_a_card_of_24_gib_fine_tunes_8b_with_qlora(plan: TrainPlan) -> None:
    assert plan.framework == "TRL"
    assert plan.finetune is not None
    assert plan.finetune.trained == 41_943_040
    assert plan.finetune.saved_bytes == 2 * 41_943_040
    assert plan.finetune.free == plan.best.capacity - plan.best.needs > 0


def test_the_largest_batch_and_sequence_are_those_that_just_fit(plan: TrainPlan) -> None:
    q, found = plan.question(), plan.finetune
    assert found is not None
    room = q.chip.memory * (1 - q.work.reserve)

    def needs(batch: int, seq: int, recompute: str) -> float:
        work = replace(q.work, seq=seq, batch=batch)
        return peak(replace(q, work=work), Layouts.of(mbs=np.array([batch]), recompute=RECOMPUTE.index(recompute)))[0]

    batch, how = found.largest_batch, found.largest_batch_recompute
    assert needs(batch, 2048, how) <= room < needs(batch + 1, 2048, how)
    longest, how = found.longest, found.longest_recompute
    assert needs(1, longest, how) <= room < needs(1, longest + 64, how)


def test_hours_and_money_follow_from_the_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"tokens": 1024}) + "\n" for _ in range(1000)))
    made = make(replace(ASK, data=str(path), epochs=3, price=1 / 3600))
    found = made.finetune
    assert found is not None
    assert (found.rows, found.packed, found.counted) == (1000, 1.0, True)
    tokens = 3 * 1000 * 1024
    assert found.seconds == pytest.approx(tokens / made.best.tokens_per_second)
    assert found.dollars == pytest.approx(found.seconds / 3600)
    padded = make(replace(ASK, data=str(path), epochs=3, packing=False))
    assert padded.finetune is not None
    assert padded.finetune.seconds == pytest.approx(found.seconds)  # equal rows need no padding


def test_a_plan_of_fine_tuning_is_read_back(plan: TrainPlan, tmp_path: Path) -> None:
    from meshwise.plan.train.plan import read

    assert read(plan.save(tmp_path / "plan.json")) == plan


def test_another_framework_is_planned_where_the_usual_one_does_not_fit() -> None:
    made = make(replace(ASK, finetune="full", ram=192e9))
    assert made.framework == "TRL with DeepSpeed"
    assert made.best.layout["offload"] != "none"
    assert any("planned with TRL with DeepSpeed" in note for note in made.notes)
    assert "--framework trl+deepspeed" in made.command


def test_unequal_cards_hold_what_the_smaller_two_would_not() -> None:
    """As ranks of 12 GiB each, or as stages in proportion to 24 and 12 GiB."""
    mixed = make(replace(ASK, on="1xrtx3090+1xrtx3060", finetune="lora:16"))
    weak = make(replace(ASK, on="2xrtx3060", finetune="lora:16"))
    assert mixed.best.step <= weak.best.step
    assert any(note.startswith("unequal cards: ") for note in mixed.notes)


def test_cards_that_wait_for_a_weaker_one_are_told_that_they_would_be_faster_without_it() -> None:
    mixed = make(replace(ASK, on="2xrtx3090+1xrtx3060", finetune="lora:16"))
    alone = make(replace(ASK, on="2xrtx3090", finetune="lora:16"))
    assert alone.best.step < mixed.best.step
    assert any(note.endswith("--on 2xrtx3090") and f"{alone.best.step:.3g} s" in note for note in mixed.notes), mixed.notes
    assert not any("without the other cards" in note for note in alone.notes)


@pytest.mark.parametrize("finetune", ["qlora:16", "lora:16"])
def test_tensor_parallelism_cuts_no_4_bit_weights(finetune: str) -> None:
    ask = replace(ASK, on="2xrtx3090", finetune=finetune, fix=("tp=2",))
    if finetune == "lora:16":
        assert make(ask).best.layout["tp"] == 2
    else:
        with pytest.raises(DoesNotFit, match=r"4-bit weights \(qlora\) are not cut by tp"):
            make(ask)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epochs": 3}, "--epochs counts passes over --data"),
        ({"packing": False}, "leave out --no-packing"),
        ({"images": 2}, "--images counts pictures for --tower"),
        ({"answers": 4}, "--objective ppo, grpo"),
        ({"prompt": 100}, "--objective ppo, grpo"),
    ],
)
def test_options_without_effect_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        make(replace(ASK, **change))


def test_sequences_beyond_the_context_are_planned_with_a_note() -> None:
    """People train Llama 2 at 100k tokens."""
    made = make(replace(ASK, model="llama-2-7b", on="8xh100-sxm", seq=65536, finetune="lora:16"))
    assert any("exceeds the 4,096 tokens of context of llama-2-7b" in note for note in made.notes)


def test_no_sequence_longer_than_the_model_allows_is_reported_or_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def watched(q: Question, layouts: Layouts) -> Floats:
        tried.append(q.work.seq)
        return peak(q, layouts)

    monkeypatch.setattr(finetune, "peak", watched)
    found = make(replace(ASK, on="1xh200", objective="reward")).finetune
    assert found is not None
    assert found.longest == max(tried) == 131_072


def test_a_run_over_few_rows_takes_a_whole_step_and_tells_how_many_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"tokens": length}) + "\n" for length in (100, 3000, 5000)))
    found = make(replace(ASK, data=str(path))).finetune
    assert found is not None
    assert (found.steps, found.cut, found.longest_row) == (1, 2, 5000)


def test_stages_of_a_device_map_run_one_after_another() -> None:
    made = make(replace(ASK, model="qwen2.5-14b", on="2xrtx3090", finetune="lora:16", framework="accelerate", fix=("pp=2",)))
    best = made.best
    assert best.layout["schedule"] == "naive"
    computing = sum(best.time[part] for part in ("matmul", "attention", "elementwise", "recompute"))
    assert best.time["bubble"] == pytest.approx(computing, rel=0.15)  # the other card computes as long


@pytest.mark.parametrize("objective", ["dpo", "kto", "orpo", "reward", "embedding"])
def test_pairs_and_references_take_more_time_than_plain_text(objective: str, plan: TrainPlan) -> None:
    made = make(replace(ASK, objective=objective))
    assert made.best.step > 1.3 * plan.best.step


def test_a_reference_is_a_copy_of_the_model_only_where_all_of_it_is_trained() -> None:
    ask = replace(ASK, model="llama-3.2-1b", on="1xh200", framework="ddp", fix=("mbs=2", "recompute=none"))
    whole, lora = (
        [make(replace(ask, finetune=finetune, objective=objective)).best.memory["weights"] for objective in ("orpo", "dpo")]
        for finetune in ("full", "lora:16")
    )
    assert whole[1] - whole[0] == pytest.approx(2 * 1_235_814_400, rel=1e-4)
    assert lora[1] == lora[0]


def pictured(folder: Path) -> str:
    """A config of Qwen2.5-VL 7B: a tower of 676,550,144 parameters beside the language model."""
    text = {"model_type": "qwen2_5_vl_text", "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28,
            "num_hidden_layers": 28, "num_key_value_heads": 4, "vocab_size": 152064}  # fmt: skip
    tower = {"model_type": "qwen2_5_vl", "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16,
             "out_hidden_size": 3584, "patch_size": 14, "image_size": 448}  # fmt: skip
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": "qwen2_5_vl", "text_config": text, "vision_config": tower}))
    return str(path)


@pytest.mark.parametrize("finetune", ["full", "lora:16", "freeze:4"])
def test_a_tower_is_counted_frozen_or_trained(tmp_path: Path, finetune: str) -> None:
    ask = replace(
        ASK,
        model=pictured(tmp_path),
        on="8xh200",
        finetune=finetune,
        framework="meshwise",
        fix=("mbs=1", "recompute=none", "tp=2", "pp=1", "zero=0"),
        batch=8,
    )
    without, frozen, trained = (make(replace(ask, tower=tower)).best for tower in ("", "frozen", "trained"))
    parameters = 676_550_144 / 2  # tensor parallelism of 2
    assert frozen.memory["weights"] - without.memory["weights"] == pytest.approx(2 * parameters, rel=1e-6)
    states = [one.moments["loss"]["optimizer"] for one in (without, frozen, trained)]
    assert states[0] == states[1]
    assert states[2] - states[1] == pytest.approx((8 if finetune == "lora:16" else 12) * parameters)
    assert trained.time["matmul"] - frozen.time["matmul"] == pytest.approx(2 * (frozen.time["matmul"] - without.time["matmul"]))
    kept = [one.moments["last layer"]["activations"] for one in (without, frozen, trained)]
    assert kept[2] > kept[1] == kept[0]


def test_a_model_without_a_tower_is_refused() -> None:
    with pytest.raises(UserError, match="has no tower whose type is known"):
        make(replace(ASK, tower="frozen"))
