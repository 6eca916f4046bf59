"""A user's folder with a calibration of nanotron on H100 in which runs with several stages are often slow."""

from dataclasses import replace
from pathlib import Path

from meshwise.catalogue import calibrations, files, records
from meshwise.catalogue.modes import Mode

SLOW = Mode(effect="adds", per="micro-batch", stages="several", seconds=1.2, spread=0.05, share=0.2, rows=40.0)


def install(home: Path, *modes: Mode) -> None:
    """Write the calibration into the folder, with these modes."""
    known = next(each for each in calibrations.calibrations() if "nanotron" in each.frameworks and "h100-sxm" in each.chips)
    text = records.toml(replace(known, modes=modes), "# a test", "matmul")
    (home / "calibration" / "slow.toml").write_text(text, encoding="utf-8")
    files.clear()
