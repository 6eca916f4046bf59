"""Energy of replayed traffic: between that of devices that wait and of full ones, and with the carbon of the hours in which it is drawn."""

from functools import cache
from typing import Any

import pytest

from meshwise import api
from meshwise.catalogue.chips import find_chip
from meshwise.catalogue.power import power_of
from meshwise.cost.power import Energy, node_watts
from meshwise.replay.answer import Figures, Replayed


@cache
def replayed(rate: str = "2/s", hours: float = 0.05, **words: Any) -> Figures:
    found = api.replay("llama-3-8b", on="1xh200", make="conversation", rate=rate, hours=hours, **words)
    assert isinstance(found, Replayed)
    return found.figures


def energy(**words: Any) -> Energy:
    found = replayed(**words).energy
    assert found
    return found


def test_energy_is_power_times_the_time_that_is_paid_for() -> None:
    figures, drawn = replayed(), energy()
    assert figures.kwh == drawn.kwh == pytest.approx(drawn.wall * figures.device_hours / 1e3)
    assert power_of(find_chip("h200")).base * 700 < drawn.watts < 700


def test_copies_that_mostly_wait_draw_what_a_waiting_device_draws() -> None:
    waits = power_of(find_chip("h200")).base * 700
    assert energy(rate="0.01/s", hours=1).watts == pytest.approx(waits, rel=0.15)
    twice = energy(rate="0.01/s", hours=1, copies="2")
    assert twice.wall == pytest.approx(2 * node_watts(find_chip("h200"), 1, waits), rel=0.1)


def test_a_limit_saves_energy_and_a_building_takes_more() -> None:
    limited = energy(power_limit="400W")
    assert limited.slower > 1
    assert limited.saved > 0
    assert (limited.kwh or 0) < (energy().kwh or 0)
    assert energy(pue=1.5).kwh == pytest.approx(1.5 * (energy().kwh or 0))


def test_carbon_is_that_of_the_hours_of_the_trace() -> None:
    """The trace lasts three minutes from midnight: it sees the first hour alone, however dirty the others are."""
    hours = ",".join(["100"] + ["900"] * 23)
    drawn = energy(grid=hours)
    assert drawn.grams == pytest.approx(((drawn.kwh or 0) * 100, (drawn.kwh or 0) * 100, (drawn.kwh or 0) * 900))
