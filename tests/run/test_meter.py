"""The meter integrates watts, or takes the difference of a counter; a machine without a meter has no figure."""

import time
from collections.abc import Sequence
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


def counted(values: Sequence[float], **more: float) -> tuple[Meter, float]:
    """Return a meter that read these values of a counter, the last one as often as it likes, and the moment before the third of them."""
    taken: list[float] = []

    def read() -> float:
        taken.append(values[min(len(taken), len(values) - 1)])
        times.append(time.time())
        return taken[-1]

    times: list[float] = []
    with Meter(Source("nvml", 1, read, counts=True, every=0.15, **more)) as reading:
        while len(taken) < len(values) - 1:
            time.sleep(0.01)
    return reading, times[1] + 0.01


def test_the_difference_of_a_counter_is_what_was_drawn() -> None:
    reading, middle = counted((1000.0, 1100.0, 1300.0, 1600.0))
    assert reading.metered
    assert reading.metered.joules == 600
    part = reading.between(middle, middle + 0.05)
    assert part
    assert 0 < part.watts <= 200 / 0.14  # readings are 0.15 s apart or more
    assert reading.between(middle, middle + 100) is None


@pytest.mark.parametrize(("wraps", "joules"), [(1500.0, 700.0), (0.0, 600.0)])
def test_a_counter_that_begins_again_or_fails_once_loses_nothing(wraps: float, joules: float) -> None:
    """RAPL's wraps after 1,500 J: 400 + (1500 - 1400 + 0) + 200; NVML's that fails returns 0 once."""
    values = (1000.0, 1400.0, 0.0, 200.0) if wraps else (1000.0, 1400.0, 0.0, 1600.0)
    reading, _ = counted(values, wraps=wraps)
    assert reading.metered
    assert reading.metered.joules == joules


def test_only_visible_devices_are_metered(monkeypatch: pytest.MonkeyPatch) -> None:
    for words, seen in (("", [0, 1, 2, 3]), ("2,3", [2, 3]), ("1, 9", [1]), ("GPU-8f", [0, 1, 2, 3])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", words)
        assert meter.visible(4) == seen


def test_rapl_counts_microjoules(tmp_path: Path) -> None:
    (tmp_path / "intel-rapl:0").mkdir()
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("5000000\n")
    (tmp_path / "intel-rapl:0" / "max_energy_range_uj").write_text("262143328850\n")
    source = rapl(tmp_path)
    assert source
    assert source.read() == 5.0


def test_no_meter_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "find", lambda devices: None)
    with Meter() as reading:
        pass
    assert reading.metered is None
