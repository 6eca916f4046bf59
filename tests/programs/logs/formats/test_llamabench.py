"""llama-bench: the same runs in every output format. Figures: tests/fixtures/audit/README.md."""

import pytest

from support.audits import FIXTURES, read_text, runs_of

OUTPUTS = ("jsonl", "csv", "md")


def test_llama_bench_is_the_same_in_every_output():
    for ending in OUTPUTS:
        found = runs_of(f"llama-bench.{ending}")
        assert [run.number("decode") for run in found[:4]] == [115.42, 111.74, 97.31, pytest.approx(87.5, abs=0.1)], ending
        assert found[4].number("prefill") == 4030.4, ending
        assert found[0].text("weights") == "Q4_K_M", ending
        assert found[0].number("params") == pytest.approx(8.03e9, rel=1e-3), ending


def test_llama_bench_of_today_is_read_and_tokens_after_a_filled_cache_count_as_after_a_prompt():
    """As printed: 64 tokens of prompt and 16 generated, with an empty cache and after 256 tokens."""
    for ending in OUTPUTS:
        found = runs_of(f"llama-bench-cpu.{ending}")
        assert [(run.number("prompt"), run.number("output")) for run in found] == [(64, 0), (0, 16), (64, 0), (256, 16)], ending
        speeds = [run.number("decode" if run.number("output") else "prefill") for run in found]
        printed = [116.542, 30.642, 136.835, 29.898] if ending == "csv" else [65.16, 9.03, 112.28, 37.75]
        assert speeds == pytest.approx(printed, abs=0.01), ending
        assert {run.text("weights") for run in found} == {"Q4_K_M"}, ending
        assert found[0].number("params") == pytest.approx(134.515e6, rel=1e-4), ending


def test_a_csv_row_cut_off_is_skipped_and_named():
    text = (FIXTURES / "llama-bench.csv").read_text(encoding="utf-8").rstrip("\n")
    reading = read_text(text[: text.rindex(",")], "llama-bench")
    assert len(reading.runs) == 4
    assert reading.skipped.lines() == ["1 x a row cut off (line 6)"]
