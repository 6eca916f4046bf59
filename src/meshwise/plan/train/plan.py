"""TrainPlan: the best layouts to train a model on a cluster. `make` answers a TrainAsk, `read` opens a plan.json."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from meshwise import units
from meshwise.catalogue.records import stored
from meshwise.cost import axes, goodput
from meshwise.cost.layout import Layouts
from meshwise.cost.modes import MIN_LOG_SLOWDOWN, seconds_in, share_of
from meshwise.cost.parts import TRAIN_KINDS, TRAIN_PARTS
from meshwise.cost.power import Energy
from meshwise.cost.precision import RECIPES, is_narrow
from meshwise.cost.train.question import Question
from meshwise.cost.train.step import host_memory
from meshwise.cost.work import Reliability
from meshwise.errors import DoesNotFit, UserError
from meshwise.plan import plan as plans
from meshwise.plan.ask import TrainAsk
from meshwise.plan.train import compared, evidence, fallback, finetune, lookup, money, recipes, remedies
from meshwise.plan.train.choice import Choice, choice, distinct, no_progress, sizes, too_large
from meshwise.plan.train.energy import trained
from meshwise.plan.train.evidence import Evidence
from meshwise.plan.train.finetune import FinetuneFacts
from meshwise.plan.train.search import Found, check_divides

if TYPE_CHECKING:
    from meshwise.plan.train.explain import Explanation
    from meshwise.plan.train.mesh import Mesh
    from meshwise.plan.train.timeline import Timeline
    from meshwise.plan.train.vary import TrainPoints


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainPlan(plans.Plan[TrainAsk, Choice]):
    """The fastest layouts for a TrainAsk, how many layouts each rule dropped, and the data that the numbers were computed from."""

    format: ClassVar[int] = 6
    stated: ClassVar[dict[str, tuple[str, ...]]] = {
        "cluster": ("name", "chip", "devices", "nodes", "unit", "kind", "dollars_per_hour")
    }
    ask: TrainAsk
    choices: tuple[Choice, ...]
    evaluated: int = field(metadata=stored("priced"))
    """Layouts that were evaluated."""
    rejected: dict[str, int]
    """Layouts that were dropped, by rule."""
    calibration: dict[str, str]
    """Its name, the data it was fitted on, the date, and whether it was fitted on this chip ('yes' or '')."""
    cluster: dict[str, str | int | float | None]
    """The cluster that `--on` names: name, chip and its kind, devices, nodes (or pods), dollars per device and hour."""
    framework: str
    finetune: FinetuneFacts | None = None
    """Where a method of fine-tuning, data or an objective was asked for."""
    notes: tuple[str, ...] = ()
    money: tuple[str, ...] = ()
    """Tokens a day, what a usual team takes, renting against buying: one sentence each."""
    versions: dict[str, str] = field(default_factory=dict[str, str])
    risky: Choice | None = None
    """The fastest layout that is faster than the best one but may not fit."""
    evidence: Evidence | None = None
    """Measured runs near the best layout, and the layout that is usual for its program."""
    energy: Energy | None = None
    """Power of the best layout, and the energy of the whole training; None where the chip states no power limit."""

    def row(self, choice: Choice) -> dict[str, Any]:
        return super().row(choice) | money.intervals(choice)

    def question(self) -> Question:
        """Return the model, cluster, framework and calibration that the ask names, looked up once."""
        return self._question

    @cached_property
    def _question(self) -> Question:
        return lookup.question(self.ask, in_turn=self.best.layout["schedule"] == "naive")

    def explain(self, versus: str = "") -> "Explanation":
        """Explain why the best layout won, against the runner-up or against a layout of your own ('tp=8,pp=6')."""
        from meshwise.plan.train import explain

        return explain.explain(self.question(), self.choices, self.ask.bounds, versus)

    def believe(self) -> list[str]:
        """Return what the best layout's figures rest on, one sentence a line."""
        from meshwise.plan.train import believe

        return believe.reasons(self.question(), self.best, self.evidence or evidence.find(self.question(), self.best)[0])

    def provenance(self) -> str:
        """Return one sentence where it was made with another version, model, cluster, framework or calibration than this machine has."""
        return plans.provenance(self.versions, _versions(self.question()))

    def vary(self, **axes: str) -> "TrainPoints":
        from meshwise.plan.train import vary

        return vary.answer(self.ask, [f"{name}={values}" for name, values in axes.items()])

    def mesh(self, choice: Choice | None = None) -> "Mesh":
        """Return which device holds what in a layout: its groups, and the layers of each stage."""
        from meshwise.plan.train import mesh

        return mesh.mesh(self.question(), choice or self.best)

    def timeline(self, choice: Choice | None = None) -> "Timeline":
        """Simulate the step of a layout event by event; `.save("step.json.gz")` writes a trace for ui.perfetto.dev."""
        from meshwise.plan.train import timeline

        return timeline.simulate_step(self.question(), choice or self.best)


def _versions(q: Question) -> dict[str, str]:
    """Return digests of what a question depends on."""
    return plans.versions(model=q.model.placed, cluster=q.cluster, framework=q.work.framework, calibration=q.calibration)


def make(ask: TrainAsk) -> TrainPlan:
    """Search every layout and keep the best. DoesNotFit where none fits, makes progress or meets the deadline."""
    if not ask.model:
        raise UserError("missing MODEL: a preset, HF id, config.json or .gguf; or --params 176B to search its shape too")
    if ask.within and not ask.tokens:
        raise UserError("--within needs --tokens: how many to train on, such as --tokens 15T")
    q = lookup.question(ask)
    nodes = lookup.node_counts(ask, q)
    check_divides(q, ask.bounds, nodes)
    usual = q
    q, found = fallback.first_that_fits(ask, q, nodes)
    if len(found.layouts) == 0:
        raise DoesNotFit(too_large(q, found, lambda: remedies.advice(ask)))
    instead = fallback.usual_note(usual, q)
    given, ask = ask, replace(ask, framework=q.work.framework.program) if instead else ask
    choices = tuple(distinct(q, found, ask.top))
    known, usual = evidence.find(q, choices[0])
    if usual and all(usual.name != choice.name for choice in choices):
        choices = (*choices, usual)
    if (ask.tokens or ask.failures) and choices[0].goodput["effective"] < goodput.MIN_GOODPUT:
        raise DoesNotFit(no_progress(q, choices[0]))
    fitted, rent = q.calibration, q.cluster.rent
    plan = TrainPlan(
        ask=ask,
        choices=choices,
        evaluated=found.evaluated,
        rejected=found.rejected,
        calibration={
            "name": fitted.name,
            "fitted_on": fitted.fitted_on,
            "date": fitted.date,
            "own_chip": "yes" if q.chip.key in fitted.chips else "",
        },
        cluster={
            "name": q.cluster.name, "chip": q.chip.name, "devices": q.cluster.devices, "nodes": q.cluster.node_count,
            "unit": "pod" if q.cluster.torus else "node", "kind": q.chip.kind,
            "dollars_per_hour": rent / q.cluster.devices * 3600 if rent is not None else None, "priced_by": q.cluster.priced_by,
        },
        framework=q.work.framework.name,
        notes=(
            *q.model.notes, *q.cluster.notes, *recipes.assumed(q, ask), *_assumptions(q, ask.precision), *_deadline_note(ask, choices),
            *instead, *lookup.beyond_context(ask, q.model),
            *fallback.faster_part(given, choices[0].step), *_host_note(q, choices[0]), *_mode_notes(q, choices[0]),
        ),
        finetune=_tuned(given, q, choices[0]),
        money=money.sentences(ask, q, choices[0]),
        versions=_versions(q),
        risky=_risky(q, found, choices[0]),
        evidence=known,
        energy=_energy(ask, q, choices[0]),
    )  # fmt: skip
    vars(plan)["_question"] = q  # `explain` and `timeline` need not look it up again
    return plan


def _risky(q: Question, found: Found, best: Choice) -> Choice | None:
    """Return the layout of the least expected seconds among those whose chance of not fitting is too high, where it is faster."""
    if not 0 < found.safe < len(found.layouts) or found.cost.step[found.safe] >= best.step:
        return None
    return choice(q, found.layouts, found.cost, found.safe)


def _tuned(ask: TrainAsk, q: Question, best: Choice) -> FinetuneFacts | None:
    """Return the figures of fine-tuning, with other ways and other programs on the same devices."""
    found = finetune.facts(ask, q, best)
    return replace(found, ways=compared.ways(ask, q), rivals=compared.rivals(ask, q)) if found else None


def _host_note(q: Question, best: Choice) -> tuple[str, ...]:
    """Return the memory of a host that offload was planned with, where nobody stated it."""
    if best.layout["offload"] == "none" or q.cluster.node.host.memory:
        return ()
    return (f"offload: hosts are assumed to have {units.show(host_memory(q), 'bytes', binary=True, digits=3)} each (--ram)",)


def _mode_notes(q: Question, best: Choice) -> list[str]:
    """Return the modes in which runs like the best layout were far slower, with their share."""
    layouts = Layouts.from_row(best.layout)
    notes: list[str] = []
    for mode in q.calibration.modes:
        seconds = float(seconds_in(mode, np.array([best.step]), sizes(q, layouts))[0])
        if math.log(seconds / best.step) >= MIN_LOG_SLOWDOWN:
            would = f"row 1 would take {units.show(seconds, 'seconds', digits=3)} a step"
            notes.append(f"slow runs: {share_of(mode, q.calibration.name)}; {would}")
    return notes


def _deadline_note(ask: TrainAsk, choices: tuple[Choice, ...]) -> tuple[str, ...]:
    """Return a note of the layouts that meet the deadline. DoesNotFit where none does."""
    if not ask.within:
        return ()
    limit = units.show(ask.within, "seconds")
    days = [choice.total_days or math.inf for choice in choices]
    rows = [str(i + 1) for i, value in enumerate(days) if value * 86400 <= ask.within]
    if not rows:
        raise DoesNotFit(f"nothing trains within {limit}: the fastest layout on {ask.on} takes {min(days):,.1f} days")
    return (f"within {limit}: {'rows' if len(rows) > 1 else 'row'} {', '.join(rows)} of {len(choices)}",)


def _assumptions(q: Question, asked: str) -> list[str]:
    """Return the assumptions about experts and 8-bit products that are not backed by measurements."""
    f, c = q.work.framework, q.calibration
    notes: list[str] = []
    if any(op.expert for op in q.model.ops):
        sent = "once per node" if f.sends_once else "once per expert"
        aside = f", on {f.communication_sms} SMs" if f.communication_sms else ""
        notes.append(
            f"experts, assumed: the busiest rank has {q.work.imbalance:g} x the mean tokens (--imbalance); "
            f"tokens are sent {sent}{aside}"
        )
    if f.pure_unsharded and not q.work.finetune.adapts and q.cluster.devices == 1:
        notes.append(f"{f.name}: weights, gradients and moments are in 16 bits, without a float32 copy")
    if q.work.objective.generates:
        notes.append(f"{q.work.objective.name}: the training phase alone; generation is planned with it by meshwise.rollouts")
    recipe = RECIPES[asked or "bf16"]
    if is_narrow(q.work.precision, q.chip):
        share = c.matmul * (c.fp4 if recipe.rate == "fp4" else c.fp8) * recipe.scaling
        notes.append(
            f"{asked}, assumed: products reach {share:.2f} of the {recipe.rate} peak and keep their inputs in {8 * recipe.bytes:.3g} bits; "
            "attention, router and output head stay in 16 bits"
        )
    elif recipe.rate not in ("bf16", "fp16"):
        notes.append(f"{q.chip.name} has no {recipe.rate} matrix units: products are computed in 16 bits")
    return notes


def _energy(ask: TrainAsk, q: Question, best: Choice) -> Energy | None:
    """Return the power of a layout, and the energy of the whole training."""
    days = best.wall_days or best.days
    return trained(ask, q.chip, best.devices, q.cluster.node.devices, best.time, best.mfu, days * 24 if days else None)


def read(path: Path) -> TrainPlan:
    """Read a plan.json of `meshwise plan`."""
    return plans.read(TrainPlan, path, _faults)


def _faults(plan: TrainPlan) -> Iterator[str]:
    """Yield the faults of a plan.json that would break the tables made from it."""
    if not plan.choices or min(plan.ask.batch, plan.ask.seq) <= 0:
        yield "it has no layouts, or no batch"
    Reliability(**plan.ask.failures)
    for row in plan.choices:
        for axis in axes.AXES:
            if axes.index(axis.name, row.layout[axis.name]) < axis.least:
                yield f"{axis.name} is {row.layout[axis.name]}, where the least is {axis.least}"
        if min(row.step, row.tokens_per_second, row.capacity) <= 0 or Layouts.from_row(row.layout).devices[0] != row.devices:
            yield "a layout takes no time, or its axes do not multiply to its devices"
        if set(row.time) != set(TRAIN_PARTS) or set(row.memory) != set(TRAIN_KINDS):
            yield "a layout has other parts than this version knows"
        if set(row.goodput) != {f.name for f in fields(goodput.Goodput)}:
            yield "a layout has other goodput figures than this version knows"
