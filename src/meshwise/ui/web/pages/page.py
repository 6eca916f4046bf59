"""Pages and answers: a Page has a name, a form and an answer to a query; a Reply has values of a template, JSON, and rows of CSV."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from meshwise.catalogue.files import BUILT_IN
from meshwise.plan.serve.plan import ServePlan
from meshwise.plan.train.plan import TrainPlan
from meshwise.ui.web.answers import Kept
from meshwise.ui.web.asking import Group, Pairs
from meshwise.ui.web.named import Named


@dataclass(frozen=True)
class Site:
    """State shared by all pages: the files named on the command line, and the answers given so far."""

    named: Named = field(default_factory=Named)
    kept: Kept = field(default_factory=Kept)


@dataclass(frozen=True)
class Example:
    """A question to start from, as a query of a page."""

    title: str
    about: str
    query: str


@cache
def _examples() -> dict[str, list[dict[str, str]]]:
    return tomllib.loads((BUILT_IN / "page_examples.toml").read_text(encoding="utf-8"))


def examples_of(page: str) -> tuple[Example, ...]:
    """Return the questions to start from on a page."""
    return tuple(Example(**example) for example in _examples()[page])


@dataclass(frozen=True)
class Reply:
    """An answer: values for the page's template, and the same as JSON and as rows."""

    values: Mapping[str, Any]
    data: Any = None
    rows: Sequence[Mapping[str, Any]] = ()
    title: str = ""


@dataclass(frozen=True)
class Upload:
    """The files that a page takes: what the form says about them, how many there are, and what reads them."""

    title: str
    about: str
    button: str
    read: Callable[[Site, list[Path], Pairs], Reply]
    files: int = 1
    pasted: bool = False  # whether the text may be pasted instead


@dataclass(frozen=True)
class Page:
    """One page. `answer` returns None while the query lacks what `missing` names; then the page shows `examples`."""

    name: str
    title: str
    about: str
    template: str
    answer: Callable[[Site, Pairs], Reply | None]
    form: Callable[[Pairs], list[Group]] = lambda query: []
    missing: Callable[[Pairs], list[str]] = lambda query: []
    examples: tuple[Example, ...] = ()
    planned: "Callable[[Site, Pairs], TrainPlan | ServePlan] | None" = None
    """Returns the plan behind the answer, which can be saved as plan.json and as a report."""
    upload: "Upload | None" = None  # what it reads from files, where it takes some
    live: bool = False  # whether its answers change while the program runs, so that none is kept

    @property
    def reported(self) -> bool:
        return self.planned is not None


@dataclass(frozen=True)
class Tile:
    """One figure above the table: its name, value, and a remark."""

    name: str
    value: str
    remark: str = ""


@dataclass(frozen=True)
class Badge:
    """A few words about how far to trust an answer. `kind`: good, warn or note."""

    kind: str
    text: str
    help: str = ""


@dataclass(frozen=True)
class Launch:
    """Commands, or a file, that start something; copied with one click."""

    title: str
    text: str
    about: str = ""
    file: str = ""  # the name to save it under; '' for commands


@dataclass(frozen=True)
class Dropped:
    """A rule, and how many layouts it dropped; or a layout that misses something."""

    name: str
    value: str
    share: float  # percent of the largest, for its bar


def missing_fields(required: Mapping[str, str]) -> Callable[[Pairs], list[str]]:
    """Return a function that lists, in words, the required fields that a query lacks."""

    def missing(query: Pairs) -> list[str]:
        given = {name for name, value in query if value.strip()}
        return [words for name, words in required.items() if name not in given]

    return missing


def calibrated(about: Mapping[str, str], chip: object) -> Badge:
    """Return whether the numbers rest on measurements of this chip."""
    source = f"'{about['name']}', fitted on {about['fitted_on']}" + (f", {about['date']}" if about["date"] else "")
    if about["own_chip"]:
        return Badge("good", "calibrated", f"The cost model was fitted to measurements of this chip: {source}.")
    return Badge("warn", f"not calibrated for {chip}", f"No measurements of this chip: using {source}. Expect larger errors.")


def dropped(counts: Mapping[str, float], show: Callable[[float], str]) -> list[Dropped]:
    """Return what each rule dropped, most first."""
    most = max(counts.values(), default=0.0) or 1.0
    rows = sorted(counts.items(), key=lambda pair: -pair[1])
    return [Dropped(name, show(value), round(100 * value / most, 2)) for name, value in rows]
