"""A probe's power rows become shares of the chip's limit, for this machine alone."""

from pathlib import Path

import pytest

from meshwise import api
from meshwise.catalogue import files
from meshwise.catalogue.chips import PROBED_CHIP, find_chip
from meshwise.catalogue.power import measured, power_of
from meshwise.run.probe import store
from support.probe_rows import TRUTH, h200_rows

METERED = {"idle power": 84.0, "waiting": 126.0, "matrix products": 650.0, "sustained rate": 693.0}


def test_plans_for_this_machine_use_what_its_meter_showed(home: Path) -> None:
    rows = h200_rows(TRUTH) + [
        {"kind": "power", "what": what, "watts": watts, "seconds": 2.0, "meter": "nvml"} for what, watts in METERED.items()
    ]
    store.install(rows, PROBED_CHIP)
    files.clear()
    mine = power_of(find_chip(PROBED_CHIP))
    assert (mine.idle * 700, mine.base * 700, mine.held * 700) == pytest.approx((84, 126, 693))
    assert measured(find_chip(PROBED_CHIP))
    assert power_of(find_chip("h100-sxm")).chips == ("h200",)  # other chips take nothing from this machine
    plan = api.plan("llama-3.2-1b", on="here", batch="8x2048", seq=2048, framework="meshwise")
    assert plan.energy
    assert plan.energy.metered
    assert plan.energy.watts <= 693


def test_a_machine_without_a_meter_writes_no_power(home: Path) -> None:
    store.install(h200_rows(TRUTH), PROBED_CHIP)
    assert not (home / "power" / "here.toml").exists()
