"""Audit: files read, figures worked out, findings, what the planner expects and would try next, and a verdict in words."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from meshwise.audit.expected import serve, train
from meshwise.audit.expected.serve import Served
from meshwise.audit.expected.train import Expectation, Next
from meshwise.audit.figures import Figures
from meshwise.audit.finding import Finding, ranked
from meshwise.audit.logs import detect
from meshwise.audit.logs.columns import FIELDS
from meshwise.audit.logs.run import Numbers, Reading, Run, Skips, Texts
from meshwise.audit.rules import across_runs, one_run
from meshwise.audit.rules import claims as said
from meshwise.catalogue import files as catalogue

FORMAT = 1


@dataclass(frozen=True)
class File:
    """One file as it was read."""

    name: str
    format: str
    runs: int
    statements: int
    skipped: tuple[str, ...]


@dataclass(frozen=True)
class Audit:
    files: tuple[File, ...]
    runs: tuple[Figures, ...]
    findings: tuple[Finding, ...]
    expected: tuple[Expectation, ...]
    served: tuple[Served, ...]
    tries: tuple[Next, ...]
    notes: tuple[str, ...]
    verdict: str

    def rows(self) -> list[dict[str, Any]]:
        """One row per run, SI units; what is not known is left out."""
        priced = {id(e.figures): e for e in self.expected}
        scaled = scaling(self.runs)
        speeds = {id(one.figures): one for one in self.served}
        return [row_of(f, priced.get(id(f)), scaled.get(id(f), math.nan), speeds.get(id(f))) for f in self.runs]

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "verdict": self.verdict,
            "files": [asdict(file) for file in self.files],
            "findings": [asdict(finding) for finding in self.findings],
            "next": [asdict(one) | {"words": one.words} for one in self.tries],
            "notes": list(self.notes),
            "runs": self.rows(),
        }


def read(paths: Sequence[Path], format_name: str, numbers: Numbers, texts: Texts) -> list[tuple[str, Reading]]:
    """Every file; what was told on the command line fills in what a run leaves unsaid."""
    found: list[tuple[str, Reading]] = []
    for given in paths:
        path = given if given.exists() else catalogue.files("measurements", ".csv").get(str(given), given)  # a built-in table
        reading = detect.read_file(path, format_name)
        reading.runs = [run.with_defaults(numbers, texts) for run in reading.runs]
        found.append((path.name, reading))
    return found


def told(numbers: Numbers, texts: Texts) -> tuple[str, Reading]:
    """The run that the command line describes."""
    reading = Reading("flags")
    reading.add_run(Run(where="the run", numbers=numbers, texts=texts, section="flags"))
    return "flags", reading


def audit(readings: Sequence[tuple[str, Reading]], *, planned: bool = True) -> Audit:
    """All of it. `planned`: ask the planner too, which takes most of the time."""
    runs = [Figures(sound(run, reading.skipped), name) for name, reading in readings for run in reading.runs]
    claims = [(name, claim) for name, reading in readings for claim in reading.claims]
    findings = [one for f in runs if not one_run.failed(f) for rule in one_run.RULES for one in rule(f)]
    findings += [one for rule in across_runs.RULES for one in rule(runs)]
    findings += [one for rule in said.RULES for one in rule(claims, runs)]
    grades = {name: claim.text for name, claim in reversed(claims) if claim.kind == "grade"}
    priced, missing = train.expectations(runs) if planned else ([], {})
    answered, unknown = serve.expectations(runs) if planned else ([], {})
    missing |= unknown
    findings += train.compared(priced, grades)
    findings += serve.compared(answered)
    findings += train.unpriced(runs, {e.figures.where for e in priced}, grades)
    doubted = frozenset(place for one in findings if one.sure != "look" for place in one.where)
    tries = train.next_to_try(priced, doubted) if planned else []
    shown = ranked(findings)
    files = tuple(_file(name, reading) for name, reading in readings)
    return Audit(
        files,
        tuple(runs),
        tuple(shown),
        tuple(priced),
        tuple(answered),
        tuple(tries),
        tuple(_notes(runs, missing)),
        verdict(runs, claims, shown, priced, doubted),
    )


BOUNDS = {"seconds": (1e-9, 1e9), "bytes": (1.0, 1e18), "rate": (1e-9, 1e15), "flops": (1e3, 1e21), "share": (1e-9, 100.0)}
"""What a figure can be at all; a count is from 1 to a quintillion, devices up to ten million."""
MAY_BE_ZERO = frozenset({"zero_stage", "loss", "loss_step", "prompt", "output", "nans", "steps"})


def sound(run: Run, skipped: Skips) -> Run:
    """Without figures that nothing can have: no time is zero, and no cluster has 1e30 devices."""
    kept: dict[str, float] = {}
    for name, value in run.numbers.items():
        field = FIELDS.get(name.replace("_", ""))
        low, high = BOUNDS.get(
            field.quantity if field else "", (1.0, 1e7 if name in ("n_gpus", "nodes", "dp", "tp", "pp", "cp") else 1e18)
        )
        if name in MAY_BE_ZERO or low <= value <= high:
            kept[name] = value
        else:
            skipped.add(f"{name} is {value:.3g}, which nothing can have", run.where)
    return run if len(kept) == len(run.numbers) else replace(run, numbers=kept)


def _file(name: str, reading: Reading) -> File:
    return File(name, reading.format, len(reading.runs), len(reading.claims), tuple(reading.skipped.lines()))


def _notes(runs: Iterable[Figures], missing: dict[str, int]) -> list[str]:
    failures = Counter(why for f in runs if (why := one_run.why_it_failed(f)))
    notes = [f"{count} failed run{'s' * (count > 1)} could not have run: {why}" for why, count in failures.items()]
    reasons = sorted(missing, key=lambda reason: -missing[reason])
    if reasons:
        told = "; ".join(f"{missing[reason]} x {reason}" for reason in reasons[:4])
        notes.append(f"not compared with the planner: {told}{'; ...' * (len(reasons) > 4)}")
    return notes


def scaling(runs: Sequence[Figures]) -> dict[int, float]:
    """Rate a device over that of the smallest number of devices of the same model, length and file: the fastest run of each."""
    groups: dict[tuple[object, ...], list[Figures]] = {}
    for f in runs:
        if f.rate > 0 and f.devices > 0:
            groups.setdefault(
                (f.source, f.run.get("params"), f.run.text("model"), f.run.get("seq_len"), f.run.get("n_layers")), []
            ).append(f)
    found: dict[int, float] = {}
    for group in groups.values():
        fewest = min(f.devices for f in group)
        base = max(f.rate / f.devices for f in group if f.devices == fewest)
        found |= {id(f): f.rate / f.devices / base for f in group if f.devices > fewest}
    return found


def row_of(f: Figures, e: Expectation | None, scaled: float, speed: Served | None) -> dict[str, Any]:
    name, ratio = f.used
    row: dict[str, Any] = {
        "where": f.where,
        "model": f.model.name if f.model else f.run.text("model"),
        "params": f.shape.params,
        "chip": f.chip.key if f.chip else f.run.text("gpu"),
        "devices": f.devices,
        "layout": {
            axis: int(f.run.get(axis))
            for axis in ("dp", "tp", "pp", "cp", "ep", "micro_batch", "zero_stage")
            if f.run.stated(axis)
        },
        "batch": f.batch,
        "seq": f.run.get("seq_len"),
        "tokens_per_step": f.tokens,
        "seconds": f.seconds,
        "tokens_per_second": f.rate,
        "stated_tokens_per_second": f.stated_rate,
        "tflops": {key: value / 1e12 for key, value in f.tflops.items()},
        "mfu": f.mfu,
        "formula_used": name,
        "printed_over_formula": ratio,
        "memory": f.memory,
        "expected_seconds": e.seconds if e else math.nan,
        "expected_memory": e.memory if e else math.nan,
        "scaling_efficiency": scaled,
        "rank_balance": f.balance,
        "dollars_per_million_tokens": f.dollars,
        "prefill": f.run.get("prefill"),
        "decode": f.run.get("decode"),
        "expected_prefill": speed.prefill if speed and f.run.stated("prefill") else math.nan,
        "expected_decode": speed.decode if speed and f.run.stated("decode") else math.nan,
        "prompt": f.run.get("prompt"),
        "output": f.run.get("output"),
        "steps": f.run.get("steps"),
        "first_loss": f.run.get("loss"),
    }
    return {
        key: value
        for key, value in row.items()
        if value not in ("", {}) and not (isinstance(value, float) and not math.isfinite(value))
    }


def verdict(
    runs: Sequence[Figures],
    claims: Sequence[object],
    findings: Sequence[Finding],
    priced: Sequence[Expectation],
    doubted: frozenset[str],
) -> str:
    """What to make of it, in a few sentences."""
    if not runs and not claims:
        return "Nothing was found that could be checked."
    if not claims and not findings and all(len(f.run.numbers) < 2 for f in runs):
        return "One figure alone contradicts nothing: state more of the run, such as its step time, batch and devices."
    by = {sure: [one for one in findings if one.sure == sure] for sure in ("sure", "likely", "look")}
    rules = ", ".join(dict.fromkeys(one.rule for one in (*by["sure"], *by["likely"])))
    whole = {f.where for f in runs}
    bad = len(whole & doubted)
    words: list[str] = []
    if by["sure"]:
        words.append(
            f"It does not add up: {_counted(len(by['sure']), 'thing')} cannot be right"
            + (f", {len(by['likely'])} more probably {'is' if len(by['likely']) == 1 else 'are'} not" if by["likely"] else "")
            + f" ({rules})."
        )
    elif by["likely"]:
        words.append(f"Ask before using it: {_counted(len(by['likely']), 'thing')} probably not right ({rules}).")
    elif by["look"]:
        words.append(f"It adds up, with {_counted(len(by['look']), 'thing')} to look at.")
    else:
        words.append("Everything that could be checked adds up.")
    if runs and bad:
        words.append(
            f"{bad} of {len(runs)} runs should not be used as they stand."
            if bad < len(runs)
            else "No run of it should be used as it stands."
        )
    ratios = [e.slower for e in priced if e.case.timed and e.figures.where not in doubted]
    if ratios:
        middle = statistics.median(ratios)
        words.append(
            f"The others take {middle:.2f} times the planner's step time in the median of {len(ratios)}."
            if bad
            else f"Its step time is {middle:.2f} times the planner's{f', in the median of {len(ratios)}' * (len(ratios) > 1)}."
        )
    return " ".join(words)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"
