"""nanotron logs: rates and memory of a device, rounded to three digits. Figures: tests/fixtures/audit/README.md."""

import pytest

from support.audits import runs_of

ROWS = {"0001": (38894.51, 41.76e9), "0003": (7503.28, 63.07e9), "0005": (38299.12, 26.41e9)}
"""Tokens/s of a device and bytes, by the row of nanotron_h100_small."""


def test_nanotron_states_rate_and_memory_of_a_device():
    found = {name: runs_of(f"nanotron-{name}.log") for name in ROWS}
    assert {name: len(runs) for name, runs in found.items()} == dict.fromkeys(ROWS, 1)
    for name, (rate, memory) in ROWS.items():
        assert found[name][0].number("tokens_per_second_per_device") == pytest.approx(rate, rel=0.005), name
        assert found[name][0].number("memory") == pytest.approx(memory, rel=0.005), name


def test_rounded_figures_are_marked_as_rough():
    assert runs_of("nanotron-0001.log")[0].rough("tokens_per_second")


def test_gradient_accumulation_has_a_name_of_its_own():
    (run,) = runs_of("nanotron-0001.log")
    assert run.number("mbs") * run.number("dp") * run.number("accumulation") == run.number("batch")
