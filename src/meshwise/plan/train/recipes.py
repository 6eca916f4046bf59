"""Recipes: what a program does in a release (attention kernel, loss, overlap, graphs, dtypes) as a plan assumes it, and other ways."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from meshwise import units
from meshwise.catalogue.chips import Chip
from meshwise.catalogue.frameworks import FLASH_SHARES, Framework, find_framework, flash_share
from meshwise.cost.axes import Row
from meshwise.cost.layout import Layouts
from meshwise.cost.precision import RECIPES
from meshwise.cost.train.compute import unstated_half_rate
from meshwise.cost.train.question import Question
from meshwise.cost.train.step import evaluate
from meshwise.cost.work import Train
from meshwise.errors import UserError, unknown
from meshwise.plan.ask import TrainAsk

FACTS = ("release", "attention", "loss", "overlap", "graphs", "gradients")  # options that state a recipe
MIN_GAIN_PERCENT, MIN_SAVED_SHARE = 0.5, 0.02
"""Percent of a step, and share of a device's memory, below which another recipe is not worth a sentence."""


def framework_of(ask: TrainAsk, name: str) -> Framework:
    """Return the framework of that name with the facts that the question states."""
    framework = find_framework(name, ask.release)
    return framework.told(attention=ask.attention, overlap=ask.overlap, graphs=ask.graphs, gradients=ask.gradients)


def changed(q: Question, **facts: str) -> Question:
    """Return a question with other facts of its program; on the same chip."""
    unknown_names = set(facts) - set(FACTS)
    if unknown_names:
        raise unknown("fact of a program", unknown_names.pop(), FACTS)
    release, loss = facts.pop("release", ""), facts.pop("loss", q.work.loss)
    before = q.work.framework
    other = find_framework(before.program, release) if release else before
    after = (other.with_compile() if release and q.work.compiled else other).told(**facts)
    return replace(q, work=replace(q.work, framework=after.on(q.chip.kind, q.chip.architecture), loss=loss))


def assumed(q: Question, ask: TrainAsk) -> tuple[str, ...]:
    """Return one note of the recipe that a plan assumes, without what the question states."""
    return assumed_of(q.work, q.chip, [name for name in FACTS if getattr(ask, name)])


def assumed_of(work: Train, chip: Chip, stated: Collection[str]) -> tuple[str, ...]:
    """Return one note of the recipe that a task on a chip assumes, without the facts that are stated."""
    f = work.framework
    facts = {
        "attention": f"{f.kernel(chip.architecture)} attention",
        "loss": f"{work.loss_kind} loss",
        "overlap": f"hides {' and '.join(f.overlap) or 'no communication'}",
        "graphs": f"{f.graphs} CUDA graphs" if f.graphs != "none" else "",
        "gradients": f"gradients reduced in {8 * f.wire_bytes(work.precision)} bits",
    }
    if chip.kind != "gpu":
        facts |= {"attention": "", "graphs": ""}
    told = [words for name, words in facts.items() if words and name not in stated]
    release = f" {f.release}" if f.release and "release" not in stated else ""
    recipe = (f"{f.name}{release}, assumed: {', '.join(told)}",) if told else ()
    return (*recipe, *_rate_note(work.precision, chip))


def _rate_note(precision: str, chip: Chip) -> tuple[str, ...]:
    """Return a note where a chip is planned in bf16 but states no rate of it."""
    if RECIPES[precision].rate != "bf16" or "bf16" in chip.flops or chip.kind != "gpu":
        return ()
    if "fp16" in chip.flops:
        return (f"{chip.name} has no bf16 matrix units: planned at its fp16 rate, which needs loss scaling (--precision fp16)",)
    return (f"{chip.name} states no bf16 rate: {unstated_half_rate(chip) / 1e12:.3g} TFLOP/s are assumed from its fp32 rate",)


@dataclass(frozen=True)
class Trial:
    """Another recipe for the same layout, and what it changes."""

    option: str
    percent: float  # change of the step's time
    saved: float  # bytes per device

    def __str__(self) -> str:
        changes = [f"{self.percent:+.1f}% time"] if abs(self.percent) >= MIN_GAIN_PERCENT else []
        if self.saved > 0:
            changes.append(f"{units.show(self.saved, 'bytes', binary=True, digits=3)} less per device")
        return f"with {self.option} {' and '.join(changes)}"


def sentences(q: Question, row: Row) -> list[str]:
    """Return what other recipes would change of a layout, in one sentence; none where nothing would help."""
    found = "; ".join(map(str, trials(q, row)))
    return [f"{found[0].upper()}{found[1:]}, in the same layout."] if found else []


def trials(q: Question, row: Row) -> list[Trial]:
    """Return the recipes under which a layout takes less time or memory, the largest gain first."""
    layouts = Layouts.from_row(row)
    before, found = evaluate(q, layouts), list[Trial]()
    for name, value in _options(q, row, float(before.time["launch"][0])):
        after = evaluate(changed(q, **{name: value}), layouts)
        percent = 100 * float(after.step[0] / before.step[0] - 1)
        saved = float(before.peak[0] - after.peak[0])
        worth = saved >= MIN_SAVED_SHARE * q.chip.memory
        if percent <= -MIN_GAIN_PERCENT or (worth and percent < MIN_GAIN_PERCENT):
            found.append(Trial(f"--{name} {value}", percent, saved if worth else 0.0))
    return sorted(found, key=lambda trial: trial.percent)


def _options(q: Question, row: Row, launch: float) -> Iterator[tuple[str, str]]:
    """Yield facts that could help: a faster attention kernel of this chip, a loss without logits, communication that is not hidden, graphs,
    and gradients in 16 bits."""
    f, architecture = q.work.framework, q.chip.architecture
    if q.chip.kind != "gpu":
        return
    own = {name: shares[architecture] for name, shares in FLASH_SHARES.items() if architecture in shares and name != "cudnn"}
    fastest = max(own, key=lambda name: own[name], default="")
    if fastest and own[fastest] > flash_share(f.kernel(architecture), architecture):
        yield "attention", fastest
    if q.work.loss_kind not in ("chunked", "fused") and q.work.objective.vocabulary:
        yield "loss", "fused"
    for axis, hidden in (("tp", f.overlaps_tp), ("ep", f.overlaps_experts)):
        if int(row[axis]) > 1 and not hidden:
            yield "overlap", axis
    if f.graphs == "none" and launch > 0:
        yield "graphs", "full"
    if f.reduced_bytes > 2 and int(Layouts.from_row(row).devices[0]) > 1:
        yield "gradients", "bf16"


def split_facts(text: str) -> tuple[dict[str, str], str]:
    """Return the facts of a program in a text such as 'tp=8,attention=fa2', and the rest."""
    facts: dict[str, str] = {}
    rest: list[str] = []
    for item in text.split(","):
        name, sign, value = item.strip().partition("=")
        if name in FACTS and sign:
            facts[name] = value.strip()
        elif facts and not sign and list(facts)[-1] == "overlap":  # overlap=ep,tp
            facts["overlap"] += f",{item.strip()}"
        else:
            rest.append(item)
    if any(not value for value in facts.values()):
        raise UserError(f"{text!r} states no value of a fact; expected one such as attention=fa2")
    return facts, ",".join(rest)
