"""Calibrations: which one is chosen, and which files are refused."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from meshwise.catalogue import files
from meshwise.catalogue.calibrations import COEFFICIENTS, Calibration, calibrations, fitted_to, named, prior_of
from meshwise.catalogue.chips import Chip, find_chip
from meshwise.errors import UserError
from support.command import one_line

NOVA = replace(find_chip("h100-sxm"), key="nova-1", architecture="Nova")
"""A chip that no shipped calibration knows."""


def write(home: Path, name: str, **values: object) -> None:
    lines = [f"{key} = {value!r}" for key, value in values.items()]
    (home / "calibration" / f"{name}.toml").write_text("\n".join(lines))


def test_an_unmeasured_chip_gets_the_prior(home: Path) -> None:
    assert fitted_to(NOVA, "megatron") is None
    assert prior_of(NOVA) == Calibration()
    assert "prior" in Calibration().fitted_on


def key_of(chip: Chip, framework: str) -> str:
    found = fitted_to(chip, framework)
    return found.key if found else ""


def test_the_chip_and_the_framework_decide(home: Path) -> None:
    write(home, "a", chips=["nova-1"], frameworks=["nanotron"], fitted_on="a", matmul=0.5)
    write(home, "b", chips=["nova-1"], frameworks=["megatron"], fitted_on="b", matmul=0.6)
    assert (key_of(NOVA, "megatron"), key_of(NOVA, "nanotron"), key_of(NOVA, "fsdp")) == ("b", "a", "")


def test_a_probe_of_the_chip_serves_every_framework(home: Path) -> None:
    write(home, "probe", chips=["nova-1"], fitted_on="a probe")
    write(home, "runs", chips=["nova-1"], frameworks=["megatron"], fitted_on="runs")
    assert (key_of(NOVA, "megatron"), key_of(NOVA, "fsdp")) == ("runs", "probe")


def test_an_architecture_is_a_prior_and_no_fit(home: Path) -> None:
    write(home, "kin", architectures=["Nova"], fitted_on="its kin")
    write(home, "own", chips=["nova-1"], frameworks=["nanotron"], fitted_on="itself")
    assert (key_of(NOVA, "megatron"), prior_of(NOVA).key) == ("", "kin")
    assert key_of(NOVA, "nanotron") == "own"
    assert prior_of(replace(NOVA, architecture="Other", key="other")).key == ""


def test_the_users_own_calibration_precedes_a_shipped_one(home: Path) -> None:
    shipped = next(c for c in calibrations() if c.shipped and c.chips and c.frameworks)
    write(home, "zz-mine", chips=[shipped.chips[0]], frameworks=[shipped.frameworks[0]])
    files.clear()
    found = fitted_to(find_chip(shipped.chips[0]), shipped.frameworks[0])
    assert found is not None
    assert (found.key, found.shipped) == ("zz-mine", False)


def test_a_calibration_is_used_by_its_name(home: Path) -> None:
    write(home, "mine", fitted_on="last week's runs", network=0.9, network_latency="40us", context="3GiB")
    found = named("mine")
    assert (found.key, found.network, found.context) == ("mine", 0.9, 3 * 2**30)
    assert found.network_latency == pytest.approx(4e-5)
    assert found.matmul == Calibration().matmul  # a key that the file omits has the prior's value


def test_a_misspelt_calibration_is_offered_the_nearest(home: Path) -> None:
    write(home, "cluster-one")
    with pytest.raises(UserError, match="unknown calibration 'cluster-on'; did you mean 'cluster-one'") as refused:
        named("cluster-on")
    assert one_line(refused.value)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"matmull": 0.5}, "mine.toml: unknown key 'matmull'; did you mean 'matmul'?"),
        ({"matmul": "fast"}, "mine.toml: matmul: 'fast' is not a count"),
        ({"matmul": 0}, "above zero"),
        ({"network": 0.0}, "above zero"),
        ({"step": "20 GB"}, "mine.toml: step"),
        ({"memory": -0.5}, "mine.toml: memory"),
    ],
    ids=str,
)
def test_a_mistake_in_a_calibration_names_the_file(home: Path, values: dict[str, object], words: str) -> None:
    write(home, "mine", **values)
    with pytest.raises(UserError) as refused:
        named("mine")
    assert words in one_line(refused.value)


def test_coefficients_are_numbers_and_other_fields_describe_their_origin() -> None:
    prior = Calibration()
    assert all(isinstance(getattr(prior, name), float) for name in COEFFICIENTS)
    others = [f.name for f in fields(Calibration) if f.name not in COEFFICIENTS]
    about = [
        "key",
        "shipped",
        "chips",
        "architectures",
        "fitted_on",
        "date",
        "rows",
        "sources",
        "frameworks",
        "fabric",
        "measured",
        "learned",
        "collectives",
    ]
    assert others == [*about, "devices", "waiting", "low", "high", "between", "expert_spread", "memory_spread", "modes"]


@pytest.mark.parametrize("shipped", calibrations(), ids=lambda found: found.key)
def test_a_shipped_calibration_states_its_data_and_date(shipped: Calibration) -> None:
    assert shipped.fitted_on != Calibration().fitted_on
    assert shipped.date
    assert shipped.chips or shipped.architectures
    for key in shipped.chips:
        assert isinstance(find_chip(key), Chip)
