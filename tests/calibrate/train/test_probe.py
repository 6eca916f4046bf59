"""Rows of a probe become a chip and a calibration that plans use."""

import json
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from meshwise.calibrate.train import probe as fitted_probe
from meshwise.catalogue import files, records
from meshwise.catalogue.calibrations import COEFFICIENTS, Calibration, named
from meshwise.catalogue.chips import Chip, find_chip, part_of_here
from meshwise.catalogue.clusters import find_cluster
from meshwise.catalogue.frameworks import find_framework
from meshwise.catalogue.levels import choose
from meshwise.cost.train.compute import Device, product
from meshwise.errors import UserError
from meshwise.run.probe import measure, store
from support.command import Done
from support.every import check_every
from support.probe_rows import TRUTH, h200_rows, row

Run = Callable[..., Done]


def test_coefficients_of_a_synthetic_probe_are_recovered() -> None:
    found = fitted_probe.machine(h200_rows(TRUTH, hot=0.9)).calibration
    assert found.matmul == pytest.approx(TRUTH.matmul * 0.9**0.5, rel=0.03)  # half of what a product by itself loses to heat
    assert found.tile == pytest.approx(TRUTH.tile, abs=0.03)
    assert found.depth == pytest.approx(TRUTH.depth, rel=0.15)
    assert found.memory == pytest.approx(TRUTH.memory, rel=0.01)
    assert found.flash == pytest.approx(TRUTH.flash, rel=0.01)
    assert found.layer_launch == pytest.approx(0.6e-3)  # forward is half of a block that takes 1.2 ms both ways
    assert {"matmul", "memory", "flash"} <= set(found.measured)
    assert "link" not in found.measured


def test_grouped_products_are_a_share_of_separate_ones() -> None:
    truth = replace(TRUTH, grouped=0.8)
    device, shape = Device.of(find_chip("h200"), truth, "bf16"), {"experts": 64, "m": 1024, "n": 2048, "k": 512}
    seconds = float(np.ravel(product(device, 1024, 2048, 512, 64))[0]) / 0.8
    back = float(np.ravel(product(device, 2048, 512, 1024, 64))[0]) / 0.8
    rows = [row("grouped", seconds, what="forward", flops=1.0, **shape), row("grouped", back, what="weights", flops=1.0, **shape)]
    found = fitted_probe.machine([*h200_rows(TRUTH, hot=1.0), *rows]).calibration
    assert found.grouped == pytest.approx(0.8, rel=0.05)
    assert "grouped" in found.measured
    assert "grouped" not in fitted_probe.machine(h200_rows(TRUTH)).calibration.measured


def test_one_outlier_does_not_distort_the_fit() -> None:
    rows = h200_rows(TRUTH, hot=1.0)
    rows[5] = rows[5] | {"seconds": rows[5]["seconds"] * 20}
    assert fitted_probe.machine(rows).calibration.matmul == pytest.approx(TRUTH.matmul, rel=0.05)


def test_a_catalogued_chip_keeps_its_datasheet_and_an_unknown_one_gets_measured_rates() -> None:
    known = fitted_probe.machine(h200_rows(TRUTH)).chip
    assert (known.key, known.bandwidth, known.flops) == ("here", find_chip("h200").bandwidth, find_chip("h200").flops)
    rows = h200_rows(TRUTH)
    rows[0] = rows[0] | {"name": "Some New GPU"}
    other = fitted_probe.machine(rows).chip
    assert other.name == "here: Some New GPU"
    assert other.flops["bf16"] == pytest.approx(max(r["flops"] / r["low"] for r in rows if r["kind"] == "gemm"))
    assert other.bandwidth == pytest.approx(4.8e12 * TRUTH.memory, rel=0.02)


def test_links_have_the_bandwidth_of_the_timed_ring() -> None:
    """All-gather of 64 MiB over 4 ranks at 300 GB/s moves 3/4 of it; 1 KiB takes 3 steps of 5 us."""
    wire = {"what": "all-gather", "group": 4, "nodes": 1, "stride": 1}
    big, small = 2**26, 2**10
    rows = [*h200_rows(TRUTH), row("wire", 0.75 * big / 300e9, size=big, **wire), row("wire", 15e-6, size=small, **wire)]
    rows += [row("wire", 0.75 * 2 * big / 300e9, size=2 * big, **wire)]
    found = fitted_probe.machine(rows).calibration
    assert found.link == pytest.approx(300 / 450, rel=0.01)  # of NVLink 4's 450 GB/s
    assert found.link_latency == pytest.approx(5e-6)


def test_missing_measurements_are_listed() -> None:
    rows = [*h200_rows(TRUTH), {"kind": "missing", "what": "links between devices", "why": "one device"}]
    assert fitted_probe.machine(rows).missing == ("links between devices: one device",)


def test_files_are_read_back(tmp_path: Path) -> None:
    found = fitted_probe.machine(h200_rows(TRUTH))
    chip = records.read(Chip, tomllib.loads(records.toml(found.chip)), "here.toml")
    assert (chip.name, chip.sms, chip.link, chip.sources) == (
        "here: H200 SXM",
        132,
        find_chip("h200").link,
        find_chip("h200").sources,
    )
    again = records.read(Calibration, tomllib.loads(records.toml(found.calibration, "# x", COEFFICIENTS[0])), "probe.toml")
    for name in COEFFICIENTS:
        assert getattr(again, name) == pytest.approx(getattr(found.calibration, name), rel=1e-3)
    assert again.measured == found.calibration.measured


def test_a_stored_probe_makes_here_a_cluster_with_a_calibration(home: Path) -> None:
    with pytest.raises(UserError, match="run 'meshwise probe' first"):
        find_cluster("here")
    files.clear()
    store.install(h200_rows(TRUTH), "here")
    files.clear()
    for words, devices in (("here", 1), ("1xhere", 1), ("4xhere", 4), ("1x8xhere", 8)):
        cluster = find_cluster(words)
        assert cluster.devices == devices
        chip = cluster.nodes[0][1].chips[0][1]
        assert choose(chip, find_framework("meshwise")).key == choose(chip, find_framework("megatron")).key == "probe"
    assert named("probe").memory == pytest.approx(TRUTH.memory, rel=0.01)
    assert choose(find_chip("h200"), find_framework("meshwise")).key != "probe"  # the catalogue's chip is left as it was
    assert sorted(path.name for path in (home / "probes").iterdir()) == ["here.jsonl"]


def test_the_curves_are_drawn_with_their_spread(home: Path, run: Run) -> None:
    store.install(h200_rows(TRUTH), "here")
    files.clear()
    shown = run("probe", "--show")
    assert shown.code == 0
    for words in ("4096x4096x4096", "TFLOP/s", "copy 1 GiB", "forward 4x32x2048x64", "± 1% of 9", "█"):
        assert words in shown.out


def test_showing_a_probe_needs_one(home: Path, run: Run) -> None:
    assert run("probe", "--show").err == "meshwise: this machine has not been measured yet: run 'meshwise probe'\n"


def test_a_file_that_is_not_a_probe_is_refused_in_one_line(tmp_path: Path) -> None:
    def check(text: str, words: str) -> None:
        path = tmp_path / "rows.jsonl"
        path.write_text(text)
        with pytest.raises(UserError, match=words):
            store.read_probe(path)

    check_every(
        check,
        [
            ("", "expected the first line of a probe to describe the machine"),
            ("{", "line 1: not valid JSON"),
            ('{"seconds": 1}', "not a row of a probe"),
            ("".join(json.dumps(one | {"seconds": -1}) + "\n" for one in h200_rows(TRUTH)), "seconds is -1; expected a number"),
        ],
    )


def test_rows_measured_elsewhere_can_be_stored(home: Path, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "elsewhere.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in h200_rows(TRUTH)))
    done = run("probe", "--read", str(path))
    assert done.code == 0
    assert "66% of 989 TFLOP/s (datasheet)" in done.out
    files.clear()
    assert find_cluster("here").devices == 1


def test_a_process_that_shares_a_cpu_has_its_own_chip() -> None:
    assert [part_of_here(n) for n in (1, 2, 4)] == ["here", "here-1of2", "here-1of4"]
    sessions = measure.sessions("cpu", 2, 60)
    assert [(s.key, s.ranks) for s in sessions] == [("here", 1), ("here-1of2", 2)]
    assert sum(s.seconds for s in sessions) == pytest.approx(60)
    assert [s.ranks for s in measure.sessions("cuda", 8, 60)] == [8]
