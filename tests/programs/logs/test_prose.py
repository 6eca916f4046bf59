"""Claims in sentences: rates, products, meanings, efficiencies, spreads and grades."""

import math

from meshwise.programs.logs import prose
from meshwise.runs.reading import Claim


def claims(text: str, model: str = "") -> list[Claim]:
    return list(prose.claims(text, "line 1", model))


def test_a_rate_has_its_model_its_gpus_and_the_kind_of_token():
    (claim,) = claims("With four GPUs Llama 3.3 reads 7.01 prompt tokens per second.")
    assert (claim.kind, claim.values, claim.about) == ("rate", (7.01, 4), ("llama 3.3", "prompt"))
    (claim,) = claims("It ran at 3.5 tok/s.", model="llama 3.3")
    assert (claim.values[0], claim.about) == (3.5, ("llama 3.3", ""))
    assert math.isnan(claim.values[1])


def test_products_in_sentences_and_in_brackets_are_read():
    (claim,) = claims("so 128 x 16 x 8 = 2,048 in all")
    assert (claim.kind, claim.values) == ("product", (2048, 128, 16, 8))
    (claim,) = claims("2,048 tokens per step (128 tokens × 16 batch × 8 GPUs)")
    assert claim.values == (2048, 128, 16, 8)


def test_abbreviations_efficiencies_spreads_and_grades_are_read():
    texts = {
        "RPC stands for Realtime Communication Protocol": ("meaning", ()),
        "Virtual Memory (Vram)": ("meaning", ()),
        "a 90% scaling efficiency": ("efficiency", (0.9,)),
        "3.6x throughput with 4x GPUs": ("efficiency", (3.6, 4.0)),
        "±6% across 8 GPUs": ("spread", (0.06,)),
        "Grade: A+ (95/100)": ("grade", ()),
    }
    found = {text: [(claim.kind, claim.values) for claim in claims(text)] for text in texts}
    assert found == {text: [one] for text, one in texts.items()}


def test_a_bracket_that_does_not_spell_the_abbreviation_out_is_no_meaning():
    assert claims("GPU (efficient utilization)") == []
