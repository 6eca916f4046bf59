"""Remedies for a model that does not fit: only changes that are needed, in the order of harm, with the bytes that each saves."""

from dataclasses import replace

import numpy as np
import pytest

from meshwise.cost.train.step import host_needs, peak
from meshwise.errors import DoesNotFit
from meshwise.plan.ask import TrainAsk
from meshwise.plan.train import lookup
from meshwise.plan.train.fallback import first_that_fits
from meshwise.plan.train.plan import make
from meshwise.plan.train.remedies import CHANGES, Cure, Remedy, cure, words
from meshwise.units import GIB

CARD = TrainAsk("llama-3.1-8b", on="1xrtx3090", batch=8, seq=2048)
ASKS = {
    "host": CARD,
    "lora": replace(CARD, ram=64 * GIB),
    "qlora": replace(CARD, on="1xrtx3060", finetune="lora:16"),
    "bounded": replace(CARD, finetune="lora:16", fix=("recompute=none", "mbs=8")),
    "ddp": replace(CARD, model="llama-3.2-1b", on="1xrtx3060", framework="ddp"),
    "pairs": replace(CARD, model="llama-3.2-3b", finetune="full", objective="dpo", framework="ddp"),
}


@pytest.fixture(scope="module")
def cures() -> dict[str, Cure]:
    found = {name: cure(ask) for name, ask in ASKS.items()}
    assert all(found.values()), found
    return {name: one for name, one in found.items() if one is not None}


def changed(ask: TrainAsk, flags: list[str]) -> TrainAsk:
    """The question with those changes whose flags are listed, in their order."""
    for change in CHANGES:
        made = change(ask)
        if made is not None and made[0] in flags:
            ask = made[1]
    return ask


@pytest.mark.parametrize("name", ASKS)
def test_all_changes_together_make_it_fit_and_none_can_be_left_out(name: str, cures: dict[str, Cure]) -> None:
    flags = [remedy.flag for remedy in cures[name].remedies]
    assert flags
    ask = changed(ASKS[name], flags)
    assert first_that_fits(ask, lookup.question(ask), top=1).fits
    for left_out in flags:
        fewer = changed(ASKS[name], [flag for flag in flags if flag != left_out])
        assert not first_that_fits(fewer, lookup.question(fewer), top=1).fits, (flags, left_out)


def test_a_sequence_beyond_the_context_is_no_reason_to_shorten_it() -> None:
    found = cure(TrainAsk("bloom-176b", on="8xrtx4090", batch=8, seq=4096))
    assert found is not None
    assert found.remedies[0].flag == "--finetune qlora:16"


@pytest.mark.parametrize("name", ASKS)
def test_savings_add_up_to_the_difference_of_one_layout(name: str, cures: dict[str, Cure]) -> None:
    found = cures[name]
    ask = changed(ASKS[name], [remedy.flag for remedy in found.remedies])
    fitted = first_that_fits(ask, lookup.question(ask), top=1)
    layout = fitted.found.layouts.take(np.array([0]))
    assert found.peak == float(peak(fitted.question, layout)[0])
    assert found.on_host == float(host_needs(fitted.question, layout)[0]) <= found.host
    assert found.peak <= fitted.question.chip.memory * (1 - fitted.question.work.reserve)
    for remedy in found.remedies:  # each helps, on the device or on the host
        assert remedy.saves > 0 or remedy.on_host > 0, remedy
    before = found.peak + sum(remedy.saves for remedy in found.remedies)
    on_host = found.on_host + sum(remedy.on_host for remedy in found.remedies)
    room = fitted.question.chip.memory * (1 - fitted.question.work.reserve)
    assert before > room or on_host > found.host, "the same layout would have fitted without the changes"


def test_an_optimizer_that_cannot_be_offloaded_is_not_offered_with_offload(cures: dict[str, Cure]) -> None:
    """bitsandbytes' 8-bit AdamW updates nothing in host memory: with FSDP or DeepSpeed that offload, it stops."""
    for found in cures.values():
        flags = [remedy.flag for remedy in found.remedies]
        assert not ("--optimizer adamw-8bit" in flags and "offload" in found.layout), found
    with pytest.raises(DoesNotFit, match=r"or offload fits with \d+ GiB of host memory, of which 96 are assumed \(--ram\)"):
        make(CARD)


def test_full_tuning_on_a_small_card_is_offered_the_recipe_that_fits_before_adapters() -> None:
    """torchtune's 8B_full_single_device runs on 24 GB: paged 8-bit AdamW inside the backward pass."""
    found = cure(replace(CARD, on="1xrtx4090", finetune="full"))
    assert found is not None
    assert [remedy.flag for remedy in found.remedies] == [
        "--framework torchtune --optimizer adamw-paged-8bit --in-backward --batch 2"
    ]
    assert found.framework == "torchtune"
    assert found.peak < 23 * GIB


def test_adapters_are_offered_before_more_cards() -> None:
    with pytest.raises(DoesNotFit) as refused:
        make(replace(CARD, on="1xrtx4090", finetune="full"))
    text = str(refused.value)
    assert 0 < text.index("--finetune lora:16") < text.index("devices would do")


def test_host_memory_that_is_said_to_suffice_does() -> None:
    with pytest.raises(DoesNotFit) as refused:
        make(CARD)
    enough = int(str(refused.value).split("offload fits with ")[1].split(" GiB")[0]) + 1
    assert make(replace(CARD, ram=enough * GIB)).best.layout["offload"] != "none"


def test_what_would_fit_is_told_with_its_layout() -> None:
    with pytest.raises(
        DoesNotFit, match=r"; --finetune lora:16 saves [\d.]+ GiB: then it fits in [\d.]+ GiB \(dp1 tp1 pp1 mbs\d.* DDP\)"
    ):
        make(ASKS["ddp"])


def test_no_advice_is_printed_where_none_helps() -> None:
    ask = replace(CARD, model="llama-3-405b", finetune="full")
    assert cure(ask) is None
    with pytest.raises(DoesNotFit) as refused:
        make(ask)
    assert str(refused.value).endswith("RTX 3090 has 24.0")


def test_several_changes_are_told_in_one_clause() -> None:
    found = Cure(
        (Remedy("--loss fused", 2.9 * GIB), Remedy("--finetune lora:16", 70.1 * GIB, 3.0 * GIB)),
        "dp1",
        "DDP",
        20 * GIB,
        10 * GIB,
        11 * GIB,
    )
    told = "--loss fused saves 2.9 GiB, --finetune lora:16 70.1 GiB more and 3.0 GiB of host memory: then it fits in 20.0 GiB"
    assert words(found) == f"{told} and 10.0 of the host's 11.0 (dp1 with DDP)"


def test_experts_that_others_keep_in_16_bits_fit_with_unsloth() -> None:
    """Unsloth quantises experts, which bitsandbytes alone leaves as they are: gpt-oss-20b is known to fit a card of 24 GB."""
    found = cure(TrainAsk("gpt-oss-20b", on="1xrtx3090", batch=4, seq=4096, finetune="qlora:16"))
    assert found is not None
    assert ([remedy.flag for remedy in found.remedies], found.framework) == (["--framework unsloth"], "Unsloth")
    named = cure(TrainAsk("gpt-oss-20b", on="1xrtx3090", batch=4, seq=4096, finetune="qlora:16", framework="trl"))
    assert named is None or all("unsloth" not in remedy.flag for remedy in named.remedies)
