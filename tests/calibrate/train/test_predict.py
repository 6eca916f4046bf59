"""Predictions for rows of a table: independent of other rows, with defaults for omitted columns."""

from dataclasses import replace

import numpy as np
import pytest

from meshwise.calibrate.train.predict import predict
from meshwise.catalogue import calibrations
from meshwise.catalogue.calibrations import Calibration
from support.measured_rows import built_in


@pytest.mark.parametrize("name", ["bloom_prequel", "megatron2021_table1", "korthikanti2022_iteration"])
def test_rows_evaluated_together_cost_the_same_as_one_by_one(name: str) -> None:
    cases = built_in(name)[0][:20]
    together = predict(cases, Calibration())
    single = [predict([case], Calibration()) for case in cases]
    np.testing.assert_allclose(together.seconds, [one.seconds[0] for one in single])
    np.testing.assert_allclose(together.memory, [one.memory[0] for one in single])


def test_each_row_is_evaluated_with_the_calibration_of_its_chip_and_framework() -> None:
    cases = [built_in(name)[0][0] for name in ("bloom_prequel", "nanotron_h100_small")]
    predicted = predict(cases)
    for i, case in enumerate(cases):
        calibration = calibrations.choose(case.chip, case.work.framework.key)
        assert predict([case], calibration).seconds[0] == predicted.seconds[i]


def test_a_micro_batch_that_is_not_stated_is_the_fastest_that_fits() -> None:
    """Among the rows of Megatron's table without recompute, so that memory binds."""
    bound = 0
    for case in built_in("megatron2021_table1")[0]:
        unstated = replace(case, layout=case.layout | {"recompute": 0})
        found = predict([unstated], Calibration())
        stated = [predict([replace(unstated, layout=unstated.layout | {"mbs": mbs})], Calibration()) for mbs in (1, 2, 4, 8, 16)]
        fit = [one.seconds[0] for one in stated if one.memory[0] < unstated.chip.memory]
        if fit:
            assert found.seconds[0] == min(fit)
            bound += min(fit) > min(one.seconds[0] for one in stated)
    assert bound
