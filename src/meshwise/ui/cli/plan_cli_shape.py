"""`plan --params` and `plan --shape`: the shape of the model searched together with the layout."""

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from meshwise.errors import DoesNotFit, UserError
from meshwise.units import GIB

if TYPE_CHECKING:
    from meshwise.cost.train.question import Question
    from meshwise.plan.train.choice import Ask

LIKE = "bloom-176b"
RULED = 20
"""Shapes that the rule in words is read from, at least."""


@dataclass(frozen=True)
class Wanted:
    """What the command line says of the shape."""

    params: float
    vocab: int
    shapes: tuple[str, ...]


def wanted(model: str, params: str, vocab: str, like: str, shapes: list[str] | None) -> tuple[str, Wanted | None]:
    """The model that is planned or that shapes are like, and what was said of its shape, if anything was."""
    from meshwise import units

    if not params and not shapes:
        if vocab or like:
            raise UserError(
                f"{'--vocab' if vocab else '--like'} goes with --params or --shape; a model that has a name has its own"
            )
        if not model:
            raise UserError("missing MODEL: a preset, HF id, config.json or .gguf; or --params 176B to search its shape too")
        return model, None
    if model:
        raise UserError(
            "a MODEL has its shape: leave it out with --params and --shape, or write --like MODEL for its kind of layers"
        )
    if params and shapes:
        raise UserError("--params searches shapes and --shape names them: ask for one of the two")
    number = units.parse(params, "count") if params else 0.0
    if params and not 1e6 <= number <= 1e13:
        raise UserError(f"--params {params}: expected a million to ten trillion parameters, such as 176B")
    words = int(units.parse(vocab, "count")) if vocab else 0
    if vocab and not 1 <= words <= 2**24:
        raise UserError(f"--vocab {vocab}: expected 1 to {2**24:,} entries")
    return like or LIKE, Wanted(number, words, tuple(shapes or ()))


def answer(ask: "Ask", asked: Wanted, command: str, top: int, json: bool, csv: bool) -> None:
    """The fastest shapes with their layouts, or those that were named, with what each gives away."""
    from dataclasses import replace

    import numpy as np

    from meshwise.cost.layout import parse_axes
    from meshwise.plan.shapes import stack as shaping
    from meshwise.plan.shapes.search import Row, fastest, rule
    from meshwise.plan.train.choice import no_layout
    from meshwise.plan.train.search import check_divides
    from meshwise.ui.views import tables
    from meshwise.ui.views.shapes import shapes_view

    question = ask.question()
    base = shaping.base_of(question.model, asked.vocab)
    bounds = parse_axes(",".join((*ask.fix, *ask.allow)))
    named = shaping.parse(base, asked.shapes) if asked.shapes else None
    stack = shaping.Stack(base, named or shaping.near(base, asked.params))
    question = replace(question, model=base)
    check_divides(question, bounds)
    _check_weights(question, asked.params)
    found = fastest(question, stack, bounds, len(named) if named else max(top, RULED))
    order = found.order()
    if not len(order):
        tried = f"{len(stack.shapes):,} {'shape' if len(stack.shapes) == 1 else 'shapes'} tried"
        why = f"{found.candidates:,} layouts" if found.candidates else no_layout(question, found.rejected)
        raise DoesNotFit(f"no shape fits on {question.cluster.name}: {tried}, {why}")
    shown = np.arange(len(named)) if named else order[:top]
    rows = [Row.of(question, stack, found, int(i), bounds) for i in shown]
    if json or csv:
        plain = [row.to_json() | ({"faults": "; ".join(map(str, row.faults))} if csv else {}) for row in rows]
        about = {"candidates": found.candidates, "shapes": len(stack.shapes), "rejected": found.rejected, "rows": plain}
        typer.echo(tables.as_json(about) if json else tables.as_csv(tables.flat(row) for row in plain))
        return
    console = tables.console()
    console.print(shapes_view(rows, found, rule(found, order[: max(top, RULED)]) if named is None else ""))
    console.print(f"again: {command} {_words(asked, ask)}", soft_wrap=True, highlight=False)


def _check_weights(q: "Question", params: float) -> None:
    """Whatever the shape, the devices together hold its weights once, unless a framework can leave them on the host."""
    need, have = params * q.work.framework.weight_bytes, q.cluster.devices * q.chip.memory
    if need > have and not q.work.framework.offload:
        raise DoesNotFit(
            f"no shape fits on {q.cluster.name}: the weights alone are {need / GIB:,.0f} GiB, its {q.cluster.devices:,} devices "
            f"have {have / GIB:,.0f}"
        )


def _words(asked: Wanted, ask: "Ask") -> str:
    words = ["--params", f"{asked.params:.17g}"] if asked.params else []
    words += ["--vocab", str(asked.vocab)] if asked.vocab else []
    words += ["--like", ask.model] if ask.model != LIKE else []
    return shlex.join([*words, *(word for shape in asked.shapes for word in ("--shape", shape))])
