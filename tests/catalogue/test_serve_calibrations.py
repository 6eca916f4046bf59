"""Calibrations for serving: which one is chosen for a chip and an engine, and which files are refused."""

from dataclasses import replace
from pathlib import Path

import pytest

from meshwise.catalogue.calibrations import (
    SERVE_COEFFICIENTS,
    ServeCalibration,
    choose_serve,
    engine_of,
    named_serve,
    serve_calibrations,
    serve_prior,
)
from meshwise.catalogue.chips import find_chip
from meshwise.errors import UserError
from support.command import one_line

NOVA = replace(find_chip("h100-sxm"), key="nova-1", architecture="Nova")
"""A chip that no shipped file knows."""


def write(home: Path, name: str, **values: object) -> None:
    lines = [f"{key} = {value!r}" for key, value in values.items()]
    (home / "serving" / f"{name}.toml").write_text("\n".join(lines))


def test_an_uncalibrated_card_gets_the_prior_of_its_kind() -> None:
    assert choose_serve(NOVA, "llama.cpp").key == "llama.cpp-gpu"
    assert choose_serve(NOVA, "vllm").key == "vllm"
    assert choose_serve(find_chip("m4-max"), "llama.cpp").key == "llama.cpp-apple"
    assert choose_serve(find_chip("epyc-9654"), "llama.cpp").key == "llama.cpp-cpu"


def test_cards_of_the_published_tables_have_their_own_calibration() -> None:
    for chip in ("rtx3090", "rtx4090", "a100-80gb-pcie", "a100-80gb-sxm"):
        assert choose_serve(find_chip(chip), "llama.cpp-2024-05").key == f"{chip}-llama.cpp-2024-05"
    assert choose_serve(find_chip("m2-ultra"), "llama.cpp-2024-05").key == "m2-ultra-llama.cpp-2024-05"
    assert choose_serve(find_chip("m2-ultra"), "llama.cpp").key == "llama.cpp-apple"  # builds of today are faster
    assert choose_serve(find_chip("h200"), "tensorrt-llm-2025-12").key == "tensorrt-llm-2025-12"


def test_a_vendor_and_a_backend_come_before_any() -> None:
    """Today's llama.cpp is not that of 2024, and ROCm with rocWMMA is not ROCm."""
    assert choose_serve(find_chip("rtx3090"), "llama.cpp").key == "llama.cpp-gpu"
    assert choose_serve(find_chip("rx7900xtx"), "llama.cpp").key == "llama.cpp-amd"
    assert choose_serve(find_chip("mi300x"), "vllm").key == "vllm-amd"
    strix = find_chip("strix-halo")
    assert choose_serve(strix, "llama.cpp", "vulkan").key == "rdna3.5-llama.cpp-vulkan"
    assert choose_serve(strix, "llama.cpp", "rocm").key == "rdna3.5-llama.cpp"
    assert choose_serve(strix, "llama.cpp", "rocm-wmma").key == "rdna3.5-llama.cpp-wmma"


def test_a_build_that_was_measured_comes_before_its_engine() -> None:
    chip = find_chip("rtx3090")
    assert choose_serve(chip, "llama.cpp-2023-12").key == "rtx3090-llama.cpp-2023-12"
    assert choose_serve(chip, "llama.cpp-2024-05").key == "rtx3090-llama.cpp-2024-05"
    assert (engine_of("llama.cpp-2024-05"), engine_of("vllm")) == ("llama.cpp", "vllm")


def test_a_users_own_file_is_found_for_its_chip_and_its_architecture(home: Path) -> None:
    write(home, "mine", chips=["nova-1"], engines=["llama.cpp"], fitted_on="last week's runs", stream=0.7, layer="50us")
    write(home, "kin", architectures=["Nova"], engines=["vllm"], fitted_on="its kin")
    assert (choose_serve(NOVA, "llama.cpp").key, choose_serve(NOVA, "llama.cpp").stream) == ("mine", 0.7)
    assert choose_serve(NOVA, "llama.cpp").layer == pytest.approx(5e-5)
    assert choose_serve(NOVA, "vllm").key == "kin"
    assert serve_prior(NOVA, "vllm").key == "vllm"
    assert named_serve("mine").reach == ServeCalibration().reach  # a key that the file omits has the default


def test_an_unknown_engine_gets_the_default_calibration() -> None:
    assert choose_serve(NOVA, "other") == ServeCalibration()
    assert "prior" in ServeCalibration().fitted_on


def test_every_shipped_file_says_where_its_numbers_come_from() -> None:
    assert len(serve_calibrations()) >= 10
    for found in serve_calibrations():
        assert all((found.engines, found.fitted_on, found.date)), found.key
        assert found.chips or found.kinds or found.architectures, found.key
        assert all(getattr(found, name) >= 0 for name in SERVE_COEFFICIENTS)


def test_a_zero_share_and_a_misspelt_name_are_refused(home: Path) -> None:
    write(home, "bad", engines=["vllm"], stream=0)
    with pytest.raises(UserError, match="stream is a share of a rate") as refused:
        serve_calibrations()
    assert one_line(refused.value)
    (home / "serving" / "bad.toml").unlink()
    with pytest.raises(UserError, match="unknown calibration 'vlm'; did you mean 'vllm'"):
        named_serve("vlm")
