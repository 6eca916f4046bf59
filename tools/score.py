"""The public score: every tool on every table of measured runs, and how ours moved from commit to commit.

python tools/score.py           predict every table (minutes), write docs/reports/score.csv, and renew docs/reports/score.md with cog
python tools/score.py --page    renew the page alone

A peer that cannot be run on these tables is computed from its published formulas (benchmarks/peers). A run that a tool does not answer
counts as refused. `meshwise, left out` is predicted by calibrations that never saw the table: those that data/left_out keeps, and where it
has none, the predictions in data/evidence.csv and evidence_serving.csv, which benchmarks/accuracy/evidence.py writes.
"""

import csv
import io
import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks" / "peers"))
DATA = ROOT / "docs" / "reports" / "score.csv"
PAGE = "docs/reports/score.md"
GOLDEN = "tests/golden/predictions.csv"
OURS, UNSEEN = "meshwise", "meshwise, left out"
COLUMNS = ("figure", "table", "tool", "rows", "answered", "error", "bias", "rank", "pick_loss", "coverage")
EVIDENCE = ROOT / "src" / "meshwise" / "data"
HISTORY = ROOT / "docs" / "reports" / "score_history.csv"
MOVES = ROOT / "docs" / "reports" / "score_moves.csv"
SHOWN = 12
"""Lines of the history on the page; the file has all."""
MOVED = 0.005
"""Least difference of a median error that the page lists."""
Measured = dict[tuple[str, str, str], float]
"""What was measured, by table, row and figure."""
MEASURED = {"measured_seconds": "seconds", "measured_memory": "bytes", "measured_decode": "decode"}
"""Columns of `validate --csv`, and of the golden file."""
IN_VIEW = (
    "answerai_fsdp_qlora", "fitcheck_t4", "fms_a100_liger", "h200_transformers_tuned", "torchtune_readme",
    "tensorrt_llm_hopper", "h200_transformers_14b", "h200_transformers_3b", "h200_transformers_qwen3_moe",
    "xiongjiedai_llama3_bench", "xiongjiedai_notebook_runs",
)  # fmt: skip
"""Tables that no left-out line may have, though no fit names them: facts of fine-tuning programs were set with them in view
(docs/reports/fine-tuning.md), a prior was (serving_engines.py), or a fit has other runs of the same machine or repository."""
SELF_REPORTED = "localmaxxing_community"
"""Calibrations call its rows 'self-reported runs'."""


def train_scores(name: str, made: Any) -> Iterator[dict[str, Any]]:
    """Yield the scores of every tool on a table of training runs."""
    import fitcheck_llm
    import formulas

    cases, score = made.cases, made.score
    unseen = _unseen(cases)
    times = [i for i, case in enumerate(cases) if case.timed]
    sizes = [i for i, case in enumerate(cases) if case.has_memory]
    if times:
        yield _row("step time", name, OURS, len(times), score["time"], score["time"]["coverage"])
        yield from _judged("step time", name, UNSEEN, cases, times, [each and each[0] for each in unseen], "time")
        constant = {"mape": score["baseline"]["mape_scaled"], "picked_loss": score["baseline"]["random_loss"]}
        yield _row("step time", name, "constant rate", len(times), constant)
        for tool, answer in formulas.TIMES.items():
            yield from _judged("step time", name, tool, cases, times, [answer(case) for case in cases], "time")
    if sizes:
        yield _row("memory", name, OURS, len(sizes), score["memory"], score["memory"].get("coverage"))
        yield from _judged(
            "memory", name, UNSEEN, cases, sizes, [each[1] if each and each[1] > 0 else None for each in unseen], "memory"
        )
        for tool, answer in (formulas.MEMORIES | {"fitcheck-llm": fitcheck_llm.memory}).items():
            yield from _judged("memory", name, tool, cases, sizes, [answer(case) for case in cases], "memory")


def _unseen(cases: Sequence[Any]) -> list[tuple[float, float] | None]:
    """Return seconds and bytes by calibrations that never saw the table; seconds alone where only predictions by such fits are kept; None
    for rows that neither has."""
    from meshwise.errors import UserError
    from meshwise.runs.train.predict import predict
    from meshwise.tune.replay.groups import left_out

    found: list[tuple[float, float] | None] = [None] * len(cases)
    for source in dict.fromkeys(case.source for case in cases):
        rows = [i for i, case in enumerate(cases) if case.source == source]
        try:
            calibration = left_out(cases[rows[0]])
        except UserError:
            for i in rows:
                kept = unseen_times().get((cases[i].table, cases[i].row_id))
                found[i] = (kept, math.nan) if kept else None
            continue
        if calibration is not None:  # a table that no fit names was in view, IN_VIEW
            made = predict([cases[i] for i in rows], calibration)
            for k, i in enumerate(rows):
                found[i] = (float(made.seconds[k]), float(made.memory[k]))
    return found


@cache
def unseen_times() -> dict[tuple[str, str], float]:
    """Return seconds that fits without a run's table predict, by table and run."""
    rows = [row for row in _read(EVIDENCE / "evidence.csv") if row["table"] not in IN_VIEW]
    return {(row["table"], row["run"]): float(row["predicted"]) for row in rows}


@cache
def unseen_speeds() -> dict[tuple[str, str], float]:
    """Return tokens per second of engines that fits without a run's model or table predict, by table and run."""
    rows = [row for row in _read(EVIDENCE / "evidence_serving.csv") if row["left_out"] and row["table"] not in IN_VIEW]
    return {(row["table"], row["run"]): float(row["predicted"]) for row in rows}


def _judged(
    figure: str, name: str, tool: str, cases: Sequence[Any], asked: list[int], answers: Sequence[float | None], part: str
) -> Iterator[dict[str, Any]]:
    """Yield the score of one tool on the rows that it answers."""
    from meshwise.calibrate.train.score import score
    from meshwise.runs.train.predict import Prediction

    kept = [i for i in asked if answers[i] is not None]
    if not kept:
        yield {"figure": figure, "table": name, "tool": tool, "rows": len(asked), "answered": 0}
        return
    values = np.array([float(answers[i] or 0.0) for i in kept])
    chosen = [cases[i] for i in kept]
    nothing = np.zeros(len(kept))
    made = Prediction(values, nothing) if part == "time" else Prediction(nothing, values)
    yield _row(figure, name, tool, len(asked), score(chosen, [], made)[part]) | {"answered": len(kept)}


def _row(figure: str, table: str, tool: str, rows: int, score: dict[str, Any], coverage: float | None = None) -> dict[str, Any]:
    return {
        "figure": figure, "table": table, "tool": tool, "rows": rows, "answered": rows, "error": score.get("mape"),
        "bias": score.get("bias"),
        "rank": score.get("spearman"), "pick_loss": score.get("picked_loss"), "coverage": coverage,
    }  # fmt: skip


def serve_scores(name: str, made: Any) -> Iterator[dict[str, Any]]:
    """Yield the scores of every tool on a table of served models: tokens per second while decoding."""
    import bandwidth
    from meshwise.calibrate.score import spearman

    rows = [(case, one.decode) for case, one in zip(made.cases, made.predicted, strict=True) if case.ran and case.decode > 0]
    if not rows:
        return
    yield _row("decode", name, OURS, len(rows), made.score["decode"], made.score["decode"].get("coverage"))
    for tool, answers in {
        UNSEEN: [unseen_speeds().get((case.table, case.row_id)) if _saw(case) else rate for case, rate in rows],
        "bandwidth / bytes": [bandwidth.decode(case) for case, _ in rows],
    }.items():
        pairs = [(case.decode, answer) for (case, _), answer in zip(rows, answers, strict=True) if answer]
        figures: dict[str, Any] = {}
        if pairs:
            measured, predicted = (np.array(side) for side in zip(*pairs, strict=True))
            error = predicted / measured - 1
            figures = {
                "mape": float(np.mean(np.abs(error))),
                "bias": float(np.mean(error)),
                "spearman": spearman(predicted, measured),
            }
        yield _row("decode", name, tool, len(rows), figures) | {"answered": len(pairs)}


def _saw(case: Any) -> bool:
    """Whether the calibration of a served model was fitted to rows of its table, or made by hand with them in view."""
    from meshwise.catalogue.calibrations import choose_serve

    of = choose_serve(case.chip, case.runtime.key, case.backend).fitted_on
    named = case.table in of or (case.table == SELF_REPORTED and "self-reported" in of)
    return named or case.table in IN_VIEW


def write() -> None:
    """Score every table, and every version of the golden file, and write both."""
    from meshwise import api
    from meshwise.calibrate.serve.validate import ServeValidation
    from meshwise.calibrate.train.validate import TrainValidation
    from meshwise.errors import UserError

    rows: list[dict[str, Any]] = []
    measured: Measured = {}
    for name in api.names("measurements"):
        print(name, file=sys.stderr, flush=True)
        try:
            made = api.validate(name)
        except UserError as error:  # a table that only another verb reads
            print(f"  {error}", file=sys.stderr)
            continue
        if isinstance(made, TrainValidation):
            rows += train_scores(name, made)
        elif isinstance(made, ServeValidation):
            rows += serve_scores(name, made)
        for row in made.rows():
            for column, key in MEASURED.items():
                if row.get(column):
                    measured[name, str(row.get("row_id")), key] = float(str(row[column]))
    _save(DATA, COLUMNS, rows)
    _save(HISTORY, ("commit", "day", *MEASURED.values()), list(history(measured)))
    _save(MOVES, ("since", "table", "figure", "rows", "before", "after"), moves(measured))


def _save(path: Path, columns: Sequence[str], rows: "Sequence[dict[str, Any]] | Iterator[dict[str, Any]]") -> None:
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows({key: f"{value:.4g}" if isinstance(value, float) else value for key, value in row.items()} for row in rows)
    path.write_text(out.getvalue(), encoding="utf-8")


def history(measured: Measured) -> Iterator[dict[str, Any]]:
    """Yield commit, day and median errors of each version of the golden file, the oldest first; what was written before is kept."""
    written = _read(HISTORY) if HISTORY.exists() else []
    yield from written
    known = {row["commit"] for row in written}
    for line in reversed(_git("log", "--format=%h %cs", "--", GOLDEN).splitlines()):
        commit, day = line.split()
        if not any(commit.startswith(old) or old.startswith(commit) for old in known):
            errors = errors_at(commit, measured)
            every = {key: [error for (_, _, of), error in errors.items() if of == key] for key in MEASURED.values()}
            yield {"commit": commit, "day": day} | {key: float(np.median(found)) for key, found in every.items() if found}


def moves(measured: Measured) -> Iterator[dict[str, Any]]:
    """Yield the errors of each table at the last release, or at the oldest version of the golden file, and now, on rows of both."""
    tag = _git("describe", "--tags", "--abbrev=0", "HEAD^", check=False).strip()
    first = tag or _git("log", "--format=%h", "--", GOLDEN).split()[-1]
    before, after = errors_at(first, measured), errors_at("", measured)
    shared: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for (table, row, key), error in before.items():
        if (table, row, key) in after:
            shared.setdefault((table, key), []).append((error, after[table, row, key]))
    for (table, key), pairs in sorted(shared.items()):
        old, new = (float(np.median(side)) for side in zip(*pairs, strict=True))
        yield {"since": first, "table": table, "figure": key, "rows": len(pairs), "before": old, "after": new}


def errors_at(commit: str, measured: Measured) -> dict[tuple[str, str, str], float]:
    """Return |predicted / measured - 1| of each row of the golden file in a commit; as it is in the working tree without one."""
    text = _git("show", f"{commit}:{GOLDEN}") if commit else (ROOT / GOLDEN).read_text(encoding="utf-8")
    errors: dict[tuple[str, str, str], float] = {}
    for row in csv.DictReader(io.StringIO(text)):
        table = row["source"].partition(" ")[0]
        for key in MEASURED.values():
            known = measured.get((table, row["id"], key))
            if known and row.get(key) not in (None, "", "nan"):
                errors[table, row["id"], key] = abs(float(row[key]) / known - 1)
    return errors


def _git(*words: str, check: bool = True) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=check).stdout


# The page.


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def rows_of(figure: str) -> list[dict[str, str]]:
    return [row for row in _read(DATA) if row["figure"] == figure]


def percent(value: str, sign: bool = False) -> str:
    return f"{100 * float(value):{'+' if sign else ''}.1f}%" if value else ""


def tools(figure: str) -> None:
    """Print one line a tool: the medians over the tables that it answers."""
    rows = rows_of(figure)
    print(
        "\n| tool | tables | rows answered | median error | median bias | median rank | lost by its pick | 90% interval holds |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for tool in dict.fromkeys(row["tool"] for row in rows):
        mine = [row for row in rows if row["tool"] == tool]
        used = [row for row in mine if row["error"]]
        cells = [str(len(used)), f"{sum(int(row['answered']) for row in mine):,} of {sum(int(row['rows']) for row in mine):,}"]
        for key in ("error", "bias", "rank", "pick_loss", "coverage"):
            values = [float(row[key]) for row in used if row[key]]
            middle = float(np.median(values)) if values else None
            cells.append("" if middle is None else f"{middle:.2f}" if key == "rank" else percent(str(middle), key == "bias"))
        print(f"| {tool} | {' | '.join(cells)} |")
    print()


def tables(figure: str) -> None:
    """Print the error of every tool on every table; '-': not answered."""
    rows = rows_of(figure)
    names = list(dict.fromkeys(row["tool"] for row in rows))
    print(f"\n| table | rows | {' | '.join(names)} |\n| --- | ---: |{' ---: |' * len(names)}")
    for table in dict.fromkeys(row["table"] for row in rows):
        found = {row["tool"]: row for row in rows if row["table"] == table}
        cells = [percent(found[name]["error"]) if name in found and found[name]["error"] else "-" for name in names]
        print(f"| {table} | {next(iter(found.values()))['rows']} | {' | '.join(cells)} |")
    print()


def commits() -> None:
    """Print the history."""
    print("\n| commit | day | step time | memory | decode |\n| --- | --- | ---: | ---: | ---: |")
    for row in _read(HISTORY)[-SHOWN:]:
        print(f"| {row['commit']} | {row['day']} | {' | '.join(percent(row[key]) for key in MEASURED.values())} |")
    print()


def moved() -> None:
    """Print the tables whose median error moved by half a percent or more since the last release, the most improved first."""
    words = {key: figure for figure, key in zip(("step time", "memory", "decode"), MEASURED.values(), strict=True)}
    rows = sorted(_read(MOVES), key=lambda row: float(row["after"]) - float(row["before"]))
    far = [row for row in rows if abs(float(row["after"]) - float(row["before"])) >= MOVED]
    print(f"\nSince {rows[0]['since']}; {len(rows) - len(far)} other lines moved less.\n")
    print("| table | figure | rows | then | now | |\n| --- | --- | ---: | ---: | ---: | --- |")
    for row in far:
        verdict = "better" if float(row["after"]) < float(row["before"]) else "worse"
        cells = (row["table"], words[row["figure"]], row["rows"], percent(row["before"]), percent(row["after"]), verdict)
        print(f"| {' | '.join(cells)} |")
    print()


def main() -> None:
    if "--page" not in sys.argv:
        write()
    subprocess.run([sys.executable, "-m", "cogapp", "-r", "-P", "-I", "tools", PAGE], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
