"""The result of `calibrate`, and `validate`, for training runs and served models alike: which of the two a table is of, is found here."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from meshwise.calibrate.tables import find_table
from meshwise.catalogue import chips as chip_catalogue
from meshwise.catalogue import engines, files, frameworks
from meshwise.errors import DoesNotFit, UserError

if TYPE_CHECKING:
    from meshwise.calibrate.serve.validate import ServeValidation
    from meshwise.calibrate.train.validate import Validation

LeaveOut = Literal["row", "group"]


class Result:
    """A calibration that was fitted, with its errors before and after."""

    folder: ClassVar[str]
    """The catalogue that it is installed into."""

    @property
    def name(self) -> str:
        """The name that it is installed under."""
        raise NotImplementedError

    @property
    def text(self) -> str:
        """Its TOML file, with its errors in front."""
        raise NotImplementedError

    @property
    def worse(self) -> str:
        """By how much rows left out are predicted worse than before; '' where they are not."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}{'; ' + self.worse if self.worse else ''}>"

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """Write the .toml file. DoesNotFit where it predicts rows left out worse than before, unless forced."""
        path = Path(path)
        if path.suffix != ".toml":
            raise UserError(f"--out {path}: a calibration is a .toml file")
        if self.worse and not force:
            raise DoesNotFit(f"not written: {self.worse}; more rows may help, or --force writes it all the same")
        files.write(path, self.text)
        return path

    def install(self, *, force: bool = False) -> Path:
        """Write it into the user's own folder, where plan, run and validate find it."""
        folder = files.user_folder() / self.folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the folder {folder}: {error.strerror}; MESHWISE_HOME names another") from None
        return self.save(folder / f"{self.name}.toml", force=force)


def is_served(table: str) -> bool:
    """Whether a table is of served models; else it is of training runs."""
    from meshwise.calibrate.serve.cases import serves

    return serves(find_table(table))


def validate(table: str, calibration: str, fit: bool, leave_out: LeaveOut | None) -> "Validation | ServeValidation":
    """Score a table of training runs or of served models."""
    left = leave_out or ("row" if fit else None)
    if left and calibration:
        raise UserError("--fit makes its own calibration; drop --calibration, or --fit and --leave-out")
    if is_served(table):
        from meshwise.calibrate.serve.validate import validate_serve

        return validate_serve(table, calibration, left)
    from meshwise.calibrate.train.validate import validate

    return validate(table, calibration, left)


def calibrate(
    tables: Sequence[str],
    chips: Sequence[str],
    programs: Sequence[str],
    architectures: Sequence[str],
    leave_out: LeaveOut | None,
) -> Result:
    """Fit to tables of training runs (and a probe), or of served models."""
    keys = [chip_catalogue.find_chip(name).key for name in chips]
    probes = files.files("probes", ".jsonl")
    kinds = {is_served(name) for name in tables if name not in probes}
    if len(kinds) > 1:
        raise UserError("some tables are of training runs and some of served models; calibrate them separately")
    date = datetime.now(UTC).date().isoformat()
    if True in kinds:
        from meshwise.calibrate.serve.validate import calibrated_serve

        builds = [engines.find_runtime(name).key for name in programs]
        return calibrated_serve(tables, chips=keys, engines=builds, architectures=architectures, date=date)
    from meshwise.calibrate.train.make import calibrated

    known = [frameworks.find_framework(name).key for name in programs]
    return calibrated(tables, chips=keys, frameworks=known, architectures=architectures, date=date, leave_out=leave_out)
