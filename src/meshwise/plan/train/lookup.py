"""Look up everything that a training question names: the cluster, the model, the framework and the calibration."""

from dataclasses import replace
from typing import Any, cast

from meshwise.catalogue import calibrations, chips, clusters, frameworks, levels
from meshwise.catalogue.chips import Chip, Cluster, Link
from meshwise.cost.reliability import Reliability
from meshwise.cost.train.parameters import tuned
from meshwise.cost.train.question import Question
from meshwise.cost.tuning import parse
from meshwise.cost.work import Train
from meshwise.errors import UserError, quoted
from meshwise.models import find
from meshwise.models.model import Model
from meshwise.plan.ask import TrainAsk


def question(ask: TrainAsk, model: Model | None = None, *, in_turn: bool = False) -> Question:
    """Return everything that the cost of a step depends on, except the layout. `model`: the model, if it was looked up already.
    `in_turn`: of a node with several kinds of cards, as stages that run one after another see it."""
    if not ask.on:
        raise UserError("missing --on: a cluster, such as 48x8xa100-80gb, or a chip with --vary nodes=8..512")
    if not ask.batch:
        raise UserError("missing --batch: sequences (2048), sequences x length (2048x4096) or tokens (4M)")
    cluster = clusters.find_cluster(ask.on)
    if len({node.devices for _, node in cluster.nodes}) > 1 or (len(cluster.chips) > 1 and cluster.node_count > 1):
        raise UserError(
            f"cluster {quoted(ask.on)} mixes nodes; training is planned on one kind of node, or on unequal cards in one node"
        )
    cluster = clusters.adjusted(cluster, link=ask.link, price=ask.price)
    if len(cluster.chips) > 1:
        cluster = alike(cluster, in_turn=in_turn)
    model = model or find.find_model(ask.model)
    framework = frameworks.find_framework(ask.framework or candidates(ask, cluster, model)[0])
    work = Train(
        batch=ask.batch,
        seq=ask.seq,
        framework=framework,
        precision=cast(Any, ask.precision or "bf16"),
        loss=ask.loss,
        compiled=ask.compile,
        optimizer=ask.optimizer or "adamw",
        tuning=parse(ask.tune or "full"),
        tokens=ask.tokens,
        ramp=ask.ramp,
        imbalance=ask.imbalance,
        reliability=Reliability(**ask.failures),
    )
    tuned(model, work.tuning)  # refuses targets, ranks and layers that the model lacks
    name = ask.calibration
    calibration = calibrations.named(name) if name else levels.choose_for(cluster, framework)
    return Question.of(model, cluster, work, calibration, chips.host_bandwidth(cluster))


def candidates(ask: TrainAsk, cluster: Cluster, model: Model) -> tuple[str, ...]:
    """Return the frameworks to plan with, the usual one on these devices first; only the user's own where one is named."""
    if ask.framework:
        return (ask.framework,)
    adapts = parse(ask.tune or "full").adapts
    return frameworks.usual(cluster.chip.kind, model.model_type, devices=cluster.devices, nodes=cluster.node_count, adapts=adapts)


def alike(cluster: Cluster, *, in_turn: bool) -> Cluster:
    """Return a node of unequal cards as one of equal cards. Ranks that wait for each other all have the least memory and the lowest rates.
    Stages that run one after another (`in_turn`) have layers in proportion to their memory, so that the mean of the memory and the harmonic
    mean of the rates, weighted by memory, give the same total."""
    node, cards = cluster.node, cluster.node.chips
    total = node.memory
    slowest = min((chip for _, chip in cards), key=lambda chip: max(chip.flops.values()))

    def mean(rates: list[float]) -> float:
        if not in_turn:
            return min(rates)
        return 1 / sum(count * chip.memory / total / rate for (count, chip), rate in zip(cards, rates, strict=True))

    known = [dtype for dtype in slowest.flops if all(dtype in chip.flops for _, chip in cards)]
    chip: Chip = replace(
        slowest,
        name=" + ".join(f"{count} x {chip.name}" for count, chip in cards),
        memory=total / node.devices if in_turn else min(chip.memory for _, chip in cards),
        bandwidth=mean([chip.bandwidth for _, chip in cards]),
        flops={dtype: mean([chip.flops[dtype] for _, chip in cards]) for dtype in known or slowest.flops},
        host=_slowest_link([chip.host for _, chip in cards]),
    )
    how = "layers in proportion to memory, one card at a time" if in_turn else "each card is used like the weakest"
    note = f"unequal cards: {how}"
    rent = cluster.rent
    return replace(
        cluster,
        nodes=((1, replace(node, chips=((node.devices, chip),))),),
        price=rent / node.devices if rent is not None else None,
        notes=(*cluster.notes, note),
    )


def _slowest_link(links: list[Link | None]) -> Link | None:
    known = [link for link in links if link]
    return min(known, key=lambda link: link.bandwidth) if len(known) == len(links) else None
