"""Scores of served models, and a calibration made of them."""

import tomllib

import pytest

from meshwise import records
from meshwise.calibrate_serve import predict
from meshwise.cost.serve import SERVE_PARTS, Speed
from meshwise.errors import UserError
from meshwise.measure import find_table
from meshwise.measure_serve import serve_cases
from meshwise.score_serve import score
from meshwise.serving import Serving
from meshwise.validate_serve import calibrated_serve, serve_toml, validate_serve


def test_the_published_runs_are_predicted_by_the_shipped_files() -> None:
    """In sample: the files were fitted to these tables. What is left out of a fit is scored by benchmarks/serve.py."""
    found = validate_serve("xiongjiedai_llama3_bench").score
    assert (found["rows"], found["skipped"]) == (346, 0)
    assert found["decode"]["mape"] < 0.03
    assert found["decode"]["spearman"] > 0.99
    assert found["prefill"]["mape"] < 0.13
    assert found["prefill"]["mape_all"] > 0.3  # with the prompts of the A100 SXM in F16, which took ten times too long
    assert found["fit"] == {"right": 344, "total": 346}  # tests/test_buffers.py says which two and why


@pytest.mark.parametrize("table", ["llamacpp_fit_dryrun", "xiongjiedai_memory_buffers"])
def test_weights_and_cache_of_every_device_are_exact(table: str) -> None:
    found = validate_serve(table).score
    assert found["memory"]["max_mib"] <= 1
    assert found["decode"]["mape"] is None


def test_the_prior_knows_cards_that_it_was_not_fitted_to() -> None:
    """Round numbers of the code, before any fit: mean error on every graphics card of the table."""
    cases = [case for case in serve_cases(find_table("xiongjiedai_llama3_bench"))[0] if case.chip.kind == "gpu"]
    assert score(cases, [], predict(cases, Serving()))["decode"]["mape"] < 0.12


def test_errors_are_shares_of_the_measured_rate() -> None:
    cases = [case for case in serve_cases(find_table("xiongjiedai_llama3_bench"))[0] if case.decode > 0 and case.ran][:4]

    def seen(factor: float) -> list[Speed]:
        return [Speed(dict.fromkeys(SERVE_PARTS, 0.0) | {"weights": 1 / (c.decode * factor)}, {}, 1, 0) for c in cases]

    assert score(cases, [], seen(1.0))["decode"] == {
        "mape": pytest.approx(0),
        "bias": pytest.approx(0),
        "p95": pytest.approx(0),
        "spearman": pytest.approx(1),
        "rows": 4,
    }
    assert score(cases, [], seen(1.1))["decode"]["bias"] == pytest.approx(0.1)
    assert score(cases, [], seen(0.8))["decode"]["mape"] == pytest.approx(0.2)
    assert score(cases, [], seen(0.8))["prefill"]["mape"] is None


def test_a_calibration_is_read_back_as_it_was_made() -> None:
    made = calibrated_serve(["xiongjiedai_llama3_bench"], chips=["m2-ultra"], date="2026-11-15")
    assert (made.serving.chips, made.serving.engines, made.serving.rows) == (("m2-ultra",), ("llama.cpp",), 32)
    assert made.in_sample["decode"]["mape"] < 0.04
    assert 0.02 <= made.serving.spread < 0.1
    text = serve_toml(made)
    assert text.startswith("# Written by 'meshwise calibrate'. Left out: decode ")
    back = records.read(Serving, tomllib.loads(text), "mine.toml")
    assert (back.stream, back.layer) == pytest.approx((made.serving.stream, made.serving.layer), rel=1e-3)


def test_a_table_of_several_cards_needs_to_be_told_which() -> None:
    with pytest.raises(UserError, match=r"the rows are of several chips .*; say with --chips which one to fit to"):
        calibrated_serve(["xiongjiedai_llama3_bench"], date="")
    with pytest.raises(UserError, match="no row is of h200; there are rtx3090"):
        calibrated_serve(["xiongjiedai_llama3_bench"], chips=["h200"], date="")
