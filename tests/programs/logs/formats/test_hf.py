"""HF Trainer: the console and trainer_state.json of one run state the same."""

import pytest

from support.audits import runs_of


def test_trainer_state_and_console_of_one_run_agree():
    for letter in "abc":
        (printed,), (kept,) = runs_of(f"hf-{letter}.log"), runs_of(f"trainer_state-{letter}.json")
        assert printed.number("steps_seen") == kept.number("steps_seen") == 12, letter
        assert printed.number("samples_per_second") == pytest.approx(kept.number("samples_per_second"), rel=0.001), letter
        assert printed.number("first_loss") == pytest.approx(kept.number("first_loss"), rel=0.001), letter
        assert printed.number("per_device_batch") == kept.number("per_device_batch"), letter
