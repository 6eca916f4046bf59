"""Gate: no prediction changes unseen. Compares predictions with a golden file: a sample of every built-in table, and README's questions.

    python tools/predictions.py --check     prints what has moved since the file was written, by source and in percent, and exits with 1
    python tools/predictions.py --write     prints the same and renews the file: make predictions

A source is a table x chip x framework (or engine) x precision. The file has at most SAMPLE rows of each, and the best layout of each
question that `answers.py` collects from README and docs.
"""

import argparse
import csv
import io
import math
import os
import shlex
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import answers
import meshwise as mw
from meshwise import api
from meshwise.calibrate.rl.validate import RlValidation
from meshwise.calibrate.serve.validate import ServeValidation
from meshwise.calibrate.train.validate import TrainValidation
from meshwise.plan.ask import ServeAsk, TrainAsk

GOLDEN = answers.ROOT / "tests/golden/predictions.csv"
CLOSE = 1e-4
"""Relative difference up to which a number has not moved."""
SAMPLE = 12
"""Most rows of a source in the file."""
NAMED = 6
"""Most rows that a line of the report names."""
RENEW = "renew with: make predictions"


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """One line of the file. Numbers have 6 significant digits; None where there is no such prediction."""

    source: str
    """The table, chip, framework or engine, and precision; or 'questions' and the verb."""
    id: str
    """The row of the table, or the question."""
    answer: str
    """The best layout of a question, whether a row fits into memory, or why there is no prediction."""
    seconds: float | None = None
    """A training step."""
    low: float | None = None
    high: float | None = None
    """90% interval: seconds of a training step, or tokens/s of one request to a served model."""
    bytes: float | None = None
    """Memory on the fullest device, or on the one that a row of a memory table is about."""
    decode: float | None = None
    prefill: float | None = None
    """Tokens/s of a served model, all requests together."""
    ttft: float | None = None
    """Seconds to the first token."""

    def __post_init__(self) -> None:
        for name in NUMBERS:
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else float(f"{value:.6g}"))

    @property
    def key(self) -> tuple[str, str]:
        """Table and row. The rest of the source is left out, so that a row stays the same if its precision is read differently."""
        return self.source.partition(" ")[0], self.id


COLUMNS = tuple(field.name for field in fields(Prediction))
TEXTS = ("source", "answer")
NUMBERS = tuple(name for name in COLUMNS if name not in (*TEXTS, "id"))


# Predict.


def predictions() -> Iterator[Prediction]:
    """Yield the prediction of every row of every built-in table, and of every question in README and docs."""
    for question in answers.questions():
        verb, _, rest = question.partition(" ")
        if verb == "validate":
            yield from numbered(of_table(rest))
        elif verb in ("plan", "serve"):
            yield from of_question(question)


def of_table(name: str) -> Iterator[Prediction]:
    """Yield how many rows of a table are predicted and skipped, and the prediction of each row. One line where the table is refused."""
    try:
        validation = mw.validate(name)
    except mw.UserError as error:
        yield Prediction(source=name, id="all rows", answer=f"refused: {error}")
        return
    counts = f"{len(validation.cases)} predicted, {len(validation.skipped)} skipped"
    yield Prediction(source=name, id="all rows", answer=counts)
    if isinstance(validation, RlValidation):
        yield from of_rollouts(validation)
    else:
        yield from of_training(validation) if isinstance(validation, TrainValidation) else of_serving(validation)


def of_training(validation: TrainValidation) -> Iterator[Prediction]:
    predicted = validation.predicted
    for case, seconds, memory, low, high in zip(
        validation.cases, predicted.seconds, predicted.memory, validation.low, validation.high, strict=True
    ):
        yield Prediction(
            source=f"{validation.table} {case.chip.key} {case.work.framework.key} {case.work.precision}",
            id=case.row_id,
            answer=fitting(memory <= case.limit),
            seconds=seconds,
            low=low,
            high=high,
            bytes=memory,
        )


def of_serving(validation: ServeValidation) -> Iterator[Prediction]:
    for case, speed in zip(validation.cases, validation.predicted, strict=True):
        yield Prediction(
            source=f"{validation.table} {case.chip.key} {case.runtime.key} {case.weights.format}",
            id=case.row_id,
            answer=fitting(case.fits),
            bytes=case.footprints[case.device].bytes if case.sizes else max(device.bytes for device in case.footprints[1:]),
            decode=speed.decode,
            prefill=speed.prefill if case.work.prompt else None,
            ttft=speed.ttft if case.work.prompt and not math.isnan(speed.ttft) else None,
        )


def of_rollouts(validation: RlValidation) -> Iterator[Prediction]:
    for case, split in zip(validation.cases, validation.predicted, strict=True):
        low, high = split.interval
        source = f"{validation.table} {case.program}"
        yield Prediction(source=source, id=case.row_id, answer=split.name, seconds=split.step, low=low, high=high)


def fitting(fits: bool) -> str:
    return "fits" if fits else "does not fit"


def numbered(rows: Iterable[Prediction]) -> Iterator[Prediction]:
    """Yield rows with distinct ids: the second row named 'a' becomes 'a #2'."""
    times: dict[tuple[str, str], int] = defaultdict(int)
    for row in rows:
        times[row.key] += 1
        yield row if times[row.key] == 1 else replace(row, id=f"{row.id} #{times[row.key]}")


def of_question(question: str) -> Iterator[Prediction]:
    """Yield the best layout of a question, at each of its points with --vary, or the error that refuses it."""
    source = "questions " + question.partition(" ")[0]
    try:
        answer = ask(question)
    except mw.UserError as error:
        yield Prediction(source=source, id=question, answer=f"refused: {error}")
        return
    if hasattr(answer, "dominated"):  # a Pareto front
        for point in answer.points:
            name, rate = f"{question}: {point.users} users", point.per_device * point.devices
            yield Prediction(source=source, id=name, answer=point.name, decode=rate, ttft=point.ttft)
        return
    if hasattr(answer, "points"):
        found = [(f"{question}: {' '.join(point.labels)}", "", point.choice, point.refusal) for point in answer.points]
    elif hasattr(answer, "shapes"):
        found = [(f"{question}: {i}", f"{row.name}: ", row.choice, "does not fit") for i, row in enumerate(answer.shapes, 1)]
    elif hasattr(answer, "tried"):
        found = [(question, f"{answer.best.ask.on}: ", answer.best.choice, answer.best.refusal)]
    else:
        found = [(question, "", answer.best, "")]
    for name, what, choice, refusal in found:
        yield of_choice(source, name, what, choice) if choice else Prediction(source=source, id=name, answer=what + refusal)


def of_choice(source: str, name: str, what: str, choice: Any) -> Prediction:
    """Return a layout of `plan` or `serve`. `what` comes before its name: the shape or cluster that was found with it."""
    common = Prediction(source=source, id=name, answer=what + choice.name, low=choice.low, high=choice.high)
    if hasattr(choice, "step"):
        return replace(common, seconds=choice.step, bytes=choice.peak)
    fullest = max(device.weights + device.cache + device.compute + device.context for device in choice.devices)
    return replace(common, bytes=fullest, decode=choice.throughput, prefill=choice.prefill, ttft=choice.ttft.p50)


def ask(question: str) -> Any:
    """Answer a question of the command line with the library."""
    verb, model, words, axes = parsed(question)
    if "params" in words or "shape" in words:
        return mw.shapes(*model, **words)
    if words.pop("front", False):
        return api.front_serve(ServeAsk(*model, **words))
    if words.get("cheapest") and verb == "serve":
        return api.cheapest_serve(ServeAsk(*model, **words))
    if words.pop("cheapest", False):
        return mw.cheapest(TrainAsk(*model, **words), *axes)
    if axes:
        return api.vary(TrainAsk(*model, **words), *axes) if verb == "plan" else api.vary_serve(ServeAsk(*model, **words), *axes)
    return mw.plan(*model, **words) if verb == "plan" else mw.serve(*model, **words)


def parsed(question: str) -> tuple[str, list[str], dict[str, Any], list[str]]:
    """Return the verb, the model, which comes first if at all, the keywords, and the axes of --vary.

    A flag without a value is True, a flag given several times becomes a list.
    """
    verb, *rest = shlex.split(question)
    model: list[str] = []
    given: dict[str, list[str]] = {}
    values = model
    for word in rest:
        if word.startswith("--"):
            values = given.setdefault(word.removeprefix("--").replace("-", "_"), [])
        else:
            values.append(word)
    axes = given.pop("vary", [])
    given.pop("why_believe", None)  # prints more, and predicts the same
    words = {name: True if not values else values[0] if len(values) == 1 else values for name, values in given.items()}
    return verb, model, words, axes


# Sample, write and read.


def sample(rows: Iterable[Prediction]) -> list[Prediction]:
    """Return at most SAMPLE rows of each source, the first, the last and evenly between them; every question."""
    sources: dict[str, list[Prediction]] = defaultdict(list)
    for row in rows:
        sources[row.source].append(row)
    return [
        row for source, members in sources.items() for row in (members if source.startswith("questions ") else spread(members))
    ]


def spread(rows: Sequence[Prediction]) -> list[Prediction]:
    """Return SAMPLE rows at equal distances, or all of them where there are no more."""
    last = len(rows) - 1
    return list(rows) if last < SAMPLE else [rows[i * last // (SAMPLE - 1)] for i in range(SAMPLE)]


def write(path: Path, rows: Iterable[Prediction]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(COLUMNS)
        for row in rows:
            values = [getattr(row, name) for name in COLUMNS]
            lines.writerow([f"{value:.6g}" if isinstance(value, float) else value for value in values])


def read(path: Path) -> list[Prediction]:
    """Read the file. SystemExit with one line where it is missing or damaged, as a merge may leave it."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SystemExit(f"{path}: no such file; {RENEW}") from None
    lines = csv.reader(io.StringIO(text))
    if next(lines, []) != list(COLUMNS):
        raise SystemExit(f"{path}: the header is not {','.join(COLUMNS)}; {RENEW}")
    rows: list[Prediction] = []
    for line in lines:
        try:
            values: dict[str, Any] = dict(zip(COLUMNS, line, strict=True))
            values |= {name: float(values[name]) if values[name] else None for name in NUMBERS}
        except ValueError:
            expected = f"{len(COLUMNS)} fields, the last {len(NUMBERS)} numbers or empty"
            raise SystemExit(f"{path}, line {lines.line_num}: expected {expected}; {RENEW}") from None
        rows.append(Prediction(**values))
    return rows


# Compare.


@dataclass(frozen=True)
class Comparison:
    """Differences between the golden file and today's predictions."""

    compared: dict[str, int]
    """Rows that are in both, by source."""
    moves: dict[tuple[str, str], dict[str, float]]
    """Relative moves by source and column, then by row: 0.01 is 1% more than before."""
    changes: dict[tuple[str, str, str], list[str]]
    """Rows by source, value before and value now: texts that changed, and numbers that appeared or disappeared."""
    new: dict[str, list[str]]
    missing: dict[str, list[str]]
    """Rows that are only in the predictions, or only in the file, by source."""

    @property
    def same(self) -> bool:
        return not (self.moves or self.changes or self.new or self.missing)


def compare(golden: Iterable[Prediction], found: Sequence[Prediction]) -> Comparison:
    """Compare each row of the file with today's prediction of that row, whether today's sample has it or not.

    New are the rows of today's sample that the file lacks: a sample also shifts when a table gets more rows.
    """
    done = Comparison({}, defaultdict(dict), defaultdict(list), defaultdict(list), defaultdict(list))
    before, now = {row.key: row for row in golden}, {row.key: row for row in found}
    for key, old in before.items():
        if key not in now:
            done.missing[old.source].append(old.id)
            continue
        row = now[key]
        done.compared[row.source] = done.compared.get(row.source, 0) + 1
        for name in COLUMNS:
            was, value = getattr(old, name), getattr(row, name)
            if isinstance(was, float) and isinstance(value, float):
                if moved(was, value):
                    done.moves[row.source, name][row.id] = value / was - 1 if was else math.copysign(math.inf, value)
            elif was != value:
                done.changes[row.source, shown(name, was), shown(name, value)].append(row.id)
    for row in sample(found):
        if row.key not in before:
            done.new[row.source].append(row.id)
    return done


def moved(was: float, now: float) -> bool:
    """Return whether two numbers differ by more than CLOSE. NaN has not moved from NaN, but from any number."""
    return not math.isclose(was, now, rel_tol=CLOSE) and not (math.isnan(was) and math.isnan(now))


def shown(name: str, value: str | float | None) -> str:
    if name == "answer":
        return str(value)
    return f"no {name}" if value is None else f"{name} {value}"


# Report.


def report(done: Comparison) -> Iterator[str]:
    """Yield the lines of the report: a table of what moved by source and column, then changed answers, new and missing rows."""
    width = max((len(source) for source, _ in done.moves), default=0)
    if done.moves:
        yield f"{'source':<{width}}  {'column':<8} {'rows':>5} {'moved':>5} {'median':>9} {'largest':>9}  at"
    for (source, name), moves in done.moves.items():
        row = max(moves, key=lambda each: abs(moves[each]))
        middle, largest = percent(statistics.median(moves.values())), percent(moves[row])
        yield f"{source:<{width}}  {name:<8} {done.compared[source]:>5} {len(moves):>5} {middle:>9} {largest:>9}  {row}"
    for (source, was, now), ids in done.changes.items():
        yield f"{source}: {was} -> {now}: {listed(ids)}"
    for what, sources in (("new", done.new), ("missing", done.missing)):
        for source, ids in sources.items():
            yield f"{source}: {len(ids)} {what}: {listed(ids)}"


def percent(move: float) -> str:
    return f"{100 * move:+.2f}%"


def listed(ids: Sequence[str]) -> str:
    return "; ".join(ids[:NAMED]) + (f"; and {len(ids) - NAMED} more" if len(ids) > NAMED else "")


def main(arguments: Sequence[str] | None = None, path: Path = GOLDEN) -> int:
    parser = argparse.ArgumentParser(description="Compare predictions with those in tests/golden/predictions.csv.")
    either = parser.add_mutually_exclusive_group(required=True)
    either.add_argument("--check", action="store_true", help="print what has moved; exit with 1 where anything has")
    either.add_argument("--write", action="store_true", help="print what has moved, and renew the file")
    write_it = parser.parse_args(arguments).write
    os.environ["MESHWISE_HOME"] = os.devnull  # the user's own calibrations and chips do not count
    found = list(predictions())
    if write_it and not path.exists():
        write(path, sample(found))
        return 0
    done = compare(read(path), found)
    for line in report(done):
        print(line)
    if write_it:
        write(path, sample(found))
    elif not done.same:
        print(RENEW)
    return int(not write_it and not done.same)


if __name__ == "__main__":
    sys.exit(main())
