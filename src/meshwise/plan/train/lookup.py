"""Look up everything that a training question names: the cluster, the model, the framework and the calibration."""

from typing import Any, cast

from meshwise.catalogue import calibrations, chips, clusters, frameworks, levels
from meshwise.cost.reliability import Reliability
from meshwise.cost.train.question import Question
from meshwise.cost.work import Train
from meshwise.errors import UserError, quoted
from meshwise.models import find
from meshwise.models.model import Model
from meshwise.plan.ask import TrainAsk


def question(ask: TrainAsk, model: Model | None = None) -> Question:
    """Return everything that the cost of a step depends on, except the layout. `model`: the model, if it was looked up already."""
    if not ask.on:
        raise UserError("missing --on: a cluster, such as 48x8xa100-80gb, or a chip with --vary nodes=8..512")
    if not ask.batch:
        raise UserError("missing --batch: sequences (2048), sequences x length (2048x4096) or tokens (4M)")
    cluster = clusters.find_cluster(ask.on)
    if len(cluster.chips) > 1:
        raise UserError(f"cluster {quoted(ask.on)} mixes chips; training is planned on one kind of chip")
    if len({node.devices for _, node in cluster.nodes}) > 1:
        raise UserError(f"cluster {quoted(ask.on)} mixes nodes of several sizes; training is planned on one kind of node")
    cluster = clusters.adjusted(cluster, link=ask.link, price=ask.price)
    model = model or find.find_model(ask.model)
    framework = frameworks.find_framework(ask.framework or frameworks.usual(cluster.chip.kind, model.model_type))
    work = Train(
        batch=ask.batch,
        seq=ask.seq,
        framework=framework,
        precision=cast(Any, ask.precision or "bf16"),
        loss=ask.loss,
        compiled=ask.compile,
        optimizer=ask.optimizer or "adamw",
        tokens=ask.tokens,
        ramp=ask.ramp,
        imbalance=ask.imbalance,
        reliability=Reliability(**ask.failures),
    )
    name = ask.calibration
    calibration = calibrations.named(name) if name else levels.choose_for(cluster, framework)
    return Question.of(model, cluster, work, calibration, chips.host_bandwidth(cluster))
