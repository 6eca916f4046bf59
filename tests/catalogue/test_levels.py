"""Levels: coefficients of an architecture, a framework and a network, and which calibration a question gets."""

from dataclasses import replace
from pathlib import Path

import pytest

from meshwise.catalogue import files, levels
from meshwise.catalogue.calibrations import COEFFICIENTS, Calibration, calibrations, coefficients, prior_of
from meshwise.catalogue.chips import Link, fabric_of, find_chip
from meshwise.catalogue.clusters import find_cluster
from meshwise.catalogue.frameworks import find_framework, flash_share
from meshwise.catalogue.levels import Levels, choose, choose_for, composed
from meshwise.errors import UserError
from support.every import check_every

NOVA = replace(find_chip("h100-sxm"), key="nova-1", architecture="Nova")
"""A chip that no shipped calibration knows."""
MEGATRON, NANOTRON = find_framework("megatron"), find_framework("nanotron")
INFINIBAND, EFA = (Link(name=name, bandwidth=50e9) for name in ("InfiniBand NDR", "EFA"))
KNOWN = Levels(
    chip={"Nova": {"matmul": 0.61}, "Other": {"matmul": 0.1}},
    framework={"megatron": {"exposed_tp": 0.62}, "nanotron": {"exposed_tp": 0.1}},
    fabric={"efa": {"network": 0.63}, "infiniband": {"network": 0.64}},
    spread={"between": 0.2, "expert_spread": 0.3, "low": (0.1,), "high": (0.2,), "waiting": ()},
    fitted_on="many tables",
)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Levels:
    """Replace data/levels.toml by a few coefficients."""
    monkeypatch.setattr(levels, "levels", lambda: KNOWN)
    return KNOWN


def write(home: Path, name: str, **values: object) -> None:
    (home / "calibration" / f"{name}.toml").write_text("\n".join(f"{key} = {value!r}" for key, value in values.items()))
    files.clear()


def test_a_network_is_known_by_the_words_in_its_name() -> None:
    def check(name: str, fabric: str) -> None:
        assert fabric_of(Link(name=name, bandwidth=1e9)) == fabric

    check_every(
        check,
        [
            ("4 x Omni-Path", "omni-path"),
            ("EFA", "efa"),
            ("4 x Slingshot 11", "slingshot"),
            ("InfiniBand NDR", "infiniband"),
            ("8 x InfiniBand HDR", "infiniband"),
            ("RoCE, 21 x 200GbE", "roce"),
            ("DCN", "dcn"),
            ("400Gbps", ""),
            ("NVLink 5", ""),
        ],
    )
    assert fabric_of(None) == ""


def test_a_chip_and_a_framework_that_were_never_measured_together_have_what_is_known_of_each(known: Levels, home: Path) -> None:
    found = choose(NOVA, MEGATRON, EFA)
    assert (found.matmul, found.exposed_tp, found.network) == (0.61, 0.62, 0.63)
    assert found.fitted_on == "many tables"
    assert found.frameworks == found.chips == ()  # not calibrated for this pair
    assert (found.low, found.high) == ((0.1,), (0.2,))
    assert choose(NOVA, MEGATRON, INFINIBAND).network == 0.64
    other = choose(replace(NOVA, architecture="Unknown"), find_framework("torchtitan"), None)
    assert (other.matmul, other.exposed_tp) == (Calibration().matmul, Calibration().exposed_tp)


def test_without_levels_a_question_has_the_prior_of_the_architecture(home: Path) -> None:
    found = composed(NOVA, MEGATRON, "")
    assert found.context + found.collectives > 1e9  # by SM, and NCCL's buffers
    assert replace(found, flash=0.5, context=2e9, collectives=0.0) == replace(Calibration(), flash=0.5)
    write(home, "kin", architectures=["Nova"], fitted_on="kernels", matmul=0.55)
    assert (composed(NOVA, MEGATRON, "").matmul, prior_of(NOVA).key) == (0.55, "kin")


def test_the_attention_kernel_of_the_framework_counts_where_nothing_was_fitted() -> None:
    """FA3 reaches 0.64 of an H100 and FA2 0.4 (arXiv:2407.08608)."""
    hopper = find_chip("h100-sxm")
    assert composed(hopper, MEGATRON, "").flash == flash_share("fa3", "Hopper")
    assert composed(hopper, NANOTRON, "").flash == flash_share("fa2", "Hopper")
    assert flash_share("fa2", "Hopper") < flash_share("fa3", "Hopper") < 1
    assert flash_share("fa4", "no such architecture") == flash_share("fa4", "")


def test_a_calibration_of_this_chip_and_framework_precedes_levels(known: Levels, home: Path) -> None:
    write(home, "own", chips=["nova-1"], frameworks=["megatron"], fitted_on="my runs", matmul=0.5, fabric="efa", network=0.9)
    found = choose(NOVA, MEGATRON, EFA)
    assert (found.key, found.matmul, found.network) == ("own", 0.5, 0.9)
    assert found.frameworks == ("megatron",)  # calibrated
    assert choose(NOVA, NANOTRON, EFA).matmul == 0.61


def test_the_context_that_a_probe_measures_is_not_counted_by_a_program_that_reports_what_torch_allocated(home: Path) -> None:
    own, probed = find_framework("meshwise"), 600e6
    assert 0 < own.workspace < probed
    assert composed(NOVA, own, "").context == own.workspace
    write(home, "here", chips=["nova-1"], fitted_on="a probe", context="600 MB")
    assert (choose(NOVA, own).context, choose(NOVA, MEGATRON).context) == (own.workspace, probed)
    assert choose(replace(NOVA, kind="cpu"), own).context == probed  # there, the memory of the process counts
    write(home, "fitted", chips=["nova-1"], frameworks=["meshwise"], fitted_on="my runs", context="900 MB")
    assert choose(NOVA, own).context == 900e6


def test_a_calibration_does_not_carry_somebody_elses_network(known: Levels, home: Path) -> None:
    """Fitted on EFA and asked about InfiniBand: chip and framework stay, the network's coefficients are those of InfiniBand."""
    write(home, "own", chips=["nova-1"], frameworks=["megatron"], matmul=0.5, fabric="efa", network=0.9, network_latency="90us")
    moved = choose(NOVA, MEGATRON, INFINIBAND)
    assert (moved.matmul, moved.network, moved.network_latency) == (0.5, 0.64, Calibration().network_latency)
    assert moved.key == "own + infiniband"
    unknown = choose(NOVA, MEGATRON, Link(name="400Gbps", bandwidth=50e9))
    assert unknown.network == Calibration().network
    assert choose(NOVA, MEGATRON, INFINIBAND, stated=False).network == 0.9  # nobody stated the network
    assert choose(NOVA, MEGATRON, None).network == 0.9  # there is none


def test_a_network_that_was_assumed_is_not_a_stated_one(known: Levels, home: Path) -> None:
    write(home, "own", chips=["h100-sxm"], frameworks=["megatron"], fabric="efa", network=0.9)
    assert choose_for(find_cluster("4x8xh100-sxm"), MEGATRON).network == 0.9
    assert choose_for(find_cluster("4x8xh100-sxm@400Gbps"), MEGATRON).network == Calibration().network


def test_only_what_others_measured_has_a_term_for_differences_between_sources(known: Levels, home: Path) -> None:
    """The user's own calibration was fitted to the machine that it predicts; a shipped one was not."""
    shipped = next(c for c in calibrations() if c.shipped and c.chips and c.frameworks)
    chip, framework = find_chip(shipped.chips[0]), find_framework(shipped.frameworks[0])
    assert choose(chip, framework).between == 0.2
    assert choose(chip, framework).expert_spread >= 0.3
    write(home, "mine", chips=[chip.key], frameworks=[framework.key], fitted_on="my runs")
    own = choose(chip, framework)
    assert (own.key, own.shipped, own.between, own.expert_spread) == ("mine", False, 0.0, 0.0)


def test_the_shipped_levels_are_read_and_hold_known_coefficients() -> None:
    found = levels.levels()
    by_level = {
        level: {name for name, about in coefficients(Calibration).items() if about.level == level}
        for level in ("chip", "framework", "fabric")
    }
    for level, names in by_level.items():
        for key, values in getattr(found, level).items():
            assert set(values) <= names, (level, key)
            assert all(value >= 0 for value in values.values())
    assert set(found.spread) <= {"waiting", "low", "high", "between", "expert_spread", "memory_spread", "devices"}


def test_every_coefficient_belongs_to_a_level() -> None:
    by_level = {name: about.level for name, about in coefficients(Calibration).items()}
    assert set(by_level) == set(COEFFICIENTS)
    assert {name for name, level in by_level.items() if level == "fabric"} == {"network", "network_latency"}
    assert by_level["matmul"] == by_level["fp4"] == by_level["grouped"] == "chip"
    assert by_level["exposed_tp"] == by_level["expert_launch"] == by_level["update"] == "framework"


@pytest.mark.parametrize("text", ["[chip.Hopper]\nmatmull = 0.5", "[framework.megatron]\nstep = '3 GB'"])
def test_a_mistake_in_levels_is_refused(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "levels.toml").write_text(text)
    monkeypatch.setattr(files, "BUILT_IN", tmp_path)
    with pytest.raises(UserError, match=r"matmull|3 GB"):
        levels.levels.__wrapped__()  # type: ignore[attr-defined]
