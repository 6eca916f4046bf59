"""Where calibrations come from: what each was fitted to and when, the file that holds it, and a digest that tells it from another one."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from meshwise.catalogue import files, records
from meshwise.catalogue.calibrations import Calibration, Record, ServeCalibration
from meshwise.catalogue.chips import Source
from meshwise.errors import UserError, unknown

FOLDERS: dict[str, tuple[str, type[Record]]] = {
    "training": ("calibration", Calibration),
    "serving": ("serving", ServeCalibration),
}
"""Folders of the catalogue, by what their calibrations are for."""
DIGEST_CHARS = 12


@dataclass(frozen=True)
class Origin:
    """The origin of one calibration."""

    key: str
    use: str
    chips: tuple[str, ...]
    programs: tuple[str, ...]
    rows: float
    fitted_on: str
    date: str
    file: str  # its path; 'built in' for those that ship
    digest: str  # the first characters of the SHA-256 of its file, as sha256sum prints it
    sources: tuple[Source, ...] = ()


def origins() -> list[Origin]:
    """Return the origin of every calibration, the user's own and those that ship."""
    return [
        _origin(path, use, cls, key)
        for use, (folder, cls) in FOLDERS.items()
        for key, path in files.files(folder, ".toml").items()
    ]


def find_origin(name: str) -> Origin:
    """Return the origin of a calibration by its name, or of a .toml file that somebody else may have written."""
    if name.endswith(".toml"):
        return _of_file(Path(name))
    known = {origin.key: origin for origin in origins()}
    if name not in known:
        raise unknown("calibration", name, known, ", or a .toml file")
    return known[name]


def filter_origins(words: str) -> list[str]:
    """Return the calibrations whose names contain every word; a .toml file is itself."""
    if words.endswith(".toml"):
        return [words]
    known = [origin.key for origin in origins()]
    return [words] if known.count(words) == 1 else files.matching(words, known, {key: [key] for key in known})


def _of_file(path: Path) -> Origin:
    try:
        return _origin(path, "training", Calibration, path.stem)
    except UserError as training:
        try:
            return _origin(path, "serving", ServeCalibration, path.stem)
        except UserError:
            raise training from None


def _origin(path: Path, use: str, cls: type[Record], key: str) -> Origin:
    held = records.read(cls, files.table_of(path), path.name)
    programs = getattr(held, "frameworks", ()) or getattr(held, "engines", ())
    digest = hashlib.sha256(files.bytes_of(path)).hexdigest()[:DIGEST_CHARS]
    place = "built in" if path.is_relative_to(files.BUILT_IN) else str(path)
    return Origin(key, use, held.chips, tuple(programs), held.rows, held.fitted_on, held.date, place, digest, held.sources)
