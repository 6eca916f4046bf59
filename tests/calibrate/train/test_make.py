"""calibrate on a probe and runs: it recovers known coefficients, keeps undetermined ones, and refuses a worse calibration."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from meshwise.calibrate import dispatch
from meshwise.calibrate.train import probe as probed
from meshwise.calibrate.train.make import TrainCalibrationResult, data_of, make
from meshwise.catalogue import files as catalogue_files
from meshwise.catalogue.calibrations import Calibration
from meshwise.catalogue.chips import find_chip
from meshwise.catalogue.frameworks import find_framework
from meshwise.catalogue.levels import choose
from meshwise.errors import DoesNotFit, UserError
from meshwise.run.probe import store as probing
from meshwise.runs.train.predict import predict
from support.command import Done, one_line, refused
from support.probe_rows import TRUTH, h200_rows

Run = Callable[..., Done]
SHAPES = (("llama-3.2-1b", 2, 2048), ("llama-3.2-1b", 8, 1024), ("llama-3.2-1b", 8, 2048), ("llama-3.2-1b", 4, 512),
          ("llama-3.2-3b", 1, 2048), ("llama-3.2-3b", 4, 1024), ("llama-3.2-3b", 2, 512), ("smollm2-360m", 8, 1024),
          ("smollm2-360m", 16, 2048), ("smollm2-360m", 4, 512), ("smollm2-360m", 32, 512), ("smollm2-135m", 4, 1024),
          ("smollm2-135m", 16, 512), ("smollm2-135m", 32, 2048), ("ttt-linear-125m", 8, 1024))  # fmt: skip


def write(path: Path, rows: list[dict[str, object]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def runs(seconds: list[float] | None = None, memory: list[float] | None = None) -> list[dict[str, object]]:
    """Rows as `meshwise run` keeps them."""
    fixed = {
        "gpu": "h200",
        "n_gpus": 1,
        "gpus_per_node": 1,
        "framework": "meshwise",
        "tp": 1,
        "pp": 1,
        "dp": 1,
        "recompute": "none",
    }
    return [
        fixed | {"row_id": f"run-{i}", "model": model, "global_batch_seqs": batch, "micro_batch": batch, "seq_len": seq}
        | {"sec_per_iter": seconds[i] if seconds else 1.0, "mem_gb": memory[i] if memory else 10.0, "mem_unit": "GiB"}
        for i, (model, batch, seq) in enumerate(SHAPES)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, Calibration]:
    """A probe of a machine, and runs on it whose framework moves 1.6 times the bytes, in layers with gaps of 20 us."""
    folder = tmp_path_factory.mktemp("mix")
    probe = write(folder / "probe.jsonl", h200_rows(TRUTH, hot=1.0))
    first = write(folder / "first.jsonl", runs())
    cases = data_of([probe, first]).cases
    truth = replace(probed.machine(h200_rows(TRUTH, hot=1.0)).calibration, elementwise=1.6, layer_gap=2e-5, activations=1.1)
    seen = predict(cases, truth)
    return probe, write(folder / "runs.jsonl", runs(seen.seconds.tolist(), (seen.memory / 2**30).tolist())), truth


@pytest.fixture(scope="module")
def made(files: tuple[str, str, Calibration]) -> TrainCalibrationResult:
    return make([files[0], files[1]], date="2026-11-15")


def test_coefficients_determined_by_runs_and_a_probe_are_recovered(
    made: TrainCalibrationResult, files: tuple[str, str, Calibration]
) -> None:
    c, truth = made.calibration, files[2]
    assert c.elementwise == pytest.approx(truth.elementwise, rel=0.15)  # the gap between kernels takes a share of it
    assert c.matmul == pytest.approx(truth.matmul, rel=0.03)
    assert c.memory == pytest.approx(truth.memory, rel=0.05)
    assert c.activations == pytest.approx(1.1, rel=0.02)


def test_rows_left_out_are_predicted_better_than_before(made: TrainCalibrationResult) -> None:
    assert made.before_name == "the probe alone"
    assert made.left_out["time"]["mape"] < 0.03 < made.before["time"]["mape"]
    assert made.left_out["memory"]["mape"] < 0.01 < made.before["memory"]["mape"]
    assert made.worse == ""


def test_coefficients_that_one_device_cannot_determine_keep_their_prior_and_are_named(
    made: TrainCalibrationResult, files: tuple[str, str, Calibration]
) -> None:
    assert {"link", "network", "exposed_tp", "hidden_dp", "stage_launch", "step"} <= set(made.kept)
    assert "elementwise" not in made.kept
    prior = probed.machine(h200_rows(TRUTH, hot=1.0)).calibration
    for name in made.kept:
        assert getattr(made.calibration, name) == getattr(prior, name)


def test_the_calibration_covers_the_probed_machine_and_its_chip(made: TrainCalibrationResult) -> None:
    assert made.calibration.chips == ("here", "h200")
    assert made.calibration.frameworks == ("meshwise",)
    assert "probe of NVIDIA H200" in made.calibration.fitted_on


@pytest.mark.slow
def test_plans_use_an_installed_calibration(files: tuple[str, str, Calibration], home: Path, run: Run) -> None:
    probing.install(h200_rows(TRUTH, hot=1.0), "here")
    catalogue_files.clear()
    done = run("calibrate", "here", files[1], "--install")
    assert done.code == 0
    assert "not determined by these rows, kept at their prior:" in done.out
    assert "before" in done.out
    catalogue_files.clear()
    own = find_framework("meshwise")
    assert choose(find_chip("here"), own).key == choose(find_chip("h200"), own).key == "here-meshwise"
    assert choose(find_chip("here"), find_framework("megatron")).key == "probe"
    planned = json.loads(
        run("plan", "llama-3.2-1b", "--on", "here", "--batch", "4x2048", "--framework", "meshwise", "--json").out
    )
    assert planned["calibration"]["name"] == "here-meshwise"
    best = planned["choices"][0]
    assert math.log(best["high"] / best["low"]) < 0.3  # narrower than the prior's


@pytest.mark.slow
def test_a_fit_to_noise_is_not_written_unless_forced(
    files: tuple[str, str, Calibration], tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probe is right and runs scatter around it at random: a fit to all but one of them predicts that one worse than the probe does."""
    cases = data_of([files[0], files[1]]).cases
    right = predict(cases, probed.machine(h200_rows(TRUTH, hot=1.0)).calibration)
    lots = (1.15, 0.87, 0.87, 0.87, 1.15, 1.15, 0.87, 1.1, 0.87, 1.15, 0.87, 1.15, 1.15, 0.87, 0.9)
    seconds = [float(one) * lot for one, lot in zip(right.seconds, lots, strict=True)]
    noise = write(
        tmp_path / "noise.jsonl", runs(seconds, [float(one) / 2**30 * lot for one, lot in zip(right.memory, lots, strict=True)])
    )
    out, made = tmp_path / "mine.toml", make([files[0], noise], date="2026-11-15")
    monkeypatch.setattr(dispatch, "calibrate", lambda *_: made)  # fitted once for both commands
    done = run("calibrate", files[0], noise, "--out", str(out))
    assert done.code == 1
    asked = "; more rows may help, or --force writes it anyway\n"
    errs = r"meshwise: not written: (the mean error of \w+ is ([\d.]+)% on rows left out of the fit, and ([\d.]+)% with the probe alone)"
    printed = re.fullmatch(errs + asked, done.err)
    assert printed
    worse = printed[1]
    assert float(printed[2]) > float(printed[3])
    assert not out.exists()
    assert f"written to {out} although {worse}" in run("calibrate", files[0], noise, "--out", str(out), "--force").out


def test_a_probe_alone_or_of_another_chip_is_refused(files: tuple[str, str, Calibration], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a probe alone is already a calibration"):
        data_of([files[0]])
    other = write(tmp_path / "other.jsonl", [row | {"gpu": "a100-80gb"} for row in runs()])
    with pytest.raises(UserError, match="calibrate them separately"):
        data_of([files[0], other])
    with pytest.raises(UserError, match="two of the files are probes"):
        data_of([files[0], files[0]])


def test_calibrate_asks_for_a_missing_probe_or_more_runs(
    files: tuple[str, str, Calibration], home: Path, tmp_path: Path, run: Run
) -> None:
    assert "this machine was not measured yet: run 'meshwise probe' first" in refused(run("calibrate", "here", files[1]))
    probing.install(h200_rows(TRUTH, hot=1.0), "here")
    catalogue_files.clear()
    one = write(tmp_path / "one.jsonl", runs()[:1])
    assert "one row is not enough to score a fit: give two runs or more" in refused(run("calibrate", "here", one))


def test_a_calibration_of_more_rows_is_not_replaced_silently(made: TrainCalibrationResult, home: Path) -> None:
    path = made.install(force=True)
    first = path.read_text()
    assert made.replaces == ""
    fewer = replace(made, calibration=replace(made.calibration, rows=made.calibration.rows - 1))
    with pytest.raises(DoesNotFit) as error:
        fewer.install()
    assert f"would replace {path.name}, fitted to {made.calibration.rows:.0f} rows of " in one_line(error.value)
    assert path.read_text() == first
    fewer.install(force=True)
    assert (path.parent / f"{path.name}.old").read_text() == first
    assert made.replaces.startswith(f"{path.name}, fitted to {fewer.calibration.rows:.0f} rows of ")
    made.install(force=True)
    assert path.read_text() == first
    path.write_text("not TOML [")  # damaged, or of another version: kept too
    made.install(force=True)
    assert (path.parent / f"{path.name}.old").read_text() == "not TOML ["
