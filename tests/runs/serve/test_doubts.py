"""Rows of served models that cannot be what they state: faster than the chip, of another engine, or the figures of another format."""

from pathlib import Path

import pytest

from meshwise.calibrate.serve.validate import validate
from meshwise.runs.serve.case import read_cases
from meshwise.runs.serve.doubts import doubts

COLUMNS = "row_id,model,quant,engine,gpu,n_gpus,prompt_len,gen_len,batch_or_concurrency,prefill_tok_s,decode_tok_s,outcome"
FAST, SLOW = "4000,140", "2000,70"


def doubted(folder: Path, *rows: str) -> list[dict[str, str]]:
    """Return the doubts about rows of Llama 3 8B in Q4_K_M: its 4.7 GB are read at most 214 times a second from 1,008 GB/s."""
    path = folder / "mine.csv"
    path.write_text("\n".join([COLUMNS, *rows]))
    cases, skipped = read_cases(path)
    assert not skipped
    return doubts(cases)


def row(
    quant: str = "Q4_K_M", rates: str = FAST, engine: str = "llama.cpp", gpu: str = "RTX 4090", model: str = "Llama 3 8B"
) -> str:
    return f"r,{model},{quant},{engine},{gpu},1,512,128,1,{rates},ok"


def test_a_run_within_the_peaks_is_believed(tmp_path: Path) -> None:
    assert doubted(tmp_path, row(), row(rates=SLOW)) == [{}, {}]


def test_more_bytes_than_the_memory_has_are_of_another_model_in_every_row_of_it(tmp_path: Path) -> None:
    found = doubted(tmp_path, row(rates="4000,300"), row(rates=SLOW), row("Q8_0", "2000,60"))
    assert [set(doubt) for doubt in found] == [{"decode", "prefill"}, {"decode", "prefill"}, set()]
    assert "more bytes/s than the memory of RTX 4090" in found[0]["decode"]


def test_a_prompt_above_the_peak_was_cached_and_says_nothing_about_decoding(tmp_path: Path) -> None:
    """15 GFLOP a token at 60,000 tokens/s are 900 TFLOP/s; an RTX 4090 has 661 in int8."""
    (found,) = doubted(tmp_path, row(rates="60000,140"))
    assert set(found) == {"prefill"}
    assert "in the cache" in found["prefill"]


def test_equal_figures_of_two_formats_are_doubted_in_the_second(tmp_path: Path) -> None:
    assert [set(doubt) for doubt in doubted(tmp_path, row(), row("Q8_0"))] == [set(), {"decode", "prefill"}]


def test_an_engine_that_does_not_run_the_format_and_has_no_room_for_it_is_not_believed(tmp_path: Path) -> None:
    """41 GB in Q4_K_M on a card of 24 GiB, with vLLM."""
    (found,) = doubted(tmp_path, row(rates="500,10", engine="vllm", model="Llama 3 70B"))
    assert "what ran is not known" in found["decode"]
    assert doubted(tmp_path, row(rates="500,2", model="Llama 3 70B")) == [{}]


def test_validate_scores_with_and_without_what_it_doubts() -> None:
    found = validate("localmaxxing_community")
    doubt = found.score["doubted"]
    assert doubt["rows"] == sum(bool(one["doubt"]) for one in found.rows()) > 20
    assert doubt["decode"]["rows"] < found.score["decode"]["rows"]
    assert doubt["prefill"]["mape"] < found.score["prefill"]["mape"]


@pytest.mark.parametrize(
    "table", ["h200_llamacpp", "h200_vllm_server", "h200_vllm_bench", "llamacpp_gb10", "engines_at_load", "strix_halo_rpc"]
)
def test_measurements_of_our_own_and_of_careful_sources_are_possible(table: str) -> None:
    assert validate(table).score["doubted"]["rows"] == 0
