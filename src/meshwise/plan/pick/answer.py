"""Pick: the open models that run on a machine as fast and with as much context as asked for, those with the best published scores first."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from meshwise import units
from meshwise.catalogue import here, records
from meshwise.catalogue.quality import quality_note
from meshwise.catalogue.releases import USES, Offer, Release, Score, Use, Weights, offers
from meshwise.cost.serve.layouts import ServeLayout
from meshwise.cost.serve.question import ServeQuestion
from meshwise.errors import DoesNotFit
from meshwise.models import find
from meshwise.models.count import flat
from meshwise.models.formats import split_model_name
from meshwise.models.model import Model
from meshwise.output import Drawn
from meshwise.plan.pick import ranking
from meshwise.plan.pick.ask import PickAsk
from meshwise.plan.pick.trial import LEAST_BITS, Failure, Machine, Trial, best, machine, too_large
from meshwise.plan.serve.choice import doubts
from meshwise.plan.serve.energy import served
from meshwise.units import GIB

Starter = Callable[[ServeQuestion, ServeLayout, Offer], tuple[str, ...]]  # returns the lines that download and start a model


@dataclass(frozen=True, kw_only=True)
class Picked:
    """One model in the format, engine and layout that suit the machine."""

    model: str  # its hub id, or the file of the user
    preset: str
    format: str
    engine: str
    layout: str
    speed: float
    """Tokens per second of one request with half of the context in use; prompt tokens per second of an embedding model."""
    low: float
    high: float  # 90% of measured tokens/s lie between these; 0 for an embedding model, whose interval is not known
    throughput: float  # tokens per second of all users, prompts included
    uncertain: str  # why the interval is wide
    memory: float  # bytes on the fullest device
    capacity: float  # bytes of that device
    spare: float  # bytes that it has left
    host_bytes: float
    context: int
    longest: int  # the longest context that fits and that it was trained for
    licence: str
    date: str
    scores: dict[str, float]  # published scores for the use, in percent; empty where none is known
    source: str
    url: str
    recalled: bool  # whether the scores were written down from memory of the source
    watts: float  # at the wall while it answers; 0 where the chip states no power limit
    kwh: float  # of a million output tokens
    grams: tuple[float, ...]  # grams of CO2 of a million output tokens: at the mean of the grid, its best and its worst hour
    quality: str  # what is published of the loss in this format
    commands: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Pick(Drawn):
    """The answer to a PickAsk."""

    ask: PickAsk
    on: str  # the machine as `--on` names it
    machine: str  # its devices in words
    models: tuple[Picked, ...]  # models with published scores, the best first
    unranked: tuple[Picked, ...]  # models that fit too, and whose scores for this use are not known here
    too_large: int
    too_slow: int  # models with better scores that were passed over

    @property
    def best(self) -> Picked:
        return (*self.models, *self.unranked)[0]

    @property
    def command(self) -> str:
        """The command that reproduces this answer."""
        return self.ask.command()

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat dict per model, with the columns of `--csv`."""
        return [flat({**records.plain(one), "commands": "\n".join(one.commands)}) for one in (*self.models, *self.unranked)]

    def to_json(self) -> dict[str, Any]:
        """Return the answer as JSON values."""
        return {
            "on": self.on, "machine": self.machine, "for": self.ask.purpose, "context": self.ask.tokens,
            "tokens_per_second": self.ask.speed, "models": records.plain(self.models), "unranked": records.plain(self.unranked),
            "too_large": self.too_large, "too_slow": self.too_slow, "command": self.command,
        }  # fmt: skip

    def to_frame(self) -> Any:
        """Return the rows as a polars or pandas data frame."""
        return records.frame(self.rows())


def answer(ask: PickAsk, start: Starter) -> Pick:
    """Return the models that fit and are fast enough, by published quality. DoesNotFit where there is none: the smallest that would
    fit, and what is missing."""
    on = machine(ask.on or here.machine_text())
    found, failures = fitting(ask, on, ranking.order(ask.purpose, offers()), ask.top)
    own, _ = fitting(ask, on, [mine(name, ask) for name in ask.model], len(ask.model))
    rest = ranking.unknown(ask.purpose, offers())
    others, more = fitting(ask, on, rest, max(2, ask.top - len(found)))
    if not found and not own and not others:
        raise nothing(ask, on, [*failures, *more])
    picked = [row(ask, trial, start) for trial in (*own, *found, *others)]
    ranked = [one for one in picked if one.scores]
    return Pick(
        ask=ask, on=on.text, machine=_words(on), models=tuple(ranked), unranked=tuple(one for one in picked if not one.scores),
        too_large=sum(not failure.speed and not failure.reason for failure in failures),
        too_slow=sum(bool(failure.speed) for failure in failures),
    )  # fmt: skip


def mine(name: str, ask: PickAsk) -> Offer:
    """Return a model of the user's own as an offer without scores."""
    uses = tuple[Use, ...](use for use in USES if use == ask.purpose)
    return Offer(name, Weights(), Release(title="", url="", by="", uses=uses, models={}), uses, ())


def fitting(ask: PickAsk, on: Machine, candidates: Iterable[Offer], most: int) -> tuple[list[Trial], list[Failure]]:
    """Return the first models in this order that fit and are fast enough, and what the others passed over lack."""
    found: list[Trial] = []
    failures: list[Failure] = []
    for offer in candidates:
        if len(found) >= most:
            break
        model = _model(offer.id)
        made = Failure(offer, "") if too_large(model, on) else best(ask, on, offer, model)
        found += [made] if isinstance(made, Trial) else []
        failures += [made] if isinstance(made, Failure) else []
    return found, failures


@cache
def _model(name: str) -> Model:
    """Return the model of a hub id or a file; another machine asks for the same ones."""
    return find.find_model(name if name.lower().endswith(".gguf") else split_model_name(name)[0])


def row(ask: PickAsk, trial: Trial, start: Starter) -> Picked:
    """Return a trial in SI figures, with its commands."""
    q, option, offer = trial.q, trial.option, trial.offer
    need, spare, card = min(zip(option.footprints[1:], option.spares, option.layout.cards, strict=True), key=lambda one: one[1])
    low, high = (0.0, 0.0) if ask.purpose == "embedding" else trial.interval
    known: list[Score] = ranking.scores_for(ask.purpose, offer)
    source = known[0].source if known else offer.release
    energy = served(ask, q, option)
    return Picked(
        model=offer.id, preset=q.model.name, format=q.weights.format, engine=q.engine.name, layout=option.layout.name, speed=trial.speed,
        low=low, high=high, throughput=option.throughput, uncertain=", ".join(doubts(q, option)),
        memory=need.bytes, capacity=q.cards[card].chip.memory, spare=spare, host_bytes=option.footprints[0].bytes,
        context=q.work.context, longest=trial.longest, licence=offer.release.licence, date=offer.release.date,
        scores={one.benchmark: one.percent for one in known}, source=source.title, url=source.url, recalled=source.recalled,
        watts=energy.wall if energy else 0.0, kwh=(energy.kwh or 0.0) if energy else 0.0, grams=energy.grams if energy else (),
        quality=quality_note(q.weights.format, q.model.model_type), commands=start(q, option.layout, offer),
    )  # fmt: skip


def _words(on: Machine) -> str:
    devices = ", ".join(
        f"{count * number} x {chip.name} with {chip.memory / GIB:.0f} GiB"
        for count, node in on.cluster.nodes
        for number, chip in node.chips
    )
    memory = on.cluster.node.host.memory
    return devices + (f", {memory / GIB:.0f} GiB of host memory" if memory else "")


def nothing(ask: PickAsk, on: Machine, failures: list[Failure]) -> DoesNotFit:
    """Return the error for a machine on which nothing fits or is fast enough: what is nearest, and what it lacks."""
    fast = f" at {ask.speed:g} tokens/s" if ask.speed else ""
    head = f"no model for {ask.purpose} runs on {on.text} with {ask.tokens:,} tokens of context{fast}"
    slow = [failure for failure in failures if failure.speed]
    if slow:
        fastest = max(slow, key=lambda failure: failure.speed)
        return DoesNotFit(f"{head}: the fastest that fits, {fastest.offer.id} in {fastest.format}, gives {fastest.speed:.3g}")
    short = [failure for failure in failures if failure.missing]
    if short:
        near = min(short, key=lambda failure: failure.missing)
        lacks = units.show(near.missing, "bytes", binary=True, digits=2)
        return DoesNotFit(f"{head}: the smallest, {near.offer.id} in {near.format}, needs {lacks} more on its fullest device")
    refused = [failure for failure in failures if failure.reason]
    if refused:  # the context, for the most part
        nearest = max(refused, key=lambda failure: _model(failure.offer.id).decoder.context or 0)
        return DoesNotFit(f"{head}: the nearest, {nearest.offer.id}, {nearest.reason}")
    if not failures:
        return DoesNotFit(head)
    small = min(failures, key=lambda failure: _model(failure.offer.id).params)
    size = _model(small.offer.id).params * LEAST_BITS / 8
    need, lacks = (units.show(value, "bytes", binary=True, digits=2) for value in (size, size - on.bytes))
    return DoesNotFit(
        f"{head}: the weights of the smallest, {small.offer.id}, take {need} in 4 bits, {lacks} more than there are"
    )
