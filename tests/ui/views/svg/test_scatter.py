"""The picture of predicted against measured: sound XML, every run on it, small enough to keep in a repository."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from meshwise.calibrate.train.validate import validate
from meshwise.ui.views.svg.scatter import Scale, scatter
from support.measured_rows import table

SVG = "{http://www.w3.org/2000/svg}"


def dots(text: str) -> int:
    root = ElementTree.fromstring(text)
    return sum(path.get("d", "").count("h0") for path in root.findall(f"{SVG}path"))


@pytest.mark.parametrize(
    ("name", "timed"), [("bloom_prequel", 72), ("vtrain_a100_single_node", 1440), ("nanotron_h100_small", 415)]
)
def test_every_timed_run_is_a_dot_and_the_file_is_small(name: str, timed: int) -> None:
    text = scatter(validate(name))
    assert dots(text) == timed
    assert len(text.encode()) < 60_000


def test_every_dot_is_inside_the_frame() -> None:
    root = ElementTree.fromstring(scatter(validate("bloom_prequel")))
    frame = root.findall(f"{SVG}rect")[1]
    left, top, width, height = (float(frame.get(name, "")) for name in ("x", "y", "width", "height"))
    places = [pair for path in root.findall(f"{SVG}path") for pair in re.findall(r"M([\d.]+) ([\d.]+)h0", path.get("d", ""))]
    assert places
    assert all(left < float(x) < left + width and top < float(y) < top + height for x, y in places)


def test_a_single_run_has_a_picture_too(tmp_path: Path) -> None:
    assert dots(scatter(validate(str(table(tmp_path, {}))))) == 1


def test_a_table_without_times_has_an_empty_one(tmp_path: Path) -> None:
    assert dots(scatter(validate(str(table(tmp_path, {"sec_per_iter": "", "mem_gb": "40"}))))) == 0


def test_names_from_files_are_text(tmp_path: Path) -> None:
    path = table(tmp_path, {})
    odd = path.rename(tmp_path / "a<b&c.csv")
    assert "a<b&c: seconds per step" in "".join(ElementTree.fromstring(scatter(validate(str(odd)))).itertext())


@pytest.mark.parametrize("span", [1.0, 1.01, 1.3, 3, 100, 1e6])
def test_an_axis_has_a_few_round_ticks_whatever_its_span(span: float) -> None:
    ticks = Scale.over(7.0, 7.0 * span).ticks()
    assert 3 <= len(ticks) <= 16
