"""Verdict: what a launch file says, what contradicts, whether it fits, how fast it is, and what would be better."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshwise.audit.check import train
from meshwise.audit.check.ask import CheckAsk
from meshwise.audit.check.changes import Change, applied, changes
from meshwise.audit.check.contradictions import findings
from meshwise.audit.check.layout import normal, row_of
from meshwise.audit.finding import Finding
from meshwise.catalogue import records
from meshwise.errors import UserError
from meshwise.output import Drawn
from meshwise.programs.program import Program
from meshwise.programs.read.files import Reading, read_sources
from meshwise.programs.read.unread import Unread
from meshwise.programs.source import Source
from meshwise.runs import derive
from meshwise.runs.fields import BY_NAME
from meshwise.runs.run import VARIABLES, Run, Value
from meshwise.units import GIB


@dataclass(frozen=True, kw_only=True, repr=False)
class Verdict(Drawn):
    """The answer of `meshwise check`."""

    program: str
    title: str
    version: str
    kind: str
    files: tuple[str, ...]
    facts: Run
    findings: tuple[Finding, ...]
    unknown: tuple[str, ...]  # reasons why the file cannot be predicted, one sentence each
    missing: tuple[str, ...]  # files that these refer to and that were not given
    notes: tuple[str, ...]
    on: str  # the part of the cluster that is used, in the words of `--on`; '' where none was named
    own: Any = None  # the prediction of the file's own layout: a Choice, or a serving option
    best: Any = None
    """The best layout of the same question, where it is better by more than a percent or the file's own does not fit."""
    fits: bool | None = None  # whether the layout fits; None where it cannot be predicted
    changes: tuple[Change, ...] = ()  # the best layout in the words of the file
    patched: Mapping[str, str] = field(default_factory=dict[str, str])
    """The texts of the files with these changes, where they can be applied."""
    plan_command: str = ""  # the command that plans the same question
    model: str = ""  # the model in one line: its parameters, and the known model of the same shape; '' where it is not known
    unread: tuple[Unread, ...] = ()  # keys of the files that the answer does not use

    @property
    def starts(self) -> bool:
        """Whether nothing is known to keep the program from starting."""
        return not any(finding.severity == "stops" for finding in self.findings)

    @property
    def code(self) -> int:
        """The exit code: 0 where it fits, or nothing says that it does not; 1 where it does not fit or cannot start."""
        return 0 if self.starts and self.fits is not False else 1

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per fact, with its origin."""
        return [
            {"fact": one.fact, "value": one.value, "how": one.how, "where": one.where, "key": one.key, "note": one.note}
            for one in self.facts
            if shown(one.fact)
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as JSON."""
        return {
            "program": self.program, "version": self.version, "kind": self.kind, "files": list(self.files), "on": self.on,
            "code": self.code, "starts": self.starts, "fits": self.fits, "facts": self.rows(),
            "findings": [{"severity": one.severity, "text": one.message, "where": list(one.where)} for one in self.findings],
            "unknown": list(self.unknown), "missing": list(self.missing), "notes": list(self.notes),
            "own": records.plain(self.own) if self.own is not None else None,
            "best": records.plain(self.best) if self.best is not None else None,
            "changes": [
                {"action": one.action, "key": one.key, "old": one.old, "new": one.new, "where": str(one.span or "")}
                for one in self.changes
            ],
            "plan": self.plan_command, "model": self.model,
            "not_read": [
                {"key": one.key, "where": str(one.span), "changes": one.changes, "like": one.like, "decides": one.decides}
                for one in self.unread
            ],
        }  # fmt: skip

    @property
    def line(self) -> str:
        """The verdict in one line, for `--quiet`."""
        stops = [finding.message for finding in self.findings if finding.severity == "stops"]
        if stops:
            return f"cannot start: {stops[0]}"
        if self.fits is False:
            return f"does not fit: {self.own.peak / GIB:.1f} GiB of {self.own.capacity / GIB:.1f} per device"
        if self.fits is None:
            return f"not predicted: {self.unknown[0] if self.unknown else 'nothing to predict'}"
        return f"fits: {self.own.name}"

    def save(self, out: str | Path) -> list[Path]:
        """Write the patched files to `out`, a folder where several change; UserError where nothing can be patched."""
        from meshwise.catalogue import files

        if not self.patched:
            why = "nothing is better" if not self.changes else "its changes have no single place in the files; make them by hand"
            raise UserError(f"--fix {out}: {why}")
        path = Path(out)
        folder = len(self.patched) > 1 or path.is_dir() or str(out).endswith("/")
        targets = {path / Path(name).name if folder else path: text for name, text in self.patched.items()}
        for target, text in targets.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            files.write(target, text)
        return list(targets)

    def __repr__(self) -> str:
        return f"<Verdict on {', '.join(self.files)}: {self.line}>"


def shown(fact: str) -> bool:
    """Return whether a fact is one of meshwise's own words, not a step on the way to one."""
    return fact in BY_NAME or fact.startswith(VARIABLES)


def judge(reading: Reading, ask: CheckAsk) -> Verdict:
    """Judge what the launch files of a training say."""
    program = reading.program
    facts = derive.complete(reading.facts, devices_of(ask.on), launched=True)
    judged = train.judge(program, facts, ask.on, ask.model, ask.price, withheld=reading.withheld)
    found = (*findings(program, facts), *judged.findings)
    own, best = judged.own, judged.best
    words, done = _better(reading, facts, judged, ask)
    fits = own.peak <= own.capacity if own is not None else None
    saved = reading.lessened if fits is False else ()
    fits = None if saved else fits
    return Verdict(
        program=program.name, title=program.title, version=program.version_of(facts), kind=program.kind, files=reading.files,
        facts=facts, findings=tuple(found),
        unknown=(*judged.unknown, *(f"it needs less with {text}, which is not counted" for text in saved)),
        missing=reading.missing, notes=(*reading.notes, *judged.notes), on=judged.on, own=own, best=best, fits=fits,
        changes=tuple(words), patched=done, plan_command=judged.command, model=judged.model, unread=reading.unread,
    )  # fmt: skip


def _better(reading: Reading, facts: Run, judged: train.Judged, ask: CheckAsk) -> tuple[list[Change], dict[str, str]]:
    """Return the best layout in the words of the files, and the files with it, where reading them again gives that layout."""
    best, better = judged.best, judged.better
    if best is None or better is None:
        return [], {}
    wanted = {**normal(best.layout), **task_of(facts)}
    tried = [changes(reading.programs, reading.facts, judged.mine, better, old=old) for old in (False, True)]
    for words in tried:
        done = applied(reading.texts, reading.facts, words, lambda texts: _layout(reading.program, texts, ask), wanted)
        if done:
            return words, done
    return tried[0], {}


def devices_of(on: str) -> int:
    """Return the devices of a cluster that `--on` names; 0 for none, or for a chip alone."""
    from meshwise.catalogue.chips import known_chip
    from meshwise.catalogue.clusters import find_cluster

    return 0 if not on or known_chip(on) is not None else find_cluster(on).devices


def task_of(facts: Run) -> dict[str, Value | None]:
    """Return what a better layout must not change: the batch, the sequence length and the tokens."""
    return {name: facts.value(name) for name in ("batch", "seq", "tokens")}


def _layout(program: Program, texts: Mapping[str, str], ask: CheckAsk) -> Mapping[str, Value | None]:
    """Return the layout and the task that changed files say; nothing where they cannot be read."""
    try:
        reading = read_sources([Source(name, text) for name, text in texts.items()], ask.answers)
    except UserError:
        return {}
    facts = derive.complete(reading.facts, devices_of(ask.on), launched=True)
    if any(one.severity == "stops" for one in findings(program, facts)):
        return {}  # flags that exclude each other
    return {**row_of(program, facts)[0], **task_of(facts)}
