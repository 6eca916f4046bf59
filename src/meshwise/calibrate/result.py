"""Validation and Result: the answers of `validate` and `calibrate`, with the parts that training and serving share."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from meshwise.calibrate.score import LeaveOut, Score
from meshwise.catalogue import files, records
from meshwise.catalogue.calibrations import Record, coefficients
from meshwise.catalogue.records import frame
from meshwise.errors import DoesNotFit, UserError
from meshwise.output import Drawn
from meshwise.runs.table import Skipped

WORSE_ERROR_FACTOR = 1.005  # errors of rows left out may grow by this factor before a calibration counts as worse


@dataclass(frozen=True, kw_only=True, repr=False)
class Validation(Drawn, ABC):
    """The predictions for one table of measurements, and their scores."""

    part: ClassVar[str]  # the part of the score that `repr` shows

    table: str
    skipped: list[Skipped]
    score: Score

    def __repr__(self) -> str:
        error = self.score[self.part]["mape"]
        stated = "" if error is None else f": {self.part} error {error:.1%}"
        return f"<{type(self).__name__} of {self.table}, {self.score['rows']} rows{stated}>"

    @abstractmethod
    def rows(self) -> list[dict[str, object]]:
        """Return one row per case, as --csv prints them."""

    def to_frame(self) -> Any:
        """Return the rows as a data frame of polars or pandas, whichever is installed."""
        return frame(self.rows())


def fitted_to_the_rest(leave_out: LeaveOut) -> Score:
    """Return the entries of a score that say which calibration was used, where each row was predicted by a fit without it."""
    return {"calibration": f"fitted to this table, leaving out one {leave_out} at a time", "left_out": leave_out}


@dataclass(frozen=True, kw_only=True, repr=False)
class Result(ABC):
    """A fitted calibration, with its scores and those of the calibration that it would replace."""

    folder: ClassVar[str]  # the folder of the catalogue that it is installed into
    errors: ClassVar[tuple[tuple[str, str], ...]]
    """The mean errors that decide whether it is worse: part of a score, and key in that part."""

    in_sample: Score  # on the rows it was fitted to
    left_out: Score  # on rows left out of the fit
    before: Score  # on these rows with the calibration that would be used without this fit
    before_name: str

    @property
    @abstractmethod
    def record(self) -> Record:
        """The calibration as the catalogue stores it."""

    @property
    @abstractmethod
    def programs(self) -> tuple[str, ...]:
        """Frameworks or engines that it is for."""

    @property
    def note(self) -> str:
        """A further comment line of its file."""
        return ""

    def to_json(self) -> dict[str, Any]:
        """Return the scores, under the keys of `calibrate --json`."""
        return {"before": self.before, "left_out": self.left_out, "in_sample": self.in_sample}

    @property
    def name(self) -> str:
        """The name that it is installed under."""
        return "-".join((*self.record.chips[:1], *self.programs[:1]))

    @property
    def text(self) -> str:
        """Its TOML file, with its errors in a comment; `catalogue.calibrations` reads it back."""
        scores = f"{self._errors('Left out', self.left_out)} {self._errors('In sample', self.in_sample)}"
        first = next(iter(coefficients(type(self.record))))
        return records.toml(self.record, f"# Written by 'meshwise calibrate'. {scores}{self.note}", first)

    def _errors(self, where: str, score: Score) -> str:
        stated = [f"{part} {100 * score[part][key]:.1f}%" for part, key in self.errors if score[part][key] is not None]
        return f"{where}: {', '.join(stated)} mean error."

    @property
    def worse(self) -> str:
        """How much worse rows left out are predicted than before, in words; '' where they are not."""
        for part, key in self.errors:
            now, then = self.left_out[part][key], self.before[part][key]
            if now is not None and then is not None and now > then * WORSE_ERROR_FACTOR:
                return (
                    f"the mean error of {part} is {100 * now:.1f}% on rows left out of the fit, "
                    f"and {100 * then:.1f}% with {self.before_name}"
                )
        return ""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}{'; ' + self.worse if self.worse else ''}>"

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """Write the .toml file. DoesNotFit where it predicts rows left out worse than before, unless forced."""
        path = Path(path)
        if path.suffix != ".toml":
            raise UserError(f"--out {path}: a calibration is a .toml file")
        if self.worse and not force:
            raise DoesNotFit(f"not written: {self.worse}; more rows may help, or --force writes it anyway")
        files.write(path, self.text)
        return path

    @property
    def target(self) -> Path:
        """The file that it is installed as."""
        return files.user_folder() / self.folder / f"{self.name}.toml"

    @property
    def replaces(self) -> str:
        """The other calibration that is installed in its place, in words; '' where there is none."""
        if not self.target.is_file() or files.text_of(self.target) == self.text:
            return ""
        held = self._installed()
        return (
            f"{self.target.name}, fitted to {held.rows:.0f} rows of {held.fitted_on} on {held.date}" if held else self.target.name
        )

    def _installed(self) -> Record | None:
        """Return the calibration that is installed in its place; None where there is none that can be read."""
        try:
            return (
                records.read(type(self.record), files.table_of(self.target), self.target.name) if self.target.is_file() else None
            )
        except UserError:
            return None

    def install(self, *, force: bool = False) -> Path:
        """Write it into the user's folder, where plan, run and validate find it. Another one in its place is kept as NAME.toml.old;
        DoesNotFit where that is fitted to more rows, unless forced."""
        try:
            self.target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            folder = self.target.parent
            raise UserError(f"cannot create the folder {folder}: {error.strerror}; set MESHWISE_HOME to another one") from None
        held = self._installed()
        if held and held.rows > self.record.rows and not force:
            raise DoesNotFit(
                f"not installed: it is fitted to {self.record.rows:.0f} rows, and would replace {self.replaces}; "
                "give those tables too, or --force replaces it"
            )
        old = files.text_of(self.target) if self.replaces else ""
        path = self.save(self.target, force=force)
        if old:
            files.write(path.with_name(f"{path.name}.old"), old)
        return path
