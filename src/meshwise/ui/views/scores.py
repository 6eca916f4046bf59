"""Scores of predictions on a terminal, with the baselines and the rows that were not used."""

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from meshwise.calibrate.result import Result
from meshwise.calibrate.rl.validate import RlValidation
from meshwise.calibrate.score import Score
from meshwise.calibrate.serve.make import ServeCalibrationResult
from meshwise.calibrate.serve.validate import ServeValidation
from meshwise.calibrate.train.make import TrainCalibrationResult
from meshwise.calibrate.train.validate import TrainValidation
from meshwise.catalogue.calibrations import SERVE_COEFFICIENTS
from meshwise.ui.views.tables import Column, Table, grid, wrapped

Line = tuple[str, str, str, str, str]


def validation_view(validation: TrainValidation | ServeValidation, width: int) -> RenderableType:
    """Return everything that `validate` prints for one table."""
    view = _train_score if isinstance(validation, TrainValidation) else _serve_score
    return view(validation.score, width)


PROGRAMS: tuple[Column[Score], ...] = (
    Column("program", lambda row: row["program"], text=True), Column("rows", lambda row: str(row["rows"])),
    Column("median", lambda row: _cell(row["time"]["median"], "%")), Column("bias", lambda row: _cell(row["time"]["bias"], "+%")),
    Column("inside", lambda row: _cell(row["time"]["coverage"], "%")),
)  # fmt: skip
"""Scores of steps on generated answers by program."""


def rl_view(validation: RlValidation, width: int) -> RenderableType:
    """Return everything that `validate` prints for a table of steps on generated answers."""
    score = validation.score
    inside = score.get("in_sample")
    titles = (score["table"], *(("program left out", "in sample") if inside else ("predicted",)))
    names = (
        ("time error, mean", "mape", "%"), ("  median", "median", "%"), ("  bias", "bias", "+%"),
        ("  in their 90% interval", "coverage", "%"),
    )  # fmt: skip
    sides = (score, inside) if inside else (score,)
    rows = [(name, *(_cell(side["time"][key], show) for side in sides)) for name, key, show in names]
    rows += [
        (f"{phase}, predicted / measured", *(f"{side['phases'][phase]['ratio']:.2f}" for side in sides))
        for phase in score["phases"]
    ]
    sources = Table(PROGRAMS, score["sources"], edged=True).fitted(width)
    notes = [f"{skip.row_id} left out: {skip.reason}" for skip in validation.skipped[:5]]
    notes.append(f"coefficients: {score['calibration']}; {score['rows']} rows used, {score['skipped']} skipped")
    return Group(grid(titles, rows, edged=True).fitted(width), sources, *_wrapped(notes, width))


def calibration_view(result: Result, width: int) -> RenderableType:
    """Return the errors before and after a fit, on rows left out and in sample, and which coefficients the rows determine."""
    if isinstance(result, TrainCalibrationResult):
        return _train_calibration(result, width)
    assert isinstance(result, ServeCalibrationResult)
    return _serve_calibration(result, width)


def _train_score(score: Score, width: int) -> RenderableType:
    """Return the scores of a table of training runs."""
    inside = score.get("in_sample")
    titles = (score["table"], *(("left out", "in sample") if inside else ("predicted",)), "constant rate", "rule of thumb")
    rows = [
        (name, mine, *([within] if inside else []), constant, rule)
        for name, mine, within, constant, rule in _lines(score, inside or score)
        if mine
    ]
    sources = [Table(SOURCES, score["sources"], edged=True).fitted(width)] if len(score["sources"]) > 1 else []
    return Group(grid(titles, rows, edged=True).fitted(width), *sources, *_wrapped(_notes(score), width))


SOURCES: tuple[Column[Score], ...] = (
    Column("chip, framework, precision", lambda row: f"{row['chip']}, {row['framework']}, {row['precision']}", text=True),
    Column("rows", lambda row: str(row["rows"])), Column("time", lambda row: _cell(row["mape"], "%")),
    Column("inside", lambda row: _cell(row["coverage"], "%")), Column("memory", lambda row: _cell(row["memory"], "%")),
    Column("calibrated", lambda row: "yes" if row["calibrated"] else "no"),
)  # fmt: skip
"""Scores by chip, framework and precision, and whether a calibration of that pair exists."""


def _lines(score: Score, inside: Score) -> list[Line]:
    """Return rows of name, predicted, in sample, and the two baselines; the caller drops rows without a prediction."""
    base, oom = score["baseline"], score["oom"]

    def line(name: str, part: str, key: str, show: str, constant: float | None = None, rule: float | None = None) -> Line:
        mine, within = (_cell(scores[part].get(key), show) for scores in (score, inside))
        return name, mine, within, _cell(constant, show), _cell(rule, show)

    rejected = f"{oom['false']} of {score['rows'] - oom['total']}"
    inside_rejected = f"{inside['oom']['false']} of {score['rows'] - oom['total']}"
    caught, inside_caught = (f"{scores['oom']['caught']} of {oom['total']}" if oom["total"] else "" for scores in (score, inside))
    return [
        line("time error, mean", "time", "mape", "%"), line("  median", "time", "median", "%"),
        line("  bias", "time", "bias", "+%"), line("  mean after one scalar", "time", "mape_scaled", "%", base["mape_scaled"]),
        line("  mean within 2x of the best", "time", "mape_near", "%"), line("  in their 90% interval", "time", "coverage", "%"),
        line("rank correlation", "time", "spearman", ""),
        line("time lost by the pick", "time", "picked_loss", "%", base["random_loss"], base["picked_loss"]),
        line("memory error, mean", "memory", "mape", "%"), line("  bias", "memory", "bias", "+%"),
        ("out of memory, predicted", caught, inside_caught, "", ""), ("ran, but rejected", rejected, inside_rejected, "", ""),
    ]  # fmt: skip


def _wrapped(lines: Iterable[str], width: int) -> list[Text]:
    return [wrapped(line, width, indent="  ") for line in lines]


def _cell(value: float | None, show: str) -> str:
    if value is None:
        return ""
    return {"%": f"{100 * value:.1f}%", "+%": f"{100 * value:+.1f}%", "": f"{value:.3f}"}[show]


def _notes(score: Score) -> list[str]:
    used = f"{score['rows']} rows, {score['timed_rows']} of them timed; calibration: {score['calibration']}"
    skipped = [f"{reason} ({count})" for reason, count in score["skipped_reasons"].items()]
    assumed = [f"{what} ({count})" for what, count in score["assumed"].items()]
    alone = [source for source in score.get("sources", ()) if not source["calibrated"]]
    lines = [used, *faulty_lines(score["faulty"])]
    if alone:
        rows = sum(source["rows"] for source in alone)
        lines.append(
            f"{rows} rows are of a chip and framework that were never calibrated together: predicted from what other runs tell about each"
        )
    lines += [f"skipped {score['skipped']}: {'; '.join(skipped)}"] if skipped else []
    lines += [f"assumed: {'; '.join(assumed)}"] if assumed else []
    return lines


def faulty_lines(faulty: Score) -> list[str]:
    """Return a line for each mode of slow runs, and the errors without them."""
    if not faulty["rows"]:
        return []
    time = faulty["time"]
    shown = (("mape", "mean error"), ("median", "median"), ("coverage", "in their interval"))
    errors = ", ".join(f"{words} {_cell(time[key], '%')}" for key, words in shown if time[key] is not None)
    modes = [f"slow runs: {mode['sentence']}" for mode in faulty["modes"]]
    return [*modes, f"without these {faulty['rows']} runs: {errors}"]


def _train_calibration(made: TrainCalibrationResult, width: int) -> RenderableType:
    """Return the errors of a training calibration before and after its fit, and its coefficients."""
    pairs = zip(_lines(made.left_out, made.in_sample), _lines(made.before, made.before), strict=True)
    rows = [(name, then, mine, within) for (name, mine, within, _, _), (_, then, _, _, _) in pairs if mine]
    table = grid(("", "before", "left out", "in sample"), rows, edged=True).fitted(width)
    fitted = [name for name in made.widths if name not in made.kept]
    values = ", ".join(f"{name} {getattr(made.calibration, name):.4g} (± {made.widths[name]:.0%} of before)" for name in fitted)
    lines = [f"{made.left_out['rows']} rows; before: {made.before_name}", f"fitted: {values}"]
    lines += [
        f"slow runs, left out of intervals{'' if found.mode.usual else ' and of the fit'}: {found.sentence}"
        for found in made.modes
    ]
    lines += [f"not determined by these rows, kept at their prior: {', '.join(made.kept)}"] if made.kept else []
    return Group(table, *_wrapped(lines, width))


def _serve_score(score: Score, width: int) -> RenderableType:
    """Return the scores of a table of served models."""
    fit, ill = score["fit"], score["prefill"]["ill"]
    notes = [f"{score['rows']} rows; calibration: {score['calibration']}"]
    notes += (
        [f"{ill} prompts left out of the mean: more than 3 times slower than in another format on the same devices"]
        if ill
        else []
    )
    notes += [f"fits or not: {fit['right']} of {fit['total']} right"]
    doubted = score["doubted"]
    notes += [f"doubted: {reason} ({count})" for reason, count in doubted["reasons"].items()]
    if doubted["rows"]:
        without = (f"{part} {_cell(doubted[part]['mape'], '%')}" for part in ("decode", "prefill") if doubted[part]["rows"])
        notes.append(f"mean error without the {doubted['rows']} doubted rows: {', '.join(without)}")
    notes += [f"skipped: {reason} ({count})" for reason, count in score["skipped_reasons"].items()]
    notes += [f"assumed: {what} ({count})" for what, count in score["assumed"].items()]
    return Group(_serve_table(score["table"], {"predicted": score}).fitted(width), *_wrapped(notes, width))


def _serve_table(name: str, columns: dict[str, Score]) -> Table[Sequence[str]]:
    shown = (
        ("mape", "error, mean", "%"), ("p95", "  95% are within", "%"), ("bias", "  bias", "+%"),
        ("coverage", "  in their 90% interval", "%"), ("spearman", "  rank correlation", ""),
    )  # fmt: skip
    rows = [
        (f"{part} {words}" if key == "mape" else words, *(_cell(score[part].get(key), show) for score in columns.values()))
        for part in ("decode", "prefill")
        for key, words, show in shown
    ]
    for key, words, show in (("mape", "memory error, mean", "%"), ("max_mib", "  largest, MiB", "")):
        rows.append((words, *(_cell(score["memory"][key], show) for score in columns.values())))
    return grid((name, *columns), [row for row in rows if any(row[1:])], edged=True)


def _serve_calibration(made: ServeCalibrationResult, width: int) -> RenderableType:
    """Return the errors of a serving calibration before and after its fit, and its coefficients."""
    coefficients = ", ".join(f"{name} {getattr(made.calibration, name):.4g}" for name in SERVE_COEFFICIENTS)
    table = _serve_table("", {"before": made.before, "left out": made.left_out, "in sample": made.in_sample})
    return Group(table.fitted(width), *_wrapped([f"{made.left_out['rows']} rows; {coefficients}"], width))
