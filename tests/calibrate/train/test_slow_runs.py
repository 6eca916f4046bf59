"""A calibration of runs of which some are faulty: they neither move the coefficients nor widen the intervals, and are stated aside."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from meshwise.calibrate.train import intervals, modes
from meshwise.calibrate.train.fit import fit, fitted_rows, prior_for
from meshwise.catalogue import calibrations, records
from meshwise.catalogue.calibrations import Calibration
from meshwise.catalogue.modes import Mode
from meshwise.cost.modes import seconds_in
from meshwise.errors import UserError
from meshwise.runs.table import find_table
from meshwise.runs.train.case import Case
from meshwise.runs.train.predict import Batch, predict
from meshwise.runs.train.settle import read_cases

FAULT = Mode(effect="adds", per="micro-batch", stages="several", seconds=1.2, spread=0.05, share=0.2, rows=0.0)


def normal_and_faulty() -> tuple[list[Case], list[Case], set[int]]:
    """Return runs that take what the prior predicts, but for noise, and the same with a fifth of the pipelines in a mode."""
    cases = [case for case in read_cases(find_table("nanotron_h100_small"))[0] if case.timed]
    predicted = predict(cases, prior_for(cases[0])).seconds
    dice = np.random.default_rng(3)
    noise = dice.lognormal(0.0, 0.05, len(cases))
    inside = seconds_in(FAULT, predicted, modes.sizes_of(cases))
    chosen = (inside > 1.5 * predicted) & (dice.random(len(cases)) < FAULT.share)
    normal, faulty = (
        [replace(case, seconds=float(value)) for case, value in zip(cases, seconds * noise, strict=True)]
        for seconds in (predicted, np.where(chosen, inside, predicted))
    )
    return normal, faulty, set(np.flatnonzero(chosen).tolist())


def test_faulty_runs_neither_move_a_fit_nor_widen_its_intervals() -> None:
    normal, faulty, chosen = normal_and_faulty()
    prior = prior_for(normal[0])
    assert not chosen & set(fitted_rows(faulty, predict(faulty, prior).seconds))
    clean, dirty = fit(normal, prior), fit(faulty, prior)
    shift = np.log(predict(normal, dirty).seconds / predict(normal, clean).seconds)
    assert np.sqrt(np.mean(shift**2)) < 0.01
    shares = Batch.of(faulty).shares(dirty)
    left_out = predict(faulty, dirty)
    found = modes.find(faulty, left_out.seconds)
    with_them, without = (
        intervals.fitted(faulty, left_out, shares, rows)["high"] for rows in (frozenset[int](), modes.rows_in(found))
    )
    assert max(without) < 0.2 < 1.0 < max(with_them)


def test_a_calibration_keeps_its_modes_in_its_file() -> None:
    made = Calibration(modes=(FAULT, replace(FAULT, stages="two", seconds=0.5)))
    text = records.toml(made)
    assert '[[modes]]\neffect = "adds"\nper = "micro-batch"\nstages = "several"\nseconds = "1.2 s"' in text


def test_a_mode_in_a_file_is_read_back_and_an_unknown_mechanism_refused(tmp_path: Path) -> None:
    path = tmp_path / "slow.toml"
    path.write_text(records.toml(Calibration(modes=(FAULT,))), encoding="utf-8")
    assert calibrations.named(str(path)).modes == (FAULT,)
    path.write_text(path.read_text().replace("micro-batch", "microbatch"), encoding="utf-8")
    with pytest.raises(UserError, match="did you mean 'micro-batch'"):
        calibrations.named(str(path))
