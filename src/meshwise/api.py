"""The library: one function per verb. The command line, notebooks and the web page call these and nothing below them.

Arguments are the words of the command line: `plan("bloom-176b", on="jean-zay:48", batch="2048x2048")`. Results are frozen objects with
`rows()`, `to_frame()`, `to_json()` and, in a notebook, a picture of themselves. Errors that a user can fix are `UserError`.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from meshwise.errors import UserError, nearest, quoted
from meshwise.plan.ask import ServeAsk, ShapeAsk, TrainAsk
from meshwise.plan.fields import Ask, parameters

if TYPE_CHECKING:
    from meshwise.audit.profile.parts import PartComparison
    from meshwise.audit.report import Audit
    from meshwise.calibrate.result import Result
    from meshwise.calibrate.serve.validate import ServeValidation
    from meshwise.calibrate.train.validate import TrainValidation
    from meshwise.models.count import Count
    from meshwise.models.listing import Entry
    from meshwise.plan.cheapest import Cheapest
    from meshwise.plan.serve.plan import ServePlan
    from meshwise.plan.serve.vary import ServePoints
    from meshwise.plan.shapes.answer import Shapes
    from meshwise.plan.train.explain import Explanation
    from meshwise.plan.train.plan import TrainPlan
    from meshwise.plan.train.vary import TrainPoints

P = ParamSpec("P")
Asked = TypeVar("Asked", bound=Ask)
Answer = TypeVar("Answer")
LeaveOut = Literal["row", "group"]
CATALOGUES = ("chips", "clusters", "models")


def answers(ask: Callable[P, Asked]) -> Callable[[Callable[[Asked], Answer]], Callable[P, Answer]]:
    """Give a function of a question the question's own keywords, with their types, and list them in its docstring."""

    def decorate(function: Callable[[Asked], Answer]) -> Callable[P, Answer]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> Answer:
            return function(ask(*args, **kwargs))

        call.__signature__ = inspect.signature(ask).replace(return_annotation=inspect.Signature.empty)  # pyright: ignore[reportAttributeAccessIssue]
        call.__doc__ = "\n\n    ".join([function.__doc__ or "", "\n    ".join(parameters(ask))])  # pyright: ignore[reportArgumentType]
        return call

    return decorate


# Plan.


@answers(TrainAsk)
def plan(ask: TrainAsk) -> "TrainPlan":
    """Find the fastest layouts to train a model on a cluster. DoesNotFit where none fits."""
    from meshwise.plan.train.plan import make

    return make(ask)


@answers(ServeAsk)
def serve(ask: ServeAsk) -> "ServePlan":
    """Find the best ways to serve a model on some devices, and the commands that start the best one. DoesNotFit where none fits."""
    from meshwise.export.engines import commands
    from meshwise.plan.serve.plan import make

    return make(ask, commands)


@answers(ShapeAsk)
def shapes(ask: ShapeAsk) -> "Shapes":
    """Find the fastest shapes of a model near a number of parameters, each with its best layout."""
    from meshwise.plan.shapes.answer import answer

    return answer(ask)


def vary(ask: TrainAsk, *axes: str) -> "TrainPoints":
    """Answer a training question at many points: vary(ask, "nodes=8..512"). `TrainPlan.vary(nodes="8..512")` is shorter."""
    from meshwise.plan.train.vary import answer

    return answer(ask, axes)


def vary_serve(ask: ServeAsk, *axes: str) -> "ServePoints":
    """Answer a serving question at many points: vary_serve(ask, "gpus=4..6")."""
    from meshwise.plan.serve.vary import answer

    return answer(ask, axes)


def cheapest(ask: TrainAsk, *axes: str) -> "Cheapest":
    """Find the cheapest chip and number of nodes that train on `ask.tokens` within `ask.within`. `axes` narrow what is tried."""
    from meshwise.plan.cheapest import answer

    return answer(ask, axes)


def load(path: str | Path) -> "TrainPlan | ServePlan":
    """Open a plan.json that `save`, `plan --out` or `serve --out` wrote."""
    from meshwise.catalogue import records
    from meshwise.plan.serve import plan as serving
    from meshwise.plan.train import plan as training

    kind = records.any_table(Path(path)).get("kind", "")
    return serving.read(Path(path)) if kind == serving.ServePlan.kind else training.read(Path(path))


def explain(plan: "TrainPlan", versus: str = "") -> "Explanation":
    """Why the best layout of a training plan won, against the runner-up or a layout of your own: `plan.explain(versus)`."""
    return plan.explain(versus)


def write(path: str | Path, content: str | bytes) -> None:
    """Write a file whole or not at all."""
    from meshwise.catalogue import files

    files.write(Path(path), content)


# Count and look up.


def count(
    model: str, *, seq: str | int = "", tokens: str | float = "15T", on: str = "", batch: str = "", mfu: str | float = "40%",
    checkpoints: int = 1,
) -> "Count":  # fmt: skip
    """Count the parameters, FLOPs, caches and bytes of a model. With `on` and `batch`: what training it on a cluster takes."""
    from meshwise.models.count import counted
    from meshwise.plan import budget

    found = counted(model, seq, tokens)
    return budget.added(found, on, batch, mfu, checkpoints) if on else found


def names(catalogue: str) -> list[str]:
    """Every name in a catalogue: models, chips, clusters, frameworks or engines."""
    from meshwise.catalogue import files

    known = {"models": ".json", "chips": ".toml", "clusters": ".toml", "frameworks": ".toml", "engines": ".toml"}
    if catalogue not in known:
        raise UserError(f"there is no catalogue {quoted(catalogue)}{nearest(catalogue, known)} ({', '.join(known)})")
    return list(files.files(catalogue, known[catalogue]))


def show(catalogue: str, name: str = "") -> list[dict[str, Any]]:
    """The facts of every entry of a catalogue, of those whose name has the words of `name`, or of the one called `name`."""
    from meshwise.models import listing

    if catalogue not in CATALOGUES:
        raise UserError(f"there is no catalogue {quoted(catalogue)}{nearest(catalogue, CATALOGUES)} ({', '.join(CATALOGUES)})")
    return listing.rows(catalogue, name)


def look_up(catalogue: str, name: str) -> "Entry | None":
    """The chip, cluster or model that `name` means; None where it only matches names in part."""
    from meshwise.models import listing

    return listing.look_up(catalogue, name)


def flat(row: dict[str, Any]) -> dict[str, object]:
    """A nested row as one line of CSV: 'parameters.total' and so on."""
    from meshwise.models import count

    return count.flat(row)


# Check and calibrate.


def audit(*files: str | Path, plan: bool = True, format: str = "", **figures: Any) -> "Audit":
    """Check reported results: logs, tables and reports, or figures such as params="124M", step="7.5s", on="8xh100-sxm"."""
    from meshwise.audit.ask import AuditAsk, answer
    from meshwise.plan.fields import given

    return answer([Path(file) for file in files], given(AuditAsk, figures), format, planned=plan)


def compare(folder: str | Path) -> "PartComparison":
    """Predicted against measured time of a run of our trainer, part by part, from its folder."""
    from meshwise.audit.profile import parts

    return parts.compare(Path(folder))


def validate(
    table: str | Path, *, calibration: str = "", fit: bool = False, leave_out: LeaveOut | None = None
) -> "TrainValidation | ServeValidation":
    """Predict every run of a table of measurements (a built-in name, .csv or .jsonl) and score the predictions. `fit`: by fits that left
    each row, or each group of rows, out."""
    from meshwise.calibrate import dispatch

    return dispatch.validate(str(table), calibration, fit, leave_out)


def calibrate(
    *tables: str | Path,
    chips: Sequence[str] = (),
    frameworks: Sequence[str] = (),
    architectures: Sequence[str] = (),
    leave_out: LeaveOut | None = None,
) -> "Result":
    """Fit the cost model's coefficients to tables of runs, a probe, or both, and score it on rows left out."""
    from meshwise.calibrate import dispatch

    return dispatch.calibrate([str(table) for table in tables], chips, frameworks, architectures, leave_out)
