"""Published effects of quantization on quality."""

from meshwise.catalogue.quality import qualities, quality_note
from meshwise.models.formats import FORMATS


def test_fewer_bits_cost_more_and_every_source_is_named() -> None:
    changes = next(one for one in qualities() if one.key == "llama-quantize").changes
    order = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q3_K_M", "Q2_K")
    assert [changes[name] for name in order] == sorted(changes[name] for name in order)
    wrong = [one.key for one in qualities() if not one.url.startswith("https://") or not one.title]
    unknown = [fmt for one in qualities() for fmt in (*one.changes, *one.words) if fmt not in FORMATS]
    assert not wrong + unknown


def test_a_note_states_the_change_and_its_source() -> None:
    assert quality_note("Q4_K_M", "llama").startswith("perplexity of Llama 3 8B +0.18 (llama.cpp")
    assert "no loss" in quality_note("fp8", "llama")
    assert quality_note("bf16", "llama") == ""


def test_a_format_that_a_model_was_trained_in_is_no_loss_for_that_model_alone() -> None:
    assert "trained for" in quality_note("mxfp4", "gpt_oss")
    assert quality_note("mxfp4", "llama") == ""
