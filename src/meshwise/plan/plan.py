"""Plan: a question, the layouts that answer it best first, and where the numbers come from. The base of TrainPlan and ServePlan."""

import hashlib
import importlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from meshwise.catalogue import files, records
from meshwise.errors import UserError
from meshwise.models.count import flat
from meshwise.plan.fields import Ask

if TYPE_CHECKING:
    from meshwise.plan.vary import Points


class Choice(Protocol):
    """One layout with its predicted cost."""

    @property
    def name(self) -> str: ...


Asked = TypeVar("Asked", bound=Ask)
Chosen = TypeVar("Chosen", bound=Choice)


class Plan(ABC, Generic[Asked, Chosen]):
    """The answer to a question: `choices` are layouts with their predicted cost, the best first."""

    format: ClassVar[int]
    """Number of the file format: a plan.json with another one is refused."""
    kind: ClassVar[str] = ""
    """In plan.json, which kind of plan it is; '' for training."""
    ask: Asked
    choices: tuple[Chosen, ...]

    @property
    def best(self) -> Chosen:
        return self.choices[0]

    @property
    def command(self) -> str:
        """The command line that makes this plan again."""
        return self.ask.command()

    @abstractmethod
    def vary(self, **axes: str) -> "Points[Any, Any]":
        """Ask the same question at many points: vary(nodes="8..512"), vary(chip="h100-sxm,h200", batch="1M..4M")."""

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat dict per layout, with the columns of `--csv`."""
        return [flat(self.row(choice)) for choice in self.choices]

    def row(self, choice: Chosen) -> dict[str, Any]:
        """Return one layout as a row of `--csv`, before it is made flat."""
        return records.plain(choice)

    def to_frame(self) -> Any:
        """Return the rows as a data frame of polars or pandas, whichever is installed."""
        return frame(self.rows())

    def to_json(self) -> dict[str, Any]:
        kind = {"kind": self.kind} if self.kind else {}
        return {"format": self.format, **kind, **records.plain(self)}

    def save(self, path: str | Path) -> Path:
        """Write the plan as JSON, which `meshwise.load`, `explain` and `run` read."""
        files.write(Path(path), json.dumps(self.to_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n")
        return Path(path)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.best.name!r}, {len(self.choices)} layouts: {self.command}>"

    def _repr_html_(self) -> str:
        """Table and bars, where a notebook shows the plan."""
        # by name, because views are above plans: only a notebook asks a plan for its picture
        return importlib.import_module("meshwise.ui.views.notebook").plan_html(self)


def frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return rows as a polars or pandas data frame."""
    for name in ("polars", "pandas"):
        if find_spec(name) is not None:
            return importlib.import_module(name).DataFrame([dict(row) for row in rows])
    raise UserError("to_frame() needs polars or pandas: pip install polars; rows() needs neither")


Made = TypeVar("Made", bound=Plan[Any, Any])


def read(cls: type[Made], path: Path, check: Callable[[Made], Iterable[str]]) -> Made:
    """Read a plan.json that `save` wrote; one of another format or kind, or a damaged one, is refused with the reason."""
    table = records.plan_table(path, cls.format, cls.kind)
    try:
        found = records.restore(cls, {key: value for key, value in table.items() if key not in ("format", "kind")})
        for fault in check(found):
            raise ValueError(fault)
        return found
    except (KeyError, TypeError, ValueError, UserError) as error:
        raise UserError(f"{path}: a damaged plan ({error}); make it again") from None


def versions(**data: object) -> dict[str, str]:
    """Return the version of meshwise, and a digest of each piece of data: another chip file or calibration makes another plan."""
    digests = {name: hashlib.sha256(repr(part).encode()).hexdigest()[:12] for name, part in data.items()}
    return {"meshwise": version("meshwise")} | digests
