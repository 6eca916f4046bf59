"""Audit: read files, derive figures, collect findings, compare with the planner's predictions, and state a verdict in words."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwise.audit.figures import Figures
from meshwise.audit.finding import CERTAINTIES, Finding, sort_findings
from meshwise.audit.rules import across_runs, claims, one_run
from meshwise.audit.rules.claims import Statement
from meshwise.catalogue import files as catalogue
from meshwise.output import Drawn
from meshwise.programs.logs import detect
from meshwise.runs.fields import BY_NAME
from meshwise.runs.reading import Reading, Skips
from meshwise.runs.run import Run, Stated
from meshwise.runs.table import SERVE_FIGURES, SIZES

if TYPE_CHECKING:
    from meshwise.audit.serve import ServePrediction
    from meshwise.audit.train import Suggestion, TrainPrediction

FORMAT_VERSION = 2  # version of the JSON


@dataclass(frozen=True)
class File:
    """One file that was read, with a count of its contents."""

    name: str
    format: str
    runs: int
    statements: int
    skipped: tuple[str, ...]


@dataclass(frozen=True)
class Predictions:
    """The planner's figures for the runs of an audit; empty if it was not asked."""

    train: tuple["TrainPrediction", ...] = ()
    serve: tuple["ServePrediction", ...] = ()
    suggestions: tuple["Suggestion", ...] = ()
    findings: tuple[Finding, ...] = ()
    missing: tuple[tuple[str, int], ...] = ()  # reasons why runs could not be predicted, each with its number of runs
    assumed: tuple[str, ...] = ()  # what is assumed of the programs that ran


@dataclass(frozen=True, repr=False)
class Audit(Drawn):
    """The runs that were read, their findings, and the planner's predictions for them."""

    files: tuple[File, ...]
    runs: tuple[Figures, ...]
    findings: tuple[Finding, ...]
    predictions: Predictions
    notes: tuple[str, ...]
    verdict: str

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per run, in SI units, without the values that are not known."""
        train = {id(p.figures): p for p in self.predictions.train}
        serve = {id(p.figures): p for p in self.predictions.serve}
        scaled = scaling(self.runs)
        return [row_of(f, train.get(id(f)), serve.get(id(f)), scaled.get(id(f), math.nan)) for f in self.runs]

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT_VERSION,
            "verdict": self.verdict,
            "files": [asdict(file) for file in self.files],
            "findings": [asdict(finding) for finding in self.findings],
            "next": [asdict(suggestion) | {"message": suggestion.message} for suggestion in self.predictions.suggestions],
            "notes": list(self.notes),
            "runs": self.rows(),
        }

    def __repr__(self) -> str:
        return f"<Audit, runs: {len(self.runs)}, findings: {len(self.findings)}. {self.verdict}>"


def read_files(paths: Sequence[Path], format_name: str, more: Run) -> list[tuple[str, Reading]]:
    """Read files, or built-in tables by name. `more` fills in fields that the runs do not state."""
    readings: list[tuple[str, Reading]] = []
    for given in paths:
        path = given if given.exists() else catalogue.files("measurements", ".csv").get(str(given), given)
        reading = detect.read_file(path, format_name)
        reading.runs = [run.merged(more) for run in reading.runs]
        readings.append((path.name, reading))
    return readings


def read_flags(run: Run) -> tuple[str, Reading]:
    """Return the run that command-line flags describe, in the same form as a file."""
    reading = Reading("flags")
    reading.add_run(replace(run, where="the run", section="flags"))
    return "flags", reading


def audit(readings: Sequence[tuple[str, Reading]], *, planned: bool = True) -> Audit:
    """Audit files that were read. `planned`: compare with the planner's predictions too, which takes most of the time."""
    runs = [Figures(drop_impossible(run, reading.skipped), name) for name, reading in readings for run in reading.runs]
    statements = [Statement(name, claim) for name, reading in readings for claim in reading.claims]
    grades = {s.source: s.claim.text for s in reversed(statements) if s.claim.kind == "grade"}
    findings = [finding for f in runs if not one_run.failed(f) for rule in one_run.RULES for finding in rule(f)]
    findings += [finding for rule in across_runs.RULES for finding in rule(runs)]
    findings += [finding for rule in claims.RULES for finding in rule(statements, runs)]
    predictions = _ask_planner(runs, findings, grades) if planned else Predictions()
    findings += predictions.findings
    predicted = {p.figures.where for p in predictions.train}
    findings += [
        finding for f in runs if f.where not in predicted for finding in one_run.low_utilization(f, grades.get(f.source, ""))
    ]
    shown = sort_findings(findings)
    return Audit(
        tuple(_file(name, reading) for name, reading in readings),
        tuple(runs),
        tuple(shown),
        predictions,
        (*predictions.assumed, *_notes(runs, predictions.missing)),
        verdict(runs, statements, shown, predictions.train, doubted_places(findings)),
    )


def _ask_planner(runs: Sequence[Figures], findings: Sequence[Finding], grades: dict[str, str]) -> Predictions:
    from meshwise.audit import train

    trained, missing = train.predict_runs(runs)
    compared = [*train.compare(trained, grades)]
    served: list[ServePrediction] = []
    if any(f.served for f in runs):
        from meshwise.audit import serve

        served, more_missing = serve.predict_runs(runs)
        missing = Counter(missing) + Counter(more_missing)
        compared += serve.compare(served)
    suggested = train.suggest_layouts(trained, doubted_places([*findings, *compared]))
    assumed = tuple(train.assumed_recipes(trained))
    return Predictions(tuple(trained), tuple(served), tuple(suggested), tuple(compared), tuple(missing.items()), assumed)


def doubted_places(findings: Iterable[Finding]) -> frozenset[str]:
    """Return the places with a certain or likely finding."""
    return frozenset(place for finding in findings if finding.certainty != "unusual" for place in finding.where)


BOUNDS = {"seconds": (1e-9, 1e9), "bytes": (1.0, 1e18), "rate": (1e-9, 1e15), "flops": (1e3, 1e21), "share": (1e-9, 100.0)}
"""Possible range of a figure by quantity; counts range from 1 to 1e18, devices up to ten million."""
MAY_BE_ZERO = frozenset(
    {
        "zero", "first_loss", "loss_step", "prompt", "output", "prompt_spread", "output_spread", "depth", "draft", "nans", "steps_seen",
        "prefix", "accept", *SIZES,
    }
)  # fmt: skip


def drop_impossible(run: Run, skipped: Skips) -> Run:
    """Return the run with figures outside of BOUNDS as unknown: no time is zero, and no cluster has 1e30 devices."""
    wrong: list[Stated] = []
    for one in run:
        value = run.number(one.fact)
        field = BY_NAME.get(one.fact)
        usual = (1.0, 1e7 if one.fact in ("devices", "nodes", "dp", "tp", "pp", "cp") else 1e18)
        low, high = BOUNDS.get(field.quantity if field else "", usual)
        if math.isfinite(value) and one.fact not in MAY_BE_ZERO and not low <= value <= high:
            skipped.add(f"{run.word(one.fact)} of {value:.3g}, which is impossible", run.where)
            wrong.append(
                one._replace(value=None, how="unknown", note=f"{run.word(one.fact)} is {value:.3g}, which is impossible")
            )
    return run.adding(wrong) if wrong else run


def _file(name: str, reading: Reading) -> File:
    return File(name, reading.format, len(reading.runs), len(reading.claims), tuple(reading.skipped.lines()))


def _notes(runs: Iterable[Figures], missing: Sequence[tuple[str, int]]) -> list[str]:
    failures = Counter(reason for f in runs if (reason := one_run.failure_reason(f)))
    notes = [f"{_counted(count, 'failed run')} could not have worked: {reason}" for reason, count in failures.items()]
    reasons = sorted(missing, key=lambda pair: -pair[1])
    if reasons:
        shown = "; ".join(f"{reason} ({_counted(count, 'run')})" for reason, count in reasons[:4])
        notes.append(f"not compared with the planner: {shown}{'; ...' * (len(reasons) > 4)}")
    return notes


def scaling(runs: Sequence[Figures]) -> dict[int, float]:
    """Return by id(run) its rate per device over the best on the fewest devices, of the same file, model and sequence length."""
    groups: dict[tuple[object, ...], list[Figures]] = {}
    for f in runs:
        if f.rate > 0 and f.devices > 0:
            key = (f.source, f.run.number("params"), f.run.text("model"), f.run.number("seq"), f.run.number("layers"))
            groups.setdefault(key, []).append(f)
    efficiencies: dict[int, float] = {}
    for group in groups.values():
        fewest = min(f.devices for f in group)
        base = max(f.rate / f.devices for f in group if f.devices == fewest)
        efficiencies |= {id(f): f.rate / f.devices / base for f in group if f.devices > fewest}
    return efficiencies


def row_of(
    f: Figures, train: "TrainPrediction | None", serve: "ServePrediction | None", scaling_efficiency: float
) -> dict[str, Any]:
    """Return a run as a row of the table and of the JSON."""
    formula, ratio = f.printed_formula
    row: dict[str, Any] = {
        "where": f.where, "model": f.named.name if f.named else f.run.text("model"), "params": f.shape.params,
        "chip": f.chip.key if f.chip else f.run.text("chip"), "devices": f.devices,
        "layout": {
            BY_NAME[axis].title: int(f.run.number(axis))
            for axis in ("dp", "tp", "pp", "cp", "ep", "mbs", "zero")
            if f.run.stated(axis)
        },
        "batch": f.batch, "seq": f.run.number("seq"), "tokens_per_step": f.tokens, "seconds": f.seconds,
        "tokens_per_second": f.rate, "stated_tokens_per_second": f.stated_rate,
        "tflops": {name: value / 1e12 for name, value in f.device_flops.items()}, "mfu": f.mfu, "formula_used": formula,
        "printed_over_formula": ratio, "memory": f.memory, "expected_seconds": train.seconds if train else math.nan,
        "expected_memory": train.memory if train else math.nan, "scaling_efficiency": scaling_efficiency,
        "rank_balance": f.rank_balance, "dollars_per_million_tokens": f.dollars_per_million_tokens,
        "steps": f.run.number("steps_seen"), "first_loss": f.run.number("first_loss"),
    }  # fmt: skip
    return {
        key: value
        for key, value in (row | _served(f, serve)).items()
        if value not in ("", {}) and not (isinstance(value, float) and not math.isfinite(value))
    }


def _served(f: Figures, serve: "ServePrediction | None") -> dict[str, float]:
    """Return the figures of a served model, with the predicted ones beside those that are stated."""
    stated = {name: f.run.number(name) for name in (*SERVE_FIGURES, "prompt", "output", "users")} | {
        "request_rate": f.run.number("rate")
    }
    expected = {name: getattr(serve, name) for name in ("decode", "prefill", "ttft", "tpot") if serve and f.run.stated(name)}
    return stated | {f"expected_{name}": value for name, value in expected.items()}


def verdict(
    runs: Sequence[Figures],
    statements: Sequence[Statement],
    findings: Sequence[Finding],
    predictions: Sequence["TrainPrediction"],
    doubted: frozenset[str],
) -> str:
    """Sum up the audit in a few sentences."""
    if not runs and not statements:
        return "Nothing was found that could be checked."
    if not statements and not findings and all(sum(f.run.stated(one.fact) for one in f.run) < 2 for f in runs):
        return "A single figure cannot be checked: state more of the run, such as its step time, batch and devices."
    sentences = [_sum_up(findings)]
    bad = len({f.where for f in runs} & doubted)
    if bad:
        share = (
            f"{bad} of {len(runs)} runs should" if bad < len(runs) else "The run should" if bad == 1 else f"All {bad} runs should"
        )
        sentences.append(f"{share} not be used as reported.")
    ratios = [p.ratio for p in predictions if p.case.timed and p.figures.where not in doubted]
    if ratios:
        middle, median = statistics.median(ratios), f" (median of {len(ratios)} runs)" * (len(ratios) > 1)
        sentences.append(f"The measured step time{' of the others' * bool(bad)} is {middle:.2f} times the predicted one{median}.")
    return " ".join(sentences)


def _sum_up(findings: Sequence[Finding]) -> str:
    counts = Counter(finding.certainty for finding in findings)
    rules = ", ".join(dict.fromkeys(finding.rule for finding in findings if finding.certainty != "unusual"))
    certain, likely, unusual = (counts[certainty] for certainty in CERTAINTIES)
    if certain:
        more = f", {likely} more {'is' if likely == 1 else 'are'} likely" if likely else ""
        return f"It does not add up: {_counted(certain, 'finding')} {'is' if certain == 1 else 'are'} certain{more} ({rules})."
    if likely:
        return f"It probably does not add up: {_counted(likely, 'finding')} {'is' if likely == 1 else 'are'} likely ({rules})."
    if unusual:
        return f"It adds up, but {_counted(unusual, 'finding')} {'is' if unusual == 1 else 'are'} unusual."
    return "No contradiction was found."


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"
