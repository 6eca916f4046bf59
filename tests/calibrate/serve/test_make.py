"""A calibration made from tables of served models."""

import tomllib

import pytest

from meshwise.calibrate.serve.fit import NOISE_STD
from meshwise.calibrate.serve.make import make
from meshwise.catalogue import records
from meshwise.catalogue.calibrations import ServeCalibration
from meshwise.errors import UserError


def test_a_calibration_is_read_back_unchanged() -> None:
    made = make(["xiongjiedai_llama3_bench"], chips=["m2-ultra"], date="2026-11-15")
    assert (made.calibration.chips, made.calibration.engines, made.calibration.rows) == (("m2-ultra",), ("llama.cpp",), 32)
    assert made.in_sample["decode"]["mape"] < 0.04
    assert NOISE_STD <= made.calibration.spread < 0.1  # another machine with the same card is that far away
    text = made.text
    assert text.startswith("# Written by 'meshwise calibrate'. Left out: decode ")
    back = records.read(ServeCalibration, tomllib.loads(text), "mine.toml")
    assert (back.stream, back.layer) == pytest.approx((made.calibration.stream, made.calibration.layer), rel=1e-3)


def test_rows_of_several_chips_are_refused_unless_one_is_named() -> None:
    with pytest.raises(UserError, match=r"the rows are of several chips .*; choose the one to fit to with --chips"):
        make(["xiongjiedai_llama3_bench"], date="")
    with pytest.raises(UserError, match="no row is of h200; there are rows of rtx3090"):
        make(["xiongjiedai_llama3_bench"], chips=["h200"], date="")
