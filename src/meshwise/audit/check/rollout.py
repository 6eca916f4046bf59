"""Check of a file of a program that trains on generated answers: what it says, whether it fits, how long a step takes, what is faster."""

from dataclasses import dataclass, replace
from typing import Any

from meshwise.audit.check.ask import CheckAsk
from meshwise.audit.check.contradictions import shown
from meshwise.audit.check.verdict import Verdict
from meshwise.audit.finding import Finding, contradiction
from meshwise.catalogue import clusters
from meshwise.catalogue.rl_programs import find_rl_program
from meshwise.errors import DoesNotFit, UserError, quoted
from meshwise.models import find
from meshwise.plan.ask import TrainAsk
from meshwise.plan.rl.plan import RolloutPlan, make
from meshwise.plan.rl_fields import NO_MODEL
from meshwise.programs.read.files import Reading
from meshwise.programs.rl.facts import question_of
from meshwise.runs.run import Run

BETTER = 0.95  # seconds of another split over the file's own from which on it is worth a line


@dataclass(frozen=True, kw_only=True, repr=False)
class RolloutVerdict(Verdict):
    """The answer of `meshwise check` for such a file."""

    plan: RolloutPlan | None = None  # the prediction of the file's own split and layout
    better: tuple[str, ...] = ()  # sentences on a faster split of the same devices

    @property
    def line(self) -> str:
        stops = [finding.message for finding in self.findings if finding.severity == "stops"]
        if stops:
            return f"cannot start: {stops[0]}"
        if self.fits is False:
            return f"does not fit: {self.unknown[0]}" if self.unknown else "does not fit"
        if self.plan is None:
            return f"not predicted: {self.unknown[0] if self.unknown else 'nothing to predict'}"
        best = self.plan.best
        return f"fits: {best.name}, {best.step:.4g} s/step ({best.interval[0]:.3g} to {best.interval[1]:.3g})"

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {"predicted": self.plan.to_json() if self.plan else None, "better": list(self.better)}

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per fact, with its origin."""
        return [
            {"fact": one.fact, "value": one.value, "how": one.how, "where": one.where, "key": one.key, "note": one.note}
            for one in self.facts
        ]


def judge(reading: Reading, ask: CheckAsk) -> RolloutVerdict:
    """Judge what a file says on a cluster."""
    program, facts = reading.program, reading.facts
    plan, fits, better = None, None, ()
    unknown: list[str] = []
    asked: TrainAsk | None = None
    findings = list(_contradictions(facts))
    try:
        asked = question_of(program.framework, facts, ask.on, ask.model, ask.answers)
        asked = replace(asked, price=ask.price or asked.price, model=ask.model or _known(asked.model),
                        critic=_known(asked.critic), reward=_known(asked.reward), teacher=_known(asked.teacher))  # fmt: skip
        findings += _devices(facts, asked)
        plan, fits = make(asked), True
        better = _better(asked, plan)
    except DoesNotFit as error:
        unknown, fits = [str(error)], False
    except UserError as error:
        unknown = [str(error)]
    known = find_rl_program(program.framework)
    assumed = ("answers are assumed to have the longest length: --set answer=900:4k states their mean and the longest",)
    return RolloutVerdict(
        program=program.name, title=program.title, version=program.version, kind=program.kind, files=reading.files, facts=facts,
        findings=tuple(findings), unknown=tuple(unknown), missing=reading.missing,
        notes=(*reading.notes, *(assumed if known and not {"answer", "lengths"} & set(ask.answers) else ())),
        on=asked.on if asked else "", fits=fits, plan=plan, better=better, plan_command=asked.command() if asked else "",
    )  # fmt: skip


def _known(name: str) -> str:
    """Return the name of a model that a file states, as it is found here: neither the hub nor another folder is read for it."""
    if name in NO_MODEL or not name:
        return name
    model = find.named(name)
    if model is None:
        raise UserError(f"{quoted(name)} is no preset: --model names one, or a config.json")
    return name if find.find_preset(name) or name.endswith(".json") else model.name


def _better(asked: TrainAsk, plan: RolloutPlan) -> tuple[str, ...]:
    """Return what is faster on the same devices, where layout, engine and split are free."""
    free = replace(asked, fix=(), mode="", rollout_devices=0, engine_tp=0, eager=False)
    try:
        best = make(free)
    except UserError:
        return ()
    if best.best.step > BETTER * plan.best.step:
        return ()
    gain = 1 - best.best.step / plan.best.step
    one = best.best
    return (
        f"{gain:.0%} faster: {one.name}, training {one.train_layout} ({one.framework}), generation {one.rollout_layout}: {free.command()}",
    )


def _contradictions(facts: Run) -> list[Finding]:
    """Return what keeps the program from starting: an update larger than a step."""
    prompts, each = facts.get("prompts"), facts.get("update_prompts")
    if prompts is None or each is None or not isinstance(prompts.value, int) or not isinstance(each.value, int):
        return []
    if each.value <= prompts.value or each.how == "default":
        return []
    return [
        contradiction(
            "stops", f"an update takes {each.value:,} prompts, and a step has {prompts.value:,}", (shown(each), shown(prompts))
        )
    ]


def _devices(facts: Run, asked: TrainAsk) -> list[Finding]:
    """Return a finding where a file names more devices than there are."""
    total = clusters.find_cluster(asked.on).devices
    nodes, inside, apart = (facts.value(name) for name in ("nodes", "devices_per_node", "rollout_devices"))
    if not isinstance(nodes, int) or not isinstance(inside, int):
        return []
    separate = isinstance(apart, int) and asked.framework != "nemo-rl"  # NeMo RL counts all nodes in one
    used = nodes * inside + (apart if separate and isinstance(apart, int) else 0)
    if used <= total:
        return []
    return [contradiction("stops", f"it uses {used:,} devices, and {asked.on} has {total:,}")]
