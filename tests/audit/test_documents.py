"""Audits of whole documents: every known fault of the fixtures is found, with its arithmetic. Figures: tests/fixtures/audit/README.md."""

from functools import cache

from meshwise.audit.report import Audit
from support.audits import audit_of, findings_of, line_of


@cache
def notes() -> Audit:
    return audit_of("tuning-notes.md")


@cache
def eight() -> Audit:
    return audit_of("eight-gpus.md")


@cache
def rig() -> Audit:
    return audit_of("rig-a.md", "rig-b.md")


def test_swapped_seconds_and_tflops_are_found_with_the_row_that_has_them_right():
    (one,) = findings_of(notes(), "swapped")
    assert one.certainty == "certain"
    assert one.where == (line_of("tuning-notes.md", "| 120.29 | 134.02 |"),)
    assert one.compared_with == (line_of("tuning-notes.md", "| 134.02 | 120.29 |"),)
    assert "134.02 s and 120.29 TFLOP/s" in one.message


def test_a_layout_that_needs_twice_its_devices_is_found_with_the_dp_that_fits():
    (one,) = findings_of(notes(), "layout")
    assert one.certainty == "certain"
    assert "dp 4 would" in one.message
    assert "8 x 8 x 10 = 640, not 320" in one.arithmetic


def test_memory_that_falls_as_the_micro_batch_grows_is_found():
    (one,) = findings_of(notes(), "memory", "65 GB")
    assert one.where == (line_of("tuning-notes.md", "65GB"),)
    assert "56 GB at micro-batch 4" in one.arithmetic


def test_a_smaller_batch_that_takes_as_long_is_found_with_the_time_it_should_take():
    (one,) = findings_of(notes(), "batch and time")
    assert "1,568 takes 113.01 s" in one.message
    assert "89.3 s expected" in one.arithmetic  # 114.11 s x (49 + 5) / (64 + 5) slots


def test_a_change_of_the_tflops_formula_is_found():
    (one,) = findings_of(notes(), "two formulas")
    assert one.certainty == "certain"
    assert "'8N of the layers'" in one.message
    assert "'Megatron + recompute'" in one.message


def test_the_run_that_kept_the_old_formula_is_among_them():
    (one,) = findings_of(notes(), "two formulas")
    old = {f.where for f in notes().runs if f.printed_formula[0] == "8N of the layers"}
    assert line_of("tuning-notes.md", "| 137.34 | 113.02 |") in old
    assert set(one.compared_with) & old


def test_a_batch_that_the_text_and_the_row_give_differently_is_settled_by_the_tflops():
    each = findings_of(notes(), "quoted twice", "TFLOP/s are those of 512")
    assert {place for one in each for place in one.where} == {
        line_of("tuning-notes.md", "130.43 | 143.48"),
        line_of("tuning-notes.md", "205.52 | 142.59"),
    }


def test_ten_layers_called_18b_are_found():
    (one,) = findings_of(notes(), "size")
    assert one.where == (line_of("tuning-notes.md", "205.52 | 142.59"),)


def test_one_setup_with_two_results_is_unusual():
    (one,) = findings_of(notes(), "quoted twice", "38 to 44 GB")
    assert one.certainty == "unusual"


def test_numbers_of_devices_compared_at_other_batches_are_found():
    assert findings_of(notes(), "unlike batches", "512")


def test_a_failed_run_is_explained_and_has_no_finding():
    where = line_of("tuning-notes.md", "| fail |")
    assert not [one for one in notes().findings if where in one.where]
    assert any("layers not divisible by the pipeline stages" in note for note in notes().notes)


def test_nothing_else_in_the_notes_is_certainly_wrong():
    found = {place for one in notes().findings if one.certainty == "certain" for place in one.where}
    assert found == {
        "tuning-notes.md",  # the two formulas
        line_of("tuning-notes.md", "| 120.29 | 134.02 |"),
        line_of("tuning-notes.md", "| 147.04 |"),
        line_of("tuning-notes.md", "130.43 | 143.48"),
        line_of("tuning-notes.md", "205.52 | 142.59"),
    }


def test_2048_tokens_per_step_are_one_gpus_share_of_16384():
    (one,) = findings_of(eight(), "tokens per step")
    assert one.certainty == "certain"
    assert "one device's share" in one.message
    assert "16,384" in one.arithmetic
    assert findings_of(eight(), "arithmetic", "the factor 8 is missing")


def test_15570_tokens_per_second_for_7_5_seconds_match_neither_count():
    (one,) = findings_of(eight(), "step x throughput")
    assert "116,775" in one.arithmetic
    assert "7.13 times" in one.arithmetic
    assert "57 times the 2,048" in one.arithmetic


def test_the_total_is_eight_times_too_high():
    (one,) = findings_of(eight(), "ranks and total")
    assert "about 8 times too high" in one.message
    assert "2,185 tok/s in total" in one.arithmetic  # 16,384 / 7.5


def test_a_loss_of_half_cannot_come_from_a_fresh_model():
    (one,) = findings_of(eight(), "first loss")
    assert one.certainty == "certain"
    assert "ln 50,257 = 10.82" in one.arithmetic  # the vocabulary of the preset that has exactly these parameters


def test_the_a_plus_is_a_fraction_of_a_percent_of_the_chip():
    (one,) = findings_of(eight(), "planner")
    assert "A+" in one.message
    assert one.arithmetic.endswith("0.15%")


def test_a_right_scaling_efficiency_is_only_unusual_for_its_batches():
    each = findings_of(eight(), "scaling")
    assert [one.certainty for one in each] == ["unusual"]
    assert "90.5%" in each[0].arithmetic


def test_a_spread_within_what_is_claimed_is_no_finding():
    assert not findings_of(eight(), "balance")


def test_expected_figures_are_not_audited():
    assert not any(f.stated_rate == 12_000 for f in eight().runs)


def test_wrong_meanings_of_abbreviations_are_found():
    each = {one.message for one in findings_of(rig(), "words")}
    assert each == {
        "RPC is remote procedure call, not realtime communication protocol",
        "VRAM is video memory, not virtual memory",
    }


def test_two_speeds_of_one_setup_in_two_documents_are_two_measurements():
    (one,) = findings_of(rig(), "quoted twice")
    assert "7 and 3.5 tok/s" in one.message
    assert "two measurements" in one.message


def test_the_verdicts_say_that_it_does_not_add_up():
    verdicts = [audit.verdict for audit in (notes(), eight(), rig())]
    assert [verdict for verdict in verdicts if not verdict.startswith("It does not add up")] == []


def test_a_layout_is_suggested_for_the_fastest_run_without_a_finding():
    assert notes().predictions.suggestions
    doubted = {place for one in notes().findings if one.certainty != "unusual" for place in one.where}
    assert all(one.where not in doubted for one in notes().predictions.suggestions)
    assert all(one.gain < 0.5 for one in notes().predictions.suggestions)
