"""Scores of served models, and a calibration made of them."""

import tomllib

import pytest

from meshwise.calibrate.serve.cases import serve_cases
from meshwise.calibrate.serve.fit import NOISE, fit, predict
from meshwise.calibrate.serve.score import score
from meshwise.calibrate.serve.validate import ServeValidation, calibrated_serve, serve_toml, validate_serve
from meshwise.calibrate.tables import find_table
from meshwise.catalogue import records
from meshwise.catalogue.calibrations import ServeCalibration, named_serve, serve_prior
from meshwise.cost.parts import SERVE_PARTS
from meshwise.cost.serve.speed import Speed
from meshwise.errors import UserError


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


def worst(found: ServeValidation) -> tuple[float, float]:
    """The largest error of decode and of prompts, by the measured rate."""
    rows = found.rows()
    errors = [[abs(float(str(row[f"predicted_{it}"])) / float(str(row[f"measured_{it}"])) - 1) for row in rows] for it in RATES]
    return max(errors[0]), max(errors[1])


RATES = ("decode", "prefill")


@pytest.mark.parametrize("size", ["3b", "14b"])
def test_a_size_that_no_fit_has_seen_is_predicted_for_every_prompt_and_user(size: str) -> None:
    """On an H200, by coefficients of the 8B: within 10% and 15%, from 128 to 8,192 tokens and 1 to 64 users."""
    found = validate_serve(f"h200_transformers_{size}")
    assert (len(found.cases), found.score["calibration"]) == (28, "h200-transformers")
    assert size not in named_serve("h200-transformers").fitted_on
    decode, prefill = worst(found)
    assert decode < 0.06
    assert prefill < 0.08


def test_the_small_model_tells_of_the_larger_one_too() -> None:
    """The other way round: fitted to the 3B."""
    small, large = (serve_cases(find_table(f"h200_transformers_{size}b"))[0] for size in (3, 8))
    made = fit(small, serve_prior(small[0].chip, "transformers"))
    speeds = predict(large, made)
    assert max(abs(s.decode_tokens_per_second / c.decode - 1) for c, s in zip(large, speeds, strict=True)) < 0.1
    assert max(abs(s.prefill_tokens_per_second / c.prefill - 1) for c, s in zip(large, speeds, strict=True)) < 0.15


def test_a_prompt_that_stands_in_many_rows_is_left_out_of_all_of_them() -> None:
    rows = validate_serve("h200_transformers_8b", leave_out="row").rows()
    said = {(row["measured_prefill"], row["predicted_prefill"]) for row in rows}
    assert len(rows) == 28
    assert len(said) == 4  # one for every length: no fit that leaves a prompt out has seen it beside another count of users


def test_the_prior_knows_cards_that_it_was_not_fitted_to() -> None:
    """Round numbers of the code, before any fit: mean error on every graphics card of the table."""
    cases = [case for case in serve_cases(find_table("xiongjiedai_llama3_bench"))[0] if case.chip.kind == "gpu"]
    assert score(cases, [], predict(cases, ServeCalibration()))["decode"]["mape"] < 0.12


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
    assert NOISE <= made.serving.spread < 0.1  # another machine with the same card is that far away
    text = serve_toml(made)
    assert text.startswith("# Written by 'meshwise calibrate'. Left out: decode ")
    back = records.read(ServeCalibration, tomllib.loads(text), "mine.toml")
    assert (back.stream, back.layer) == pytest.approx((made.serving.stream, made.serving.layer), rel=1e-3)


def test_a_table_of_several_cards_needs_to_be_told_which() -> None:
    with pytest.raises(UserError, match=r"the rows are of several chips .*; say with --chips which one to fit to"):
        calibrated_serve(["xiongjiedai_llama3_bench"], date="")
    with pytest.raises(UserError, match="no row is of h200; there are rtx3090"):
        calibrated_serve(["xiongjiedai_llama3_bench"], chips=["h200"], date="")
