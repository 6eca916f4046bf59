"""Fit the rows of a probe and keep them in the user's folder, so that `--on here` plans for this machine."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from meshwise.calibrate import probe_rows
from meshwise.calibrate.train import probe
from meshwise.calibrate.train.probe import Machine, Row
from meshwise.catalogue import files, records
from meshwise.catalogue.calibrations import COEFFICIENTS
from meshwise.catalogue.chips import PROBED_CHIP
from meshwise.errors import UserError
from meshwise.run.callbacks import Progress, ignore
from meshwise.run.probe import measure, power
from meshwise.run.probe.ask import ProbeAsk

FOLDER = "probes"  # sub-folder of the user's folder that keeps the rows


@dataclass(frozen=True)
class Probed:
    """A measured machine: rows and the fitted chip, by the chip's name ('here', 'here-1of2')."""

    rows_by_chip: dict[str, list[Row]]
    machines: dict[str, Machine]
    folder: Path  # the user's folder, which holds chips/here.toml, calibration/probe.toml and probes/here.jsonl

    def to_json(self) -> dict[str, list[Row]]:
        return self.rows_by_chip

    def rows(self) -> list[Row]:
        return [row for rows in self.rows_by_chip.values() for row in rows]

    def save(self, path: str | Path) -> None:
        """Write the rows as JSON lines."""
        files.write(Path(path), jsonl(self.rows()))


def probe_machine(ask: ProbeAsk, *, progress: Progress = ignore) -> Probed:
    """Measure this machine, or read rows that were measured elsewhere, and install the result. `show` only reads the last probe."""
    if ask.show:
        rows = stored()
        machines = {key: probe.machine(chip_rows, key) for key, chip_rows in rows.items()}
    else:
        rows = {PROBED_CHIP: read_probe(Path(ask.read))} if ask.read else measure.measure_all(ask, progress)
        machines = {key: install(chip_rows, key) for key, chip_rows in rows.items()}
    return Probed(rows, machines, files.user_folder())


def install(rows: list[Row], key: str) -> Machine:
    """Fit the rows, and write the chip, its calibration and the rows to the user's folder."""
    home = files.user_folder()
    made = (f"chips/{PROBED_CHIP}*.toml", "calibration/probe*.toml", f"power/{PROBED_CHIP}*.toml")
    for old in (path for pattern in made for path in home.glob(pattern)) if key == PROBED_CHIP else ():
        old.unlink(missing_ok=True)  # may be from another version or another machine
    machine = probe.machine(rows, key)
    drawn = power.shares(rows, machine.chip)
    machine = replace(machine, chip=drawn[0]) if drawn else machine
    files.write_own(FOLDER, f"{key}.jsonl", jsonl(rows))
    head = write_machine(machine, key, calibration_key(key), f"meshwise probe' on {rows[0]['date']}")
    if drawn:
        files.write_own("power", f"{key}.toml", records.toml(drawn[1], head))
    return machine


def write_machine(machine: Machine, key: str, calibration: str, by: str) -> str:
    """Write chip and calibration to the user's folder; return the comment at their head."""
    head = f"# Written by '{by}."
    files.write_own("chips", f"{key}.toml", records.toml(machine.chip, head))
    files.write_own("calibration", f"{calibration}.toml", records.toml(machine.calibration, head, COEFFICIENTS[0]))
    return head


def jsonl(rows: list[Row]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def calibration_key(key: str) -> str:
    """Return the calibration's name: 'probe' for the chip 'here', so that `--on 1xh200 --calibration probe` reads well."""
    return "probe" + key.removeprefix(PROBED_CHIP)


def stored() -> dict[str, list[Row]]:
    """Return the rows of the last probe by chip."""
    paths = files.files(FOLDER, ".jsonl")
    if not paths:
        raise UserError("this machine has not been measured yet: run 'meshwise probe'")
    return {key: read_probe(path) for key, path in paths.items()}


def read_probe(path: Path) -> list[Row]:
    """Read the rows of a probe, all of whose keys are there and in range."""
    rows = probe.read(path)
    probe_rows.check(rows, path.name)
    return rows
