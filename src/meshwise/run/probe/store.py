"""Fit the rows of a probe and keep them in the user's folder, so that `--on here` plans for this machine."""

import json
from dataclasses import dataclass
from pathlib import Path

from meshwise.calibrate import probe_rows
from meshwise.calibrate.train import probe
from meshwise.calibrate.train.probe import Machine, Row
from meshwise.catalogue import files, records
from meshwise.catalogue.calibrations import COEFFICIENTS
from meshwise.catalogue.chips import PROBED_CHIP
from meshwise.errors import UserError
from meshwise.run.callbacks import Progress, ignore
from meshwise.run.probe import measure
from meshwise.run.probe.ask import ProbeAsk

FOLDER = "probes"
"""Sub-folder of the user's folder that keeps the rows."""


@dataclass(frozen=True)
class Probed:
    """A measured machine: rows and the fitted chip, by the chip's name ('here', 'here-1of2')."""

    rows_by_chip: dict[str, list[Row]]
    machines: dict[str, Machine]
    folder: Path
    """The user's folder, which holds chips/here.toml, calibration/probe.toml and probes/here.jsonl."""

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
    for old in (*home.glob(f"chips/{PROBED_CHIP}*.toml"), *home.glob("calibration/probe*.toml")) if key == PROBED_CHIP else ():
        old.unlink(missing_ok=True)  # may be from another version or another machine
    machine = probe.machine(rows, key)
    for kind in ("chips", "calibration", FOLDER):
        try:
            (home / kind).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot create the folder {home / kind}: {error.strerror}; MESHWISE_HOME names another") from None
    head = f"# Written by 'meshwise probe' on {rows[0]['date']}."
    files.write(home / FOLDER / f"{key}.jsonl", jsonl(rows))
    files.write(home / "chips" / f"{key}.toml", records.toml(machine.chip, head))
    files.write(home / "calibration" / f"{calibration_key(key)}.toml", records.toml(machine.calibration, head, COEFFICIENTS[0]))
    return machine


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
