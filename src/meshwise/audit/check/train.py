"""The verdict on a training file: whether its layout fits and how fast it is, and the best layout of the same question."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meshwise.audit.check import difference
from meshwise.audit.check.contradictions import places
from meshwise.audit.check.layout import row_of
from meshwise.audit.check.shape import described
from meshwise.audit.finding import Finding, contradiction
from meshwise.catalogue import clusters
from meshwise.catalogue.chips import known_chip
from meshwise.cost.axes import NAMES
from meshwise.cost.layout import Layouts
from meshwise.cost.precision import PRECISIONS
from meshwise.cost.train.question import Question
from meshwise.errors import UserError
from meshwise.models import find
from meshwise.models.model import Model
from meshwise.plan.ask import TrainAsk
from meshwise.plan.train import lookup
from meshwise.plan.train.choice import Choice
from meshwise.plan.train.recipes import FACTS, assumed
from meshwise.plan.train.rules import TP_IN_NODE, broken
from meshwise.programs.program import KERNELS, Program, Setup, predicted_by
from meshwise.programs.setup import model_facts, sharding_of
from meshwise.programs.train import adapters
from meshwise.runs.compare import layouts as layouts_of
from meshwise.runs.compare import own_choice
from meshwise.runs.fields import BY_NAME
from meshwise.runs.model import REQUIRED_SIZES, SIZES, model_of
from meshwise.runs.run import Run
from meshwise.runs.train.machine import part_of

TIE_SHARE = 0.01  # a layout within this share of the best is not worth a word
MAX_TRIED = 40  # layouts to look through for one that the program can say


@dataclass(frozen=True)
class Judged:
    """The planner's verdict on a training file: its own layout, the best one, and findings."""

    question: Question | None = None
    own: Choice | None = None  # the file's layout; None where it cannot be predicted
    best: Choice | None = None  # the best layout of the same question that the program can say, where it is better
    better: Setup | None = None  # the facts of the best layout
    mine: Setup | None = None  # the facts of the file's own layout
    unknown: tuple[str, ...] = ()  # reasons why the file cannot be predicted
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    on: str = ""  # the part of the cluster that is used
    command: str = ""  # the command that plans the same question
    model: str = ""  # the model in one line


def cluster_of(facts: Run, on: str) -> tuple[str, list[Finding]]:
    """Return the part of a cluster that a file uses, in the words of `--on`: as many nodes as it asks for."""
    nodes, each, devices = (facts.whole(name) for name in ("nodes", "devices_per_node", "devices"))
    if known_chip(on) is not None:
        if each and nodes:
            return f"{nodes}x{each}x{on}", []
        return (f"{devices}x{on}" if devices else on), []
    cluster = clusters.find_cluster(on)
    if not devices or devices == cluster.devices or cluster.torus:
        return on, []
    if devices > cluster.devices:
        text = f"it asks for {devices:,} devices, and {on} has {cluster.devices:,}"
        return on, [contradiction("stops", text, places(facts, "devices", "nodes", "devices_per_node"))]
    return part_of(on, devices), []


INPUTS = (
    "optimizer", "adapter", "rank", "targets", "frozen", "frozen_layers", "attention", "loss", "overlap", "graphs", "gradients", "capacity",
    "compile", *SIZES, "experts", "top_k", "expert_ffn", "shared_ffn", "gated", "tied",
)  # fmt: skip
"""Facts beside the layout, the batch and the precision that a prediction depends on: none is guessed where the file leaves it open."""


def judge(program: Program, facts: Run, on: str, model: str = "", price: float = 0.0, *, withheld: Sequence[str] = ()) -> Judged:
    """Predict a training file's layout on a cluster and search the best for the same question; `withheld`: why there is no verdict."""
    judged = _judge(program, facts, on, model, price, withheld)
    found, _ = model_of_file(facts, model)
    return replace(judged, model=described(found, facts) if found is not None else "")


def _judge(program: Program, facts: Run, on: str, model: str, price: float, withheld: Sequence[str]) -> Judged:
    found, why = model_of_file(facts, model)
    row, missing = row_of(program, facts)
    open_axes = [str(one) for one in [one for one in missing if one.why != "not stated"] or missing]
    unknown = [f"model: {why}"] if found is None else []
    unknown += [f"{name}: {_why(facts, name)}" for name in ("batch", "seq") if not facts.whole(name)]
    precision = str(facts.value("precision") or "")
    if precision not in PRECISIONS:
        unknown.append(f"precision: {precision + ' is not predicted' if precision else _why(facts, 'precision')}")
    open_facts = [name for name in INPUTS if (one := facts.get(name)) is not None and one.how == "unknown"]
    unknown += [f"{name}: {_why(facts, name)}" for name in open_facts if not (found is not None and name in SIZES and model)]
    unknown += withheld
    given, on = on, on or chip_of(facts)
    if not on:
        return Judged(unknown=(*unknown, *open_axes, "cluster: --on names it"))
    part, findings = cluster_of(facts, on)
    notes = machine_notes(facts, given, part)
    if unknown or found is None or findings:
        return Judged(unknown=(*unknown, *open_axes), findings=tuple(findings), on=part, notes=notes)
    judged = _predicted(program, facts, found, {} if missing else row, asked(program, facts, found, part, price), open_axes)
    return replace(judged, notes=(*notes, *judged.notes))


def chip_of(facts: Run) -> str:
    """Return the chip that a file names (H100:8, mi250), where it is a known one; '' otherwise."""
    name = facts.text("chip")
    found = known_chip(name) if name else None
    return found.key if found is not None else ""


def machine_notes(facts: Run, on: str, part: str) -> tuple[str, ...]:
    """Return what is assumed of the machine: the file's own chip, or a part of what the user names."""
    if not on:
        return (f"--on is not given: the {facts.text('chip')} that the file names",)
    if part == on or known_chip(on) is not None:
        return ()
    return (
        f"the file starts {facts.whole('devices'):,} of the {clusters.find_cluster(on).devices:,} devices of {on}: the others are idle",
    )


def model_of_file(facts: Run, named: str = "") -> tuple[Model | None, str]:
    """Return the model of a launch file, or None with the reason, downloading and guessing nothing; `named`: what the user says it is."""
    if named:
        return find.find_model(named), ""
    name = facts.text("model")
    missing = [size for size in REQUIRED_SIZES if not facts.whole(size)]
    if missing and not find.named(name):
        if len(missing) < len(REQUIRED_SIZES):
            unknown = [f"{size} ({one.note})" if (one := facts.get(size)) and one.note else size for size in missing]
            verb = "is" if len(missing) == 1 else "are"
            return None, f"its {' and '.join(unknown)} {verb} not known: --set {missing[0]}=..., or --model"
        reason = f"{name} is no preset: --model names one, or a config.json" if name else "no model is stated: --model names it"
        return None, reason
    try:
        return model_of(facts, {}, []), ""
    except UserError as error:
        return None, str(error)


def unsure(facts: Run) -> list[str]:
    """Return the axes that only running the file would tell."""
    return [name for name in NAMES if (one := facts.get(name)) is not None and one.how == "unknown"]


def _why(facts: Run, name: str) -> str:
    stated = facts.get(name)
    if stated is None or not stated.note:
        return "not stated"
    return stated.note if not stated.where or stated.where in stated.note else f"{stated.note} ({stated.where})"


def _predicted(
    program: Program, facts: Run, model: Model, row: Mapping[str, int | str], ask: TrainAsk, unknown: list[str]
) -> Judged:
    """Predict the file's own layout, where it is known and uses the devices, and search a better one."""
    try:
        q = lookup.question(ask, model)
    except UserError as error:
        return Judged(unknown=(*unknown, str(error)), on=ask.on)
    q = replace(q, work=replace(q.work, framework=q.work.framework.told(modules=facts.text("modules"))))
    own, notes = None, [*assumed(q, ask), *lookup.beyond_context(ask, model)]
    notes += adapters.saved_note(facts, model)
    notes += [facts.text("caveat")] if facts.text("caveat") else []
    if row:  # files count pairs
        row = {**row, "mbs": int(row["mbs"]) * q.work.objective.sequences}
    if row and math.prod(int(row[axis]) for axis in ("dp_replicate", "dp_shard", "tp", "pp", "cp")) == q.cluster.devices:
        whole = row["ep"] == 1 and any(op.expert for op in model.ops)  # experts are then cut as the other layers are
        layouts = Layouts.from_row({**row, "etp": row["tp"]} if whole else row)
        rules = broken(q, layouts)
        notes += [
            f"{program.title} is not planned like this ({rule.removeprefix('the framework must ')}): predicted all the same"
            for rule in rules
            if rule.startswith("the framework")
        ]
        if TP_IN_NODE in rules:
            notes.append(f"tp {row['tp']} spans nodes of {q.cluster.node.devices}: its all-reduces go over the network")
        own = own_choice(q, layouts)
        notes += _uncounted(facts, own)
    best, better = _best(program, facts, q) if own is not None or not unsure(facts) else (None, None)
    usable = own is not None and own.peak <= own.capacity * (1 - q.work.reserve)
    if best is not None and own is not None and usable and not difference.is_faster(own.step / best.step):
        if best.step < own.step * (1 - TIE_SHARE):
            low, high = difference.interval(1.0)
            sure = f"the uncertainty of a difference, {low - 1:.0%} to {high - 1:+.0%}"
            notes.append(f"{best.name} is predicted {own.step / best.step - 1:.0%} faster, which is within {sure}")
        best, better = None, None
    mine = setup_of(facts, q, own) if own is not None else None
    return Judged(q, own, best, better, mine, tuple(unknown), (), tuple(notes), ask.on, ask.command())


def _uncounted(facts: Run, own: Choice) -> list[str]:
    """Return what a file says and the prediction does not count."""
    notes: list[str] = []
    if facts.whole("mtp_layers"):
        notes.append(f"{facts.whole('mtp_layers')} layer of multi-token prediction is not counted: about "
                     f"{facts.whole('mtp_layers') / max(1, facts.whole('layers', 1)):.1%} more work")  # fmt: skip
    dispatcher = facts.value(f"{KERNELS}dispatcher")
    if facts.whole("ep", 1) > 1 and "overlap_ep" in facts and dispatcher != "flex":
        notes.append(
            f"tokens are predicted as sent by DeepEP (flex), not by the dispatcher {dispatcher or 'allgather'} of the file"
        )
    return notes


def asked(program: Program, facts: Run, model: Model, on: str, price: float = 0.0) -> TrainAsk:
    """Return the question that a file asks, in the words of `meshwise plan`."""
    tokens = facts.value("tokens")
    return TrainAsk(
        model=model.name, on=on, finetune=adapters.finetune_of(facts, model), base=adapters.base_of(facts),
        in_backward=bool(facts.value("in_backward")), objective=facts.text("objective") or "sft", batch=facts.whole("batch"),
        seq=facts.whole("seq"), framework=predicted_by(program, facts), precision=str(facts.value("precision")),
        optimizer=str(facts.value("optimizer") or "adamw"), **recipe_of(facts), compile=bool(facts.value("compile")),
        tokens=float(tokens) if isinstance(tokens, int | float) else 0.0, price=price,
    )  # fmt: skip


def recipe_of(facts: Run) -> dict[str, Any]:
    """Return what a file says of its program's recipe, in the words of `meshwise plan`."""
    stated: dict[str, Any] = {name: facts.text(name) for name in FACTS if facts.text(name)}
    capacity = facts.value("capacity")
    if isinstance(capacity, int | float):  # experts drop what exceeds it
        stated["imbalance"] = max(1.0, float(capacity))
    return stated


def _best(program: Program, facts: Run, q: Question) -> tuple[Choice | None, Setup | None]:
    """Return the fastest layout that fits and that the program can say; one without shards stays so where they are another file's."""
    whole = bool(q.work.framework.through) and facts.value("zero") == 0

    def said(one: Choice) -> bool:
        return not (whole and int(one.layout["zero"])) and not list(program.refuse(setup_of(facts, q, one)))

    one = next(layouts_of(q, said, tried=MAX_TRIED), None)
    return one, setup_of(facts, q, one) if one else None


def setup_of(facts: Run, q: Question, one: Choice) -> Setup:
    """Return the facts of another layout of the same question, for the words of the program."""
    kept = [
        one
        for one in facts
        if one.fact in BY_NAME and BY_NAME[one.fact].group not in ("layout", "stages") and one.value is not None
    ]
    values = model_facts(q.model) | {one.fact: one.value for one in kept if one.value is not None}
    values |= one.layout
    values |= {"dp": int(one.layout["dp_replicate"]) * int(one.layout["dp_shard"]), "accumulation": one.gradient_accumulation}
    values |= {"sharded_by": sharding_of(q.work.framework), "mbs": int(one.layout["mbs"]) // q.work.objective.sequences}
    values |= {"devices": one.devices, "nodes": facts.whole("nodes") or max(1, one.devices // q.cluster.node.devices)}
    return Setup(values, {}, q.model.name)
