"""Notes on the quality of weight formats: every common format below 16 bits has one, with its source."""

from meshwise.catalogue.engines import engines
from meshwise.models.formats import FORMATS
from meshwise.models.quality import evaluations, quality_note

UNRATED = {"mlx-8bit", "mlx-4bit", "nvfp4"}
"""Common formats that no source here evaluates."""


def test_common_formats_have_a_note_and_whole_ones_have_none() -> None:
    common = {name for engine in engines().values() for name in engine.common_formats}
    assert {name for name in common if not quality_note(name)} == {"F16", "bf16", *UNRATED}
    assert quality_note("Q4_K_M").startswith("quality of Q4_K_M: about 2.5% more perplexity than 16 bits")
    assert quality_note("fp8").endswith("(Kurtic et al.)")


def test_notes_are_about_formats_that_exist_and_wider_ones_lose_less() -> None:
    for one in evaluations():
        assert {*one.formats, *one.words} <= set(FORMATS)
        assert all(0 <= value < 2 for value in one.formats.values())
    (gguf,) = (one for one in evaluations() if one.formats)
    ladder = [float(gguf.formats[name]) for name in ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q3_K_M", "Q2_K")]
    assert ladder == sorted(ladder)
