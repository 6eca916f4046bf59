"""Answer a ShapeAsk: the fastest shapes of a model with their layouts, or the named shapes, with the cost of their faults."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meshwise.catalogue.records import frame
from meshwise.cost.train.question import Question
from meshwise.errors import DoesNotFit, UserError
from meshwise.models.count import flat
from meshwise.output import Drawn
from meshwise.plan.ask import ShapeAsk
from meshwise.plan.shapes import stack as shaping
from meshwise.plan.shapes.search import Fastest, Row, fastest, rule
from meshwise.plan.train import lookup
from meshwise.plan.train.choice import no_layout
from meshwise.plan.train.search import check_divides
from meshwise.units import GIB

DEFAULT_KIND_MODEL = "bloom-176b"  # model whose kind of layers is assumed
MIN_RULE_SHAPES = 20  # the rule in words is derived from at least this many of the fastest shapes


@dataclass(frozen=True, kw_only=True, repr=False)
class Shapes(Drawn):
    """Shapes of a model with their best layouts, the fastest per parameter first."""

    ask: ShapeAsk
    shapes: tuple[Row, ...]
    candidates: int  # shapes x layouts that were searched
    searched: int  # shapes that were searched
    rejected: dict[str, int]
    framework: str
    rule: str  # properties that the fastest shapes share; '' where shapes were named

    @property
    def best(self) -> Row:
        return self.shapes[0]

    @property
    def command(self) -> str:
        return self.ask.command()

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat dict per shape, with the columns of `--csv`."""
        return [flat(row.to_json() | {"faults": "; ".join(map(str, row.faults))}) for row in self.shapes]

    def to_frame(self) -> Any:
        """Return the rows as a data frame of polars or pandas, whichever is installed."""
        return frame(self.rows())

    def to_json(self) -> dict[str, Any]:
        rows = [row.to_json() for row in self.shapes]
        return {"candidates": self.candidates, "shapes": self.searched, "rejected": self.rejected, "rows": rows}

    def __repr__(self) -> str:
        return f"<Shapes {self.best.name!r}, {len(self.shapes)} shapes: {self.command}>"


def answer(ask: ShapeAsk) -> Shapes:
    """Search shapes and layouts together. DoesNotFit where no shape fits."""
    _check(ask)
    question, bounds = lookup.question(replace(ask, model=ask.like or DEFAULT_KIND_MODEL)), ask.bounds
    base = shaping.base_of(question.model, ask.vocab)
    named = shaping.parse(base, ask.shape) if ask.shape else None
    stack = shaping.Stack(base, named or shaping.near(base, ask.params))
    question = replace(question, model=base)
    check_divides(question, bounds)
    _check_weights(question, ask.params)
    found = fastest(question, stack, bounds, len(named) if named else max(ask.top, MIN_RULE_SHAPES))
    order = found.order()
    if not len(order):
        raise DoesNotFit(_no_fit(question, found, len(stack.shapes)))
    shown = np.arange(len(named)) if named else order[: ask.top]
    return Shapes(
        ask=ask, shapes=tuple(Row.of(question, stack, found, int(i), bounds) for i in shown), candidates=found.candidates,
        searched=len(stack.shapes), rejected=found.rejected, framework=question.work.framework.name,
        rule=rule(found, order[: max(ask.top, MIN_RULE_SHAPES)]) if named is None else "",
    )  # fmt: skip


def _check(ask: ShapeAsk) -> None:
    """Raise UserError for options that contradict each other."""
    if ask.model:
        raise UserError(
            "a MODEL has its own shape: drop it with --params and --shape, or name it with --like for its kind of layers"
        )
    if ask.params and ask.shape:
        raise UserError("--params searches shapes and --shape names them: give only one")
    if not ask.params and not ask.shape:
        raise UserError(f"{'--vocab' if ask.vocab else '--like'} needs --params or --shape; a model that is named has its own")
    if ask.within or ask.at_most:
        raise UserError("--params and --shape plan on one cluster: drop --within and --at-most")


def _check_weights(q: Question, params: float) -> None:
    """Refuse a size whose weights alone exceed the cluster's memory, unless the framework can keep them in host memory."""
    need, have = params * q.work.framework.weight_bytes, q.cluster.devices * q.chip.memory
    shards = q.cluster.devices > 1  # only weights that are sharded can be kept there
    if need > have and not (shards and "parameters" in q.work.framework.offload):
        raise DoesNotFit(
            f"no shape fits on {q.cluster.name}: the weights alone take {need / GIB:,.0f} GiB, but its devices "
            f"({q.cluster.devices:,}) have {have / GIB:,.0f}"
        )


def _no_fit(q: Question, found: Fastest, shapes: int) -> str:
    """Return the message where no shape fits."""
    why = f"{found.candidates:,} layouts" if found.candidates else no_layout(q, found.rejected)
    return f"no shape fits on {q.cluster.name}: {shapes:,} {'shape' if shapes == 1 else 'shapes'} tried, {why}"
