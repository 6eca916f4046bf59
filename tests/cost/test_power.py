"""Power from activity: on a metered H200, workloads that were left out of the fit; a lower limit; nodes by MLPerf's meters."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from meshwise import api
from meshwise.catalogue.chips import find_chip
from meshwise.catalogue.power import intensity, power_of
from meshwise.cost.power import Activity, carbon, device_watts, node_watts, slowdown
from meshwise.errors import UserError

FIXTURES = Path(__file__).parents[1] / "fixtures" / "power"
PEAK, BANDWIDTH = 989.4e12, 4.8e12
LEFT_OUT = ("decode 8b users 1", "decode 8b users 32", "decode 8b users 128", "prefill 8b 4096")


def measured() -> dict[tuple[str, str], tuple[float, dict[str, Any]]]:
    """Return the mean of instant power of each workload after its first 0.7 s, and what it did."""
    with (FIXTURES / "h200_nvml.csv").open(encoding="utf-8") as table:
        meter = [(float(row["time"]), float(row["instant_mw"]) / 1e3) for row in csv.DictReader(table)]
    found: dict[tuple[str, str], tuple[float, dict[str, Any]]] = {}
    for line in (FIXTURES / "h200_workloads.jsonl").read_text(encoding="utf-8").splitlines():
        work = json.loads(line)
        inside = [watts for at, watts in meter if "begin" in work and work["begin"] + 0.7 <= at <= work["end"]]
        if inside:
            found[work["name"], work.get("state", "")] = sum(inside) / len(inside), work
    return found


def predicted(work: dict[str, Any], limit: float = 700.0) -> float:
    seconds = work.get("seconds", 1.0)
    doing = Activity(work["flops"] / seconds / PEAK, work["bytes"] / seconds / BANDWIDTH)
    return device_watts(power_of(find_chip("h200")), limit, doing, 700.0)


@pytest.mark.parametrize("name", LEFT_OUT)
def test_serving_that_was_left_out_of_the_fit(name: str) -> None:
    watts, work = measured()[name, ""]
    assert predicted(work) == pytest.approx(watts, rel=0.08)


@pytest.mark.parametrize("name", ["train 1b", "train 1b lora", "train 1b seq 512"])
def test_training_is_held_at_the_limit(name: str) -> None:
    """Llama 3.2 1B at 0.5 of the peak and a fifth of the bandwidth: more than the card may draw."""
    watts, _ = measured()[name, ""]
    assert device_watts(power_of(find_chip("h200")), 700.0, Activity(0.5, 0.2)) == pytest.approx(watts, rel=0.05)


def test_idle_and_awake() -> None:
    """Two cards: 85 and 77 W without a program."""
    power = power_of(find_chip("h200"))
    assert power.idle * 700 == pytest.approx(measured()["idle, no context", ""][0], rel=0.06)
    assert power.idle * 700 == pytest.approx(second_card()["idle"]["watts"], rel=0.06)
    assert device_watts(power, 700.0, Activity()) == pytest.approx(measured()["idle with a context", ""][0], rel=0.04)


def second_card() -> dict[str, dict[str, Any]]:
    """Return the rows of benchmarks/accuracy/energy_h200.py on another H200, 2026-11-18: seconds, watts and joules of one repeat."""
    rows = map(json.loads, (FIXTURES / "h200_energy.jsonl").read_text(encoding="utf-8").splitlines())
    return {row["name"]: row for row in rows}


@pytest.mark.parametrize(
    ("name", "model", "batch", "finetune", "limit"),
    [
        ("train 1b", "llama-3.2-1b", 8, "", 0), ("train 8b lora", "llama-3-8b", 4, "lora:16:all-linear", 0),
        ("train olmoe", "olmoe-1b-7b", 4, "", 0), ("train 1b at 500 W", "llama-3.2-1b", 8, "", 500),
        ("train 1b at 400 W", "llama-3.2-1b", 8, "", 400),
    ],
)  # fmt: skip
def test_the_energy_of_a_step_is_predicted_within_a_tenth(name: str, model: str, batch: int, finetune: str, limit: int) -> None:
    """Issue 39: 10%, time and power together. Training was in no fit of power but for the exponents of its limits."""
    plan = api.plan(
        model, on="1xh200", batch=f"{batch}x2048", seq=2048, framework="meshwise", finetune=finetune, power_limit=limit
    )
    assert plan.energy
    assert plan.best.step * plan.energy.slower * plan.energy.watts == pytest.approx(second_card()[name]["joules"], rel=0.1)


@pytest.mark.parametrize(("name", "doing"), [("train 1b", Activity(0.5, 0.2)), ("bf16 product 1x8192x8192", Activity(0.0, 0.82))])
def test_a_limit_of_500_watts_slows_down_as_measured(name: str, doing: Activity) -> None:
    runs = measured()
    slow, fast = runs[name, "-pl 500"][1], runs[name, ""][1]
    bytes_ratio = (slow["bytes"] / fast["bytes"]) if fast["bytes"] else 1.0
    seen = slow["seconds"] / fast["seconds"] / bytes_ratio
    assert slowdown(power_of(find_chip("h200")), 700.0, 500.0, doing) == pytest.approx(seen, rel=0.05)


def test_nodes_at_the_wall() -> None:
    """MLPerf's meters: 8 H100 draw 6.8 to 7.2 kW busy, 8 B200 9.6 kW in training."""
    busy = Activity(0.5, 0.2)
    for name, low, high in (("h100-sxm", 6800, 7200), ("b200", 9000, 10400)):
        chip = find_chip(name)
        assert chip.tdp
        assert low <= node_watts(chip, 8, device_watts(power_of(chip), chip.tdp, busy)) <= high


def test_a_plan_says_what_it_takes() -> None:
    plan = api.serve("llama-3-8b", on="1xh200", grid="germany", energy_price=0.3, pue=1.2, power_limit="500W")
    energy = plan.energy
    assert energy
    assert energy.watts <= 500 < energy.wall
    assert energy.slower > 1
    assert energy.saved > 0
    assert energy.kwh
    assert energy.dollars == pytest.approx(energy.kwh * 0.3)
    trained = api.plan("llama-3-8b", on="1x8xh100-sxm", batch="1M", tokens="10B")
    assert trained.energy
    assert 6000 < trained.energy.wall < 7500


def test_a_grid_by_hour() -> None:
    assert carbon(2.0, intensity("100")) == (200.0, 200.0, 200.0)
    hours = ",".join(["100"] * 12 + ["300"] * 12)
    assert carbon(1.0, intensity(hours)) == (200.0, 100.0, 300.0)
    with pytest.raises(UserError, match="grams of CO2 per kWh"):
        api.serve("llama-3-8b", on="1xh200", grid="atlantis")
