"""Compared: the same trace through several deployments, beside each other."""

from dataclasses import dataclass
from typing import Any

from meshwise.catalogue import records
from meshwise.models.count import flat
from meshwise.output import Drawn
from meshwise.replay import deployment as deployments
from meshwise.replay.answer import Figures, Setting, simulated, targets_of
from meshwise.replay.ask import ReplayAsk


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One deployment with its figures, or why it has none."""

    name: str
    figures: Figures | None
    refusal: str = ""


@dataclass(frozen=True, kw_only=True, repr=False)
class Compared(Drawn):
    """Deployments beside each other."""

    ask: ReplayAsk
    title: str
    plan: str
    trace: str
    requests: int
    variants: tuple[Variant, ...]
    best: int = -1  # number of the best one; -1 where none holds the targets, or none was looked for
    by: str = ""  # the kind of saving of the best one: money or energy; '' where none was looked for
    targeted: bool = False  # whether there are targets
    flags: tuple[str, ...] = ()  # words of the command that are no fields of the question
    notes: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        return self.ask.command(*self.flags)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "replays", **records.printable(records.plain(self))}

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat row per deployment, with the columns of `--csv`."""
        return [
            flat({"name": one.name, "refusal": one.refusal, **(records.plain(one.figures) if one.figures else {})})
            for one in self.variants
        ]


def variant(at: Setting, name: str) -> Variant:
    """Replay a setting once."""
    return Variant(name=name, figures=simulated(at, deployments.fleet(at.deployment, at.ask, at.facts))[0])


def compared(at: Setting, title: str, variants: list[Variant], **more: Any) -> Compared:
    """Return variants beside each other."""
    return Compared(
        ask=at.ask, title=title, plan=deployments.described(at.deployment), trace=at.facts.name, requests=at.facts.requests,
        variants=tuple(variants), targeted=bool(targets_of(at)), **more,
    )  # fmt: skip
