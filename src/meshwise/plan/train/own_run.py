"""Predict a run of meshwise's own trainer: its model, batch, layout and machine, as a question to the planner."""

from dataclasses import fields
from typing import cast

from meshwise.cost.axes import AXES
from meshwise.cost.finetune import FULL, Finetune, Method
from meshwise.cost.layout import Layouts
from meshwise.cost.train.question import Question
from meshwise.cost.train.step import evaluate
from meshwise.cost.work import SHORT_MOMENTS
from meshwise.models.model import Model
from meshwise.plan.ask import TrainAsk
from meshwise.plan.train import lookup
from meshwise.plan.train.choice import Choice, choice
from meshwise.workers.trainer.contract.settings import Layout, Settings

OPTIMIZERS = {"fp32": "adamw", "bf16": SHORT_MOMENTS}  # the planner's names of AdamW, by the format of its moments


def finetune_words(settings: Settings) -> str:
    """Return the value of `--finetune` for a run; '' where everything is trained."""
    given = settings.finetune
    finetune = Finetune(cast(Method, given.method), given.rank, given.targets, given.frozen_layers)
    return "" if finetune == FULL else finetune.write()


def question(settings: Settings, model: Model, on: str) -> Question:
    """Return the planner's question for the run that `settings` describe, on the cluster `on`."""
    precision = "bf16" if settings.precision == "fp32" else settings.precision  # the planner has no fp32
    ask = TrainAsk(
        model=settings.name, on=on, batch=settings.batch, seq=settings.seq, framework="meshwise", precision=precision,
        finetune=finetune_words(settings), optimizer=OPTIMIZERS[settings.moments],
    )  # fmt: skip
    return lookup.question(ask, model)


def row_of(a: Layout) -> dict[str, int | str]:
    """Return a layout of the trainer in the planner's words; axes that the trainer lacks have their defaults."""
    row = {axis.name: axis.default for axis in AXES} | {f.name: getattr(a, f.name) for f in fields(Layout)}
    row |= {"etp": 1 if a.ep > 1 else a.tp, "sp": int(a.tp > 1), "zero": a.zero if a.dp_shard > 1 else 0}
    return row | {"schedule": "zero-bubble" if a.schedule == "zbv" else a.schedule}


def predict(settings: Settings, model: Model, on: str) -> Choice:
    """Return the predicted cost of the run's own layout."""
    q, layouts = question(settings, model, on), Layouts.from_row(row_of(settings.layout))
    return choice(q, layouts, evaluate(q, layouts), 0)
