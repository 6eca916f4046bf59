"""The meter integrates watts, or takes the difference of a counter; a machine without a meter has no figure."""

import time
from pathlib import Path

import pytest

from meshwise.run import meter
from meshwise.run.meter import Meter, Source, rapl


def test_watts_are_integrated() -> None:
    with Meter(Source("nvml", 2, lambda: 100.0, counts=False)) as reading:
        time.sleep(0.45)
    assert reading.metered
    assert reading.metered.joules == pytest.approx(40, abs=16)
    assert reading.metered.devices == 2


def test_a_counter_is_read_twice() -> None:
    counter = iter((1000.0, 1250.0))
    with Meter(Source("nvml", 1, lambda: next(counter), counts=True)) as reading:
        pass
    assert reading.metered
    assert reading.metered.joules == 250


def test_rapl_counts_microjoules(tmp_path: Path) -> None:
    (tmp_path / "intel-rapl:0").mkdir()
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("5000000\n")
    source = rapl(tmp_path)
    assert source
    assert source.read() == 5.0


def test_no_meter_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "find", lambda: None)
    with Meter() as reading:
        pass
    assert reading.metered is None
