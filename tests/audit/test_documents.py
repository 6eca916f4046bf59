"""Every fault that the documents of the fixtures are known for is found, with its arithmetic. Figures: tests/fixtures/audit/README.md."""

from functools import cache

import pytest

from meshwise.audit.report import Audit
from support.audits import FIXTURES, audit_of, found


@cache
def notes() -> Audit:
    return audit_of("tuning-notes.md")


@cache
def eight() -> Audit:
    return audit_of("eight-gpus.md")


@cache
def rig() -> Audit:
    return audit_of("rig-a.md", "rig-b.md")


def line_of(name: str, text: str) -> str:
    lines = (FIXTURES / name).read_text(encoding="utf-8").splitlines()
    return f"{name}: line {next(number for number, line in enumerate(lines, 1) if text in line)}"


def test_seconds_and_tflops_that_changed_places_are_told_with_the_row_that_has_them_right():
    (one,) = found(notes(), "swapped")
    assert one.sure == "sure"
    assert one.where == (line_of("tuning-notes.md", "| 120.29 | 134.02 |"),)
    assert one.beside == (line_of("tuning-notes.md", "| 134.02 | 120.29 |"),)
    assert "134.02 s and 120.29 TFLOPs" in one.words


def test_a_layout_that_needs_twice_its_devices_is_told_with_the_one_that_fits():
    (one,) = found(notes(), "layout")
    assert one.sure == "sure"
    assert "dp 4 would" in one.words
    assert "8 x 8 x 10 = 640, not 320" in one.arithmetic


def test_memory_that_falls_as_the_micro_batch_grows_is_out_of_line():
    (one,) = found(notes(), "memory", "65 GB")
    assert one.where == (line_of("tuning-notes.md", "65GB"),)
    assert "56 GB at micro-batch 4" in one.arithmetic


def test_a_smaller_batch_that_takes_as_long_is_told_with_what_it_should_take():
    (one,) = found(notes(), "batch and time")
    assert "1,568 takes 113.01 s" in one.words
    assert "89.3 s expected" in one.arithmetic  # 114.11 s x (49 + 5) / (64 + 5) slots


def test_tflops_before_and_after_the_formula_changed_are_told_apart():
    (one,) = found(notes(), "two formulas")
    assert one.sure == "sure"
    assert "'8N of the layers'" in one.words
    assert "'Megatron + recompute'" in one.words


def test_the_run_that_kept_the_old_formula_is_among_them():
    (one,) = found(notes(), "two formulas")
    old = {f.where for f in notes().runs if f.used[0] == "8N of the layers"}
    assert line_of("tuning-notes.md", "| 137.34 | 113.02 |") in old
    assert set(one.beside) & old


def test_a_batch_that_the_text_and_the_row_give_differently_is_settled_by_the_tflops():
    told = found(notes(), "quoted twice", "TFLOPs are those of 512")
    assert {place for one in told for place in one.where} == {
        line_of("tuning-notes.md", "130.43 | 143.48"),
        line_of("tuning-notes.md", "205.52 | 142.59"),
    }


def test_ten_layers_called_18b_are_told():
    (one,) = found(notes(), "size")
    assert one.where == (line_of("tuning-notes.md", "205.52 | 142.59"),)


def test_one_setup_with_two_results_is_to_be_looked_at():
    (one,) = found(notes(), "quoted twice", "38 to 44 GB")
    assert one.sure == "look"


def test_devices_compared_with_other_batches_are_told():
    assert found(notes(), "unlike batches", "512")


def test_a_failed_run_is_explained_and_not_accused():
    where = line_of("tuning-notes.md", "| fail |")
    assert not [one for one in notes().findings if where in one.where]
    assert any("layers do not divide by its stages" in note for note in notes().notes)


def test_nothing_else_of_the_notes_is_called_surely_wrong():
    accused = {place for one in notes().findings if one.sure == "sure" for place in one.where}
    assert accused == {
        "tuning-notes.md",  # the two formulas
        line_of("tuning-notes.md", "| 120.29 | 134.02 |"),
        line_of("tuning-notes.md", "| 147.04 |"),
        line_of("tuning-notes.md", "130.43 | 143.48"),
        line_of("tuning-notes.md", "205.52 | 142.59"),
    }


def test_2048_tokens_a_step_are_one_gpus_share_of_16384():
    (one,) = found(eight(), "tokens per step")
    assert one.sure == "sure"
    assert "one device's share" in one.words
    assert "16,384" in one.arithmetic
    assert found(eight(), "arithmetic", "the factor 8 is missing")


def test_15570_tokens_a_second_for_7_5_seconds_are_neither():
    (one,) = found(eight(), "step x throughput")
    assert "116,775" in one.arithmetic
    assert "7.13 times" in one.arithmetic
    assert "57 times the 2,048" in one.arithmetic


def test_the_total_is_eight_times_too_high():
    (one,) = found(eight(), "ranks and total")
    assert "about 8 times too high" in one.words
    assert "2,185 tok/s in all" in one.arithmetic  # 16,384 / 7.5


def test_a_loss_of_half_cannot_come_from_a_fresh_model():
    (one,) = found(eight(), "first loss")
    assert one.sure == "sure"
    assert "ln 50,257 = 10.82" in one.arithmetic  # the vocabulary of the preset that has exactly these parameters


def test_the_a_plus_is_a_fraction_of_a_percent_of_the_chip():
    (one,) = found(eight(), "planner")
    assert "A+" in one.words
    assert one.arithmetic.endswith("0.15%")


def test_a_scaling_efficiency_that_follows_is_only_asked_for_its_batches():
    told = found(eight(), "scaling")
    assert [one.sure for one in told] == ["look"]
    assert "90.5%" in told[0].arithmetic


def test_a_spread_within_what_is_claimed_is_no_finding():
    assert not found(eight(), "balance")


def test_what_is_only_expected_is_not_audited():
    assert not any(f.stated_rate == 12_000 for f in eight().runs)


def test_words_that_stand_for_something_else_are_told():
    told = {one.words for one in found(rig(), "words")}
    assert told == {
        "RPC is remote procedure call, not realtime communication protocol",
        "VRAM is video memory, not virtual memory",
    }


def test_two_speeds_of_one_setup_in_two_documents_are_two_measurements():
    (one,) = found(rig(), "quoted twice")
    assert "7 and 3.5 tok/s" in one.words
    assert "two measurements" in one.words


@pytest.mark.parametrize("made", [notes, eight, rig])
def test_the_verdict_says_that_it_does_not_add_up(made):
    assert made().verdict.startswith("It does not add up")


def test_what_to_try_next_is_priced_against_the_fastest_run_that_is_in_order():
    assert notes().tries
    doubted = {place for one in notes().findings if one.sure != "look" for place in one.where}
    assert all(one.where not in doubted for one in notes().tries)
    assert all(one.gain < 0.5 for one in notes().tries)
