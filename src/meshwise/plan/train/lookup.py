"""Look up everything that a training question names: the cluster, the model, the framework and the calibration."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from meshwise.catalogue import calibrations, chips, clusters, frameworks, levels
from meshwise.catalogue.chips import Chip, Cluster, Link
from meshwise.cost.finetune import Finetune, parse
from meshwise.cost.train.parameters import finetuned
from meshwise.cost.train.question import Question
from meshwise.cost.work import OBJECTIVES, Objective, Reliability, Train
from meshwise.errors import UserError, quoted
from meshwise.models import find
from meshwise.models.families.blocks import EMBEDDING
from meshwise.models.model import ONLY_LANGUAGE, Model
from meshwise.models.op import FROZEN_TOWER, TRAINED_TOWER, Op
from meshwise.plan.ask import TrainAsk
from meshwise.plan.fields import defaults, spec
from meshwise.plan.rl_fields import RolloutFields
from meshwise.plan.train import dataset, recipes, support

ROLLOUT_FIELDS = tuple(spec(RolloutFields))
GENERATING = f"--objective {', '.join(name for name, one in OBJECTIVES.items() if one.generates)}"
MAX_PADDED_SEQUENCES = 8
"""Sequences of a micro-batch that are padded to the longest of them, at most. An assumption: the search chooses the micro-batch later."""


def question(ask: TrainAsk, model: Model | None = None, *, in_turn: bool = False) -> Question:
    """Return everything that the cost of a step depends on, except the layout. `model`: the model, if it was looked up already.
    `in_turn`: unequal cards of a node are stages that run one after another, not peers."""
    if not ask.on:
        raise UserError("missing --on: a cluster, such as 48x8xa100-80gb, or a chip with --vary nodes=8..512")
    if not ask.batch:
        raise UserError("missing --batch: sequences (2048), sequences x length (2048x4096) or tokens (4M)")
    _check_options(ask)
    cluster = clusters.find_cluster(ask.on)
    if len({node.devices for _, node in cluster.nodes}) > 1 or (len(cluster.chips) > 1 and cluster.node_count > 1):
        raise UserError(
            f"cluster {quoted(ask.on)} mixes nodes; training is planned on one kind of node, or on unequal cards in one node"
        )
    cluster = clusters.adjusted(cluster, link=ask.link, price=ask.price, memory=ask.ram, seller=ask.provider)
    if len(cluster.chips) > 1:
        cluster = alike(cluster, in_turn=in_turn)
    cluster = support.usable(cluster)
    model, objective = model or find.find_model(ask.model), OBJECTIVES[ask.objective or "sft"]
    if not objective.vocabulary:
        model = without_head(model)
    if ask.tower:
        model = with_tower(model, trained=ask.tower == "trained", images=ask.images)
    framework = recipes.framework_of(ask, ask.framework or candidates(ask, cluster, model)[0])
    work = Train(
        batch=ask.batch * (ask.answers if objective.generates else objective.sequences), seq=ask.seq, framework=framework,
        precision=cast(Any, ask.precision or "bf16"), loss=ask.loss, compiled=ask.compile, optimizer=ask.optimizer or "adamw",
        finetune=method_of(ask), in_backward=ask.in_backward, objective=objective, tokens=_data_tokens(ask, objective) or ask.tokens,
        ramp=ask.ramp, imbalance=ask.imbalance, risk=ask.risk, reliability=Reliability(**ask.failures),
    )  # fmt: skip
    finetuned(model, work.finetune)  # refuses targets, ranks and layers that the model lacks
    if tunes(ask):
        support.check_task(framework, work, cluster.chip, model.model_type)
    name = ask.calibration
    calibration = calibrations.named(name) if name else levels.choose_for(cluster, framework)
    return Question.of(model, cluster, work, calibration, chips.host_bandwidth(cluster))


def method_of(ask: TrainAsk) -> Finetune:
    """Return which weights are trained, and the format of the others."""
    return parse(ask.finetune or "full", ask.base)


def tunes(ask: TrainAsk) -> bool:
    """Return whether a question is about fine-tuning: it names a method, data or an objective other than plain text."""
    return bool(ask.finetune or ask.data or ask.objective not in ("", "sft"))


def node_counts(ask: TrainAsk, q: Question) -> tuple[int, ...]:
    """Return every number of nodes up to `--at-most`; () where the whole cluster is used."""
    if not ask.at_most:
        return ()
    most = q.cluster.node_count
    number = ask.at_most.lower().removesuffix("nodes").removesuffix("node").strip()
    if not number.isdecimal() or len(number) > 8 or not 1 <= int(number) <= most:
        raise UserError(f"--at-most {quoted(ask.at_most)}: expected 1 to {most} nodes, such as '{most} nodes'")
    return tuple(range(1, int(number) + 1))


def without_head(model: Model) -> Model:
    """Return a model without its output head, as reward and embedding models are."""
    placed = tuple((block, op) for block, op in model.placed if op.name != "head")
    return replace(model, placed=placed, decoder=replace(model.decoder, tied=True))


def with_tower(model: Model, *, trained: bool, images: int) -> Model:
    """Return a model with its towers as one Op that every sequence of `images` pictures passes."""
    if not model.towers:
        raise UserError(
            f"{model.name} has no tower whose type is known; --tower needs a config.json with one, such as vision_config"
        )
    size, width = (sum(values) for values in zip(*((one.params, one.hidden * one.layers) for one in model.towers), strict=True))
    patches = max(one.patches for one in model.towers)
    name = TRAINED_TOWER if trained else FROZEN_TOWER
    tower = Op(name=name, part="ffw", kind="vector", n=size, k=width, m=images * patches, params=size)
    named, how = ", ".join(one.name for one in model.towers), "trained" if trained else "frozen"
    words = f"{named}: {size:,} parameters, {how}, {images * patches:,} patches a sequence"
    notes = tuple(note for note in model.notes if not note.startswith(ONLY_LANGUAGE))
    return replace(model, placed=(*model.placed, (EMBEDDING, tower)), notes=(*notes, words))


def beyond_context(ask: TrainAsk, model: Model) -> tuple[str, ...]:
    """Return a note where sequences exceed the context of a model that is fine-tuned; what is trained from the start has its own."""
    context = model.decoder.context
    if not (tunes(ask) and context and ask.seq > context):
        return ()
    return (
        f"--seq {ask.seq:,} exceeds the {context:,} tokens of context of {model.name}: its positions must be extended (rope_scaling)",
    )


def _check_options(ask: TrainAsk) -> None:
    """Refuse options that have no effect without another option."""
    generates = OBJECTIVES[ask.objective or "sft"].generates or bool(ask.teacher)
    usual = defaults(TrainAsk)
    needed = {
        "epochs": (bool(ask.data), "--epochs counts passes over --data ROWS.jsonl"),
        "packing": (bool(ask.data), "--no-packing pads the rows of --data ROWS.jsonl"),
        "images": (bool(ask.tower), "--images counts pictures for --tower frozen or trained"),
        **{
            name: (generates, f"--{name.replace('_', '-')} needs answers that are generated: {GENERATING}")
            for name in ROLLOUT_FIELDS
        },
    }
    for name, (given, words) in needed.items():
        if not given and getattr(ask, name) != usual[name]:
            raise UserError(f"{words}, which is missing: give it, or leave out --{'no-' * (name == 'packing')}{name}")


def _data_tokens(ask: TrainAsk, objective: Objective) -> float:
    """Return the tokens that a run over `--data` computes, padding included; 0 without data."""
    if not ask.data:
        return 0.0
    if ask.tokens:
        raise UserError("--tokens and --data both state how much to train on; give one of them")
    number, each, _ = dataset.epoch(dataset.read(ask.data, objective), ask.seq, padded_together(ask), packing=ask.packing)
    return ask.epochs * number * each


def padded_together(ask: TrainAsk) -> int:
    """Return how many sequences are assumed to be padded to the longest of them."""
    return min(ask.batch, MAX_PADDED_SEQUENCES)


def candidates(ask: TrainAsk, cluster: Cluster, model: Model) -> tuple[str, ...]:
    """Return the frameworks to plan with, the usual one on these devices first; only the user's own where one is named."""
    generates = OBJECTIVES[ask.objective or "sft"].generates
    if ask.framework:
        return frameworks.ways(ask.framework) if tunes(ask) and not generates else (ask.framework,)
    method, chip = method_of(ask), cluster.chip
    if tunes(ask) and not generates and (method.adapts or cluster.node_count == 1):
        return frameworks.ways(usual_tuner(ask, cluster, model))
    return frameworks.usual(chip.kind, model.model_type, devices=cluster.devices, nodes=cluster.node_count, adapts=method.adapts)


def usual_tuner(ask: TrainAsk, cluster: Cluster, model: Model) -> str:
    """Return the program that most people fine-tune with on these devices, of those that have the method."""
    chip, method = cluster.chip, method_of(ask).method
    known = frameworks.tuners(chip.kind, chip.vendor, model.model_type)
    if not known:
        raise UserError(
            f"no program of the catalogue fine-tunes on {chip.name}; expected a GPU, an Apple chip, a TPU, or --framework"
        )
    able = (name for name in known if method in (frameworks.find_framework(name).methods or (method,)))
    return next(able, known[0])


def with_one_framework(ask: TrainAsk, clusters_of: Sequence[str]) -> TrainAsk:
    """Return the question with one framework for clusters of every size, the usual one on the largest: points then differ by their machine
    alone. A question that names its framework stays as it is."""
    if ask.framework or not clusters_of:
        return ask
    largest = max(map(clusters.find_cluster, clusters_of), key=lambda cluster: cluster.devices)
    return replace(ask, framework=candidates(ask, largest, find.find_model(ask.model))[0])


def mixed(ask: TrainAsk) -> bool:
    """Return whether the devices are of several kinds."""
    return len(clusters.find_cluster(ask.on).chips) > 1


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

    known: list[Any] = [dtype for dtype in slowest.flops if all(dtype in chip.flops for _, chip in cards)]
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
        cluster, nodes=((1, replace(node, chips=((node.devices, chip),))),),
        price=rent / node.devices if rent is not None else None, notes=(*cluster.notes, note),
    )  # fmt: skip


def _slowest_link(links: list[Link | None]) -> Link | None:
    known = [link for link in links if link]
    return min(known, key=lambda link: link.bandwidth) if len(known) == len(links) else None
