"""Validation of tables of served models."""

import pytest

from meshwise.calibrate.score import Score
from meshwise.calibrate.serve.validate import ServeValidation, validate
from meshwise.catalogue.calibrations import named_serve


@pytest.fixture(scope="module")
def published() -> Score:
    return validate("xiongjiedai_llama3_bench").score


def test_the_published_runs_are_predicted_by_the_shipped_files(published: Score) -> None:
    """In sample: the files were fitted to these tables. What is left out of a fit is scored by benchmarks/accuracy/serve.py."""
    found = published
    assert (found["rows"], found["skipped"]) == (346, 0)
    assert found["decode"]["mape"] < 0.03
    assert found["decode"]["spearman"] > 0.99
    assert found["prefill"]["mape"] < 0.13
    assert found["prefill"]["mape_all"] > 0.3  # with the prompts of the A100 SXM in F16, which took ten times too long
    assert found["fit"] == {"right": 346, "total": 346}


@pytest.mark.parametrize("table", ["llamacpp_fit_dryrun", "xiongjiedai_memory_buffers"])
def test_weights_and_cache_of_every_device_are_exact(table: str) -> None:
    found = validate(table).score
    assert found["memory"]["max_mib"] <= 1
    assert found["decode"]["mape"] is None


def worst(found: ServeValidation) -> tuple[float, float]:
    """Return the largest relative error of decode and of prefill."""
    rows = found.rows()
    errors = [[abs(float(str(row[f"predicted_{it}"])) / float(str(row[f"measured_{it}"])) - 1) for row in rows] for it in RATES]
    return max(errors[0]), max(errors[1])


RATES = ("decode", "prefill")


@pytest.mark.parametrize("size", ["3b", "14b"])
def test_a_held_out_model_size_is_predicted_for_all_prompts_and_users(size: str) -> None:
    """On an H200, by coefficients of the 8B: within 10% and 15%, from 128 to 8,192 tokens and 1 to 64 users."""
    found = validate(f"h200_transformers_{size}")
    assert (len(found.cases), found.score["calibration"]) == (28, "h200-transformers")
    assert size not in named_serve("h200-transformers").fitted_on
    decode, prefill = worst(found)
    assert decode < 0.06
    assert prefill < 0.08


def test_a_prompt_repeated_in_many_rows_is_left_out_of_all_of_them() -> None:
    rows = validate("h200_transformers_8b", leave_out="row").rows()
    pairs = {(row["measured_prefill"], row["predicted_prefill"]) for row in rows}
    assert len(rows) == 28
    assert len(pairs) == 4  # one for every length: no fit that leaves a prompt out has seen it beside another count of users


def test_measured_speeds_lie_within_the_printed_intervals(published: Score) -> None:
    assert 0.85 <= published["decode"]["coverage"] <= 1.0
    assert 0.85 <= published["prefill"]["coverage"] <= 1.0
