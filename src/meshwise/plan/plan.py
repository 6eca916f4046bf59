"""Plan: a question, its best layouts, and the data they were computed from. The base class of TrainPlan and ServePlan."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from meshwise.catalogue import files, records
from meshwise.errors import UserError
from meshwise.models.count import flat
from meshwise.output import Drawn
from meshwise.plan.fields import Ask
from meshwise.plan.vary import Points
from meshwise.version import VERSION


class Choice(Protocol):
    """One layout with its predicted cost."""

    @property
    def name(self) -> str: ...


Asked = TypeVar("Asked", bound=Ask)
Chosen = TypeVar("Chosen", bound=Choice)


class Plan(Drawn, ABC, Generic[Asked, Chosen]):
    """The answer to a question: `choices` are layouts with their predicted cost, the best first."""

    format: ClassVar[int]  # number of the file format: a plan.json with another one is refused
    kind: ClassVar[str] = ""  # the kind of plan, as stored in plan.json; '' for training
    stated: ClassVar[dict[str, tuple[str, ...]]] = {}  # keys that tables of a plan.json must have, by field
    ask: Asked
    choices: tuple[Chosen, ...]

    @property
    def best(self) -> Chosen:
        return self.choices[0]

    @property
    def command(self) -> str:
        """The command that reproduces this plan."""
        return self.ask.command()

    @abstractmethod
    def vary(self, **axes: str) -> Points[Any, Any]:
        """Answer the question at many points: vary(nodes="8..512"), vary(chip="h100-sxm,h200", batch="1M..4M")."""

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat dict per layout, with the columns of `--csv`."""
        return [{"name": choice.name} | flat(self.row(choice)) for choice in self.choices]

    def row(self, choice: Chosen) -> dict[str, Any]:
        """Return one layout as a nested dict, which `rows` flattens."""
        return records.plain(choice)

    def to_frame(self) -> Any:
        """Return the rows as a data frame of polars or pandas, whichever is installed."""
        return records.frame(self.rows())

    def to_json(self) -> dict[str, Any]:
        kind = {"kind": self.kind} if self.kind else {}
        return {"format": self.format, **kind, **records.printable(records.plain(self))}

    def save(self, path: str | Path) -> Path:
        """Write the plan as JSON, which `meshwise.load`, `explain` and `run` read."""
        files.write(Path(path), json.dumps(self.to_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n")
        return Path(path)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.best.name!r}, {len(self.choices)} layouts: {self.command}>"


PlanType = TypeVar("PlanType", bound=Plan[Any, Any])


def read(cls: type[PlanType], path: Path, check: Callable[[PlanType], Iterable[str]]) -> PlanType:
    """Read a plan.json that `save` wrote. UserError for another format, another kind, or a fault that `check` yields."""
    table = records.plan_table(path, cls.format, cls.kind)
    try:
        plan = records.restore(cls, {key: value for key, value in table.items() if key not in ("format", "kind")})
        for name, keys in cls.stated.items():
            if missing := sorted(set(keys) - getattr(plan, name).keys()):
                raise ValueError(f"{name} has no {missing[0]}")
        for fault in check(plan):
            raise ValueError(fault)
        return plan
    except (KeyError, TypeError, ValueError, OverflowError, UserError) as error:
        raise UserError(f"{path}: a damaged plan ({error}); make it again") from None


def versions(**data: object) -> dict[str, str]:
    """Return the version of meshwise and a digest of each piece of data, which shows whether a chip file or calibration has changed."""
    digests = {name: hashlib.sha256(repr(part).encode()).hexdigest()[:12] for name, part in data.items()}
    return {"meshwise": VERSION} | digests


def provenance(stated: Mapping[str, str], here: Mapping[str, str]) -> str:
    """Return one sentence that says with what a plan was made, where that is not what this machine has: by digest, since a file of the same
    name may hold something else; '' where all is the same."""
    if not stated:
        return "This plan does not say with which data it was made."
    version = f"meshwise {stated.get('meshwise', '')[:40]}" if stated.get("meshwise") != here["meshwise"] else ""
    other = [name for name, digest in here.items() if name != "meshwise" and stated.get(name) != digest]
    described = [f"another {name} ({stated.get(name, 'not stated')[:12]}, here {here[name]})" for name in other]
    if not version and not described:
        return ""
    made = " ".join(filter(None, [f"by {version}" if version else "", f"with {', '.join(described)}" if described else ""]))
    return f"This plan was made {made}: its figures are those of its file; plan it again for those of this machine."
