"""Predictions for rows of a table: independent of other rows, with defaults for omitted columns."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from meshwise.catalogue.calibrations import Calibration
from meshwise.catalogue.levels import choose_for
from meshwise.runs.train.predict import Batch, predict
from support.measured_rows import built_in, read


@pytest.mark.parametrize("name", ["bloom_prequel", "megatron2021_table1", "korthikanti2022_iteration"])
def test_rows_evaluated_together_cost_the_same_as_one_by_one(name: str) -> None:
    cases = built_in(name)[0][:20]
    together = predict(cases, Calibration())
    single = [predict([case], Calibration()) for case in cases]
    np.testing.assert_allclose(together.seconds, [one.seconds[0] for one in single])
    np.testing.assert_allclose(together.memory, [one.memory[0] for one in single])


def test_rows_that_repeat_a_run_are_evaluated_once_and_predicted_alike() -> None:
    cases = built_in("bloom_prequel")[0][:20]
    once, thrice = Batch.of(cases), Batch.of([*cases, *cases, *cases])
    assert thrice.size == once.size <= len(cases)
    np.testing.assert_array_equal(thrice.evaluate().seconds, np.tile(once.evaluate().seconds, 3))
    np.testing.assert_array_equal(thrice.shares(), np.tile(once.shares(), (3, 1)))


def test_each_row_is_evaluated_with_the_calibration_of_its_chip_and_framework() -> None:
    cases = [built_in(name)[0][0] for name in ("bloom_prequel", "nanotron_h100_small")]
    predicted = predict(cases)
    for i, case in enumerate(cases):
        calibration = choose_for(case.cluster, case.work.framework)
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


def test_zero_1_over_many_data_ranks_is_slower_than_zero_0_as_nanotron_measured() -> None:
    """128 H100, pp 1: a ring gathers the weights after every update, which nothing hides, and an all-reduce has a tree. Of pairs of runs
    that differ in nothing else, those with 16 data ranks and more were all slower with ZeRO 1, by up to 21%. From 64 ranks on, the sign
    must be right; with fewer, where the difference is smaller, in most pairs."""
    cases = built_in("nanotron_h100_128")[0]
    predicted, runs = predict(cases).seconds, dict[tuple[int, *tuple[object, ...]], dict[int, int]]()
    for i, case in enumerate(cases):
        a = case.layout
        dp = a["dp_replicate"] * a["dp_shard"]
        if case.timed and a["pp"] == 1 and dp >= 16:
            runs.setdefault((dp, case.model.name, case.work.batch, a["tp"], a["mbs"]), {})[a["zero"]] = i
    pairs = {key: (one[0], one[1]) for key, one in runs.items() if len(one) == 2}
    assert len(pairs) > 20
    assert all(cases[sharded].seconds > cases[plain].seconds for plain, sharded in pairs.values())
    slower = {key: predicted[sharded] > predicted[plain] for key, (plain, sharded) in pairs.items()}
    assert all(right for (dp, *_), right in slower.items() if dp >= 64)
    assert np.mean(list(slower.values())) > 0.8


def test_rows_on_networks_of_different_kinds_are_evaluated_apart(tmp_path: Path) -> None:
    """EFA and InfiniBand of the same bandwidth have different coefficients."""
    two = {"n_gpus": "16", "dp": "16"}
    cases = read(tmp_path, two | {"network": "EFA"}, two | {"network": "InfiniBand HDR"})
    assert predict(cases).seconds.tolist() == [predict([case]).seconds.item() for case in cases]
