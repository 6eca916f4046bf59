"""ServePlan: the best layouts to serve a model on given devices. `make` answers a ServeAsk, `read` opens a plan.json."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from meshwise import units
from meshwise.catalogue import calibrations, records
from meshwise.catalogue.quality import quality_note
from meshwise.cost.parts import SERVE_PARTS
from meshwise.cost.power import Energy
from meshwise.cost.serve.layouts import ServeLayout, unit
from meshwise.cost.serve.question import ServeQuestion
from meshwise.errors import UserError
from meshwise.models.formats import SAME_IN_GGUF, split_model_name
from meshwise.plan import plan as plans
from meshwise.plan.ask import ServeAsk
from meshwise.plan.serve import lookup
from meshwise.plan.serve.capacity import most_within
from meshwise.plan.serve.choice import ServeChoice, choice, contexts, doubts, on_cards
from meshwise.plan.serve.energy import served
from meshwise.plan.serve.refusal import refuse
from meshwise.plan.serve.search import Option, meets, search, with_speed

if TYPE_CHECKING:
    from meshwise.plan.serve.vary import ServePoints

Commands = dict[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class Miss:
    """A layout that does not fit."""

    name: str
    missing: float
    """Bytes that its fullest device lacks."""


@dataclass(frozen=True, kw_only=True, repr=False)
class ServePlan(plans.Plan[ServeAsk, ServeChoice]):
    """The best layouts for a ServeAsk, the nearest that do not fit, the reasons, and the commands that start the best one."""

    format: ClassVar[int] = 3
    kind: ClassVar[str] = "serve"
    stated: ClassVar[dict[str, tuple[str, ...]]] = {
        "cluster": ("name", "chip", "devices", "unit", "dollars_per_hour"), "weights": ("format", "bytes", "bits_per_weight"),
        "serving": ("name", "fitted_on", "date", "own_chip"),
    }  # fmt: skip
    ask: ServeAsk
    engine: str
    weights: dict[str, float | str]
    context: int
    """Tokens of one request, as given or as assumed."""
    fits: bool
    """Whether everything but the embedding is on devices, not in host memory."""
    choices: tuple[ServeChoice, ...]
    misses: tuple[Miss, ...]
    most: float
    """The most users, or requests per second, that the best layout serves within the targets; 0 without targets."""
    contexts: dict[str, int]
    """The longest context that fits in the best layout with as many requests, by KV cache type."""
    commands: Commands
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    serving: dict[str, str]
    """The calibration: its name, the data it was fitted on, the date, and whether it was fitted on this chip ('yes' or '')."""
    cluster: dict[str, str | int | float | None]
    """The devices that `--on` names: name, chips, number, dollars per device and hour."""
    versions: dict[str, str]
    energy: Energy | None = None
    """Power of the best layout at the load, and the energy of a million output tokens; None where a chip states no power limit."""

    def row(self, choice: ServeChoice) -> dict[str, Any]:
        return {key: value for key, value in records.plain(choice).items() if key != "devices"}

    def explain(self) -> list[str]:
        """Return the reasons why this layout is the best, one sentence each."""
        return list(self.reasons)

    def believe(self) -> list[str]:
        """Return what the speed of the best layout rests on: calibration, nearest measured runs, interval."""
        from meshwise.plan.serve import believe

        q = lookup.question(self.ask)
        return believe.reasons(q, with_speed(q, search(q).options[0]))

    def provenance(self) -> str:
        """Return one sentence where it was made with another version, model, cluster, engine or calibration than this machine has."""
        q = lookup.question(self.ask)
        chip = next((card.chip for card in q.cards if card.chip.name == self.cluster["chip"]), q.cards[0].chip)
        here = _versions(q, calibrations.choose_serve(chip, q.runtime.key or q.runtime.engine))
        if len({card.chip.key for card in q.cards}) > 1:  # whose calibration was stated depends on the layout
            del here["calibration"]
        return plans.provenance(self.versions, here)

    def vary(self, **axes: str) -> "ServePoints":
        from meshwise.plan.serve import vary

        return vary.answer(self.ask, [f"{name}={values}" for name, values in axes.items()])


def make(ask: ServeAsk, export: Callable[[ServeQuestion, ServeLayout], Commands]) -> ServePlan:
    """Plan every layout of the engine. `export` writes the commands that start one. DoesNotFit where none fits or meets the targets."""
    from meshwise.plan.serve import explain, measured

    q = lookup.question(ask)
    found = search(q)
    if not found.options or not meets(q, found.options[0]):
        raise refuse(q, found)
    best = found.options[0]
    reasons = explain.reasons(q, found, bool(ask.engine))
    reasons += measured.judge(q, found, ask.measured, ask.measured_of) if ask.measured else []
    try:
        commands, untold = export(q, best.layout), ()
    except UserError as error:  # an engine that no exporter writes for
        commands, untold = Commands(), (str(error),)
    chip = q.cards[best.layout.cards[0]].chip
    fitted, rent = calibrations.choose_serve(chip, q.runtime.key or q.runtime.engine), q.cluster.rent
    return ServePlan(
        ask=ask,
        engine=q.engine.name,
        weights={"format": q.weights.format, "bytes": float(q.weights.bytes), "bits_per_weight": q.weights.bits_per_weight},
        context=q.work.context,
        fits=on_cards(best),
        choices=tuple(choice(q, option) for option in found.options[: ask.top]),
        misses=tuple(Miss(name=option.layout.name, missing=-option.spare) for option in found.misses[:3]),
        most=most_within(q, best) if q.targets else 0.0,
        contexts=contexts(q, best),
        commands=commands,
        reasons=tuple(reasons),
        notes=(*_notes(ask, q, best), *untold),
        serving={
            "name": fitted.name,
            "fitted_on": fitted.fitted_on,
            "date": fitted.date,
            "own_chip": "yes" if chip.key in fitted.chips else "",
        },
        cluster={
            "name": q.cluster.name,
            "chip": " + ".join(dict.fromkeys(card.chip.name for card in q.cards)),
            "devices": q.cluster.devices,
            "unit": unit(q.cards),
            "dollars_per_hour": rent / q.cluster.devices * 3600 if rent is not None else None,
            "priced_by": q.cluster.priced_by,
        },
        versions=_versions(q, fitted),
        energy=served(ask, q, best),
    )


def _versions(q: ServeQuestion, fitted: object) -> dict[str, str]:
    """Return digests of what a question and its calibration hold."""
    return plans.versions(model=q.model.placed, cluster=q.cluster, engine=(q.engine, q.runtime), calibration=fitted)


def read(path: Path) -> ServePlan:
    """Read a plan.json of `meshwise serve`."""
    return plans.read(ServePlan, path, _faults)


def _faults(plan: ServePlan) -> Iterator[str]:
    """Yield the faults of a plan.json that would break the tables made from it."""
    if not plan.choices or any(set(row.time) != set(SERVE_PARTS) for row in plan.choices):
        yield "it has no layouts, or other parts than this version knows"


def _notes(ask: ServeAsk, q: ServeQuestion, best: Option) -> list[str]:
    """Return assumptions and warnings."""
    notes = [*q.model.notes, *q.cluster.notes]
    trained = q.model.decoder.context
    if trained and q.work.context > trained:
        notes.append(
            f"a context of {q.work.context:,} is longer than the {trained:,} that {q.model.name} was trained for: "
            "quality beyond that may be poor"
        )
    wide = {card.chip.name for card in q.cards if q.weights.format == "fp8" and "fp8" not in card.chip.flops}
    if wide:
        notes.append(f"{', '.join(sorted(wide))} has no fp8 units: weights are stored in fp8 and multiplied in 16 bits")
    own = f"not calibrated for {q.cards[best.layout.cards[0]].chip.name}"  # the line about the calibration says so
    notes += [f"{doubt}: the interval is wider" for doubt in doubts(q, best) if doubt != own]
    if not q.engine.server and best.layout.tp > 1:
        notes.append(
            "on several GPUs transformers runs its own layers, which are slower than the calibrated ones: an upper bound"
        )
    if not split_model_name(ask.model)[1] and not q.model.tensors:
        published = q.weights.format in (q.model.quantization, SAME_IN_GGUF.get(q.model.quantization))
        why = "which it is published in" if published else f"the usual one with {q.engine.name}"
        notes.append(f"no format given: {q.weights.format}, {why}, is assumed")
    quality = quality_note(q.weights.format, q.model.model_type)
    if quality:
        notes.append(f"quality of {q.weights.format}: {quality}")
    if not ask.context:
        notes.append(f"no --context given: {q.work.context:,} tokens per request")
    if not on_cards(best):
        need = units.show(best.footprints[0].bytes, "bytes", binary=True, digits=3)
        memory = q.cluster.node.host.memory
        notes.append(
            f"{need} of host memory needed" + (f", of {units.show(memory, 'bytes', binary=True, digits=3)}" if memory else "")
        )
    return notes
