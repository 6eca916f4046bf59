"""`meshwise doctor` prints a table, two bars and what to change; `audit` takes a trace the same way."""

import json
from pathlib import Path

import pytest

from support.command import meshwise, refused

TRACES = Path(__file__).parents[2] / "fixtures" / "doctor"
NO_FLASH = str(TRACES / "h200-no-flash.json.gz")


def test_a_trace_is_diagnosed_with_a_table_bars_and_what_to_change() -> None:
    done = meshwise("doctor", NO_FLASH)
    assert (done.code, done.err) == (0, "")
    assert "3 steps of 101 ms on NVIDIA H200" in done.out
    assert "measured  MMMM" in done.out
    assert "certain no flash attention: attention writes its scores to memory" in done.out
    assert "change: use torch's scaled_dot_product_attention" in done.out
    assert done.out.rstrip().endswith("Change first: no flash attention (certain, 45% of the step).")


def test_json_has_every_part_and_fault() -> None:
    found = json.loads(meshwise("doctor", NO_FLASH, "--json").out)
    assert found["faults"][0]["name"] == "no flash attention"
    assert sum(row["measured"] for row in found["parts"][:-1]) == pytest.approx(found["parts"][-1]["measured"], rel=0.005)


def test_audit_takes_a_trace_the_same_way() -> None:
    assert meshwise("audit", NO_FLASH).out == meshwise("doctor", NO_FLASH).out


def test_a_page_has_the_picture_and_the_tables(tmp_path) -> None:
    page = tmp_path / "doctor.html"
    assert meshwise("doctor", NO_FLASH, "--html", str(page)).code == 0
    text = page.read_text()
    assert "<svg" in text
    assert "Longest kernels" in text
    assert "8,192 x 128,256 x 2,048" in text


def test_bad_input_gets_one_line(tmp_path) -> None:
    assert "cannot read" in refused(meshwise("doctor", str(tmp_path / "missing.json")))
    assert "has no file whose name has 'trace'" in refused(meshwise("doctor", str(tmp_path)))
    assert "--model" in refused(meshwise("doctor", NO_FLASH, "--params", "1B"))
