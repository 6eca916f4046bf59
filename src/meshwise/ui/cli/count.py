"""`count --on`: what training a model takes on a cluster, on the back of an envelope."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from meshwise.errors import UserError

if TYPE_CHECKING:
    from meshwise.models.model import Model


@dataclass(frozen=True)
class Envelope:
    """What the command line says, in its words."""

    on: str
    batch: str
    mfu: str
    checkpoints: int
    tokens: float


def answer(models: "list[Model]", tallies: list[dict[str, Any]], asked: Envelope, json: bool, csv: bool) -> None:
    """The counts and the budget of every model as data, or the budgets with their rooflines as tables."""
    from meshwise import units
    from meshwise.catalogue import clusters
    from meshwise.cost.work import batch_tokens
    from meshwise.plan.budget import as_row, budget
    from meshwise.plan.roofline import verdicts
    from meshwise.ui.views import tables
    from meshwise.ui.views.count import budget_table

    if not asked.batch:
        raise UserError("--on needs --batch, such as --batch 4M: how many tokens a step has decides what hides and what fits")
    cluster = clusters.find_cluster(asked.on)
    share = units.parse(asked.mfu, "share")
    console = tables.console()
    for model, tally in zip(models, tallies, strict=True):
        tokens, seq = batch_tokens(asked.batch, int(tally["training_flops"]["seq"]))
        found = budget(model, cluster, asked.tokens, tokens, share, asked.checkpoints)
        lines = verdicts(model, cluster, tokens, seq)
        tally["budget"] = as_row(found) | {"rooflines": lines}
        if not (json or csv):
            console.print(budget_table(model.name, cluster.name, found))
            for line in lines:
                console.print(line, soft_wrap=True, highlight=False)
    if json or csv:
        typer.echo(tables.as_json(tallies) if json else tables.tallies_csv(tallies))
