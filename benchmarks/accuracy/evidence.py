"""Write data/evidence.csv: the measured training runs of built-in tables, each with a prediction that has not seen its table; and
evidence_serving.csv, the same of engines, where rows of engines_at_load are predicted without their model, others as a plan does.

`plan` counts in it the runs near a layout, and does not put a layout first that lies far outside of what was measured; --why-believe lists
the nearest. About ten minutes each.

python benchmarks/accuracy/evidence.py                       print the runs by program and the range of every axis
python benchmarks/accuracy/evidence.py --write               renew src/meshwise/data/evidence.csv
python benchmarks/accuracy/evidence.py --serving [--write]   the same of engines
"""

import csv
import io
import math
import sys
from collections.abc import Iterator, Sequence

import serving_engines
from levels import TABLES, all_cases
from meshwise.catalogue import calibrations, evidence, files
from meshwise.cost.axes import RECOMPUTE
from meshwise.runs.serve.case import ServeCase
from meshwise.runs.serve.case import read_cases as read_served
from meshwise.runs.serve.predict import predict as predict_served
from meshwise.runs.table import find_table
from meshwise.runs.train.case import Case
from meshwise.runs.train.predict import predict
from meshwise.runs.train.settle import read_cases
from sources import Fits

UNFITTED_TABLES = ("fms_a100_liger", "fitcheck_t4", "answerai_fsdp_qlora", "torchtune_readme", "h200_transformers_tuned")
"""Tables that no coefficient of the levels was fitted to: their predictions are those of a plan."""


def predicted() -> Iterator[tuple[Case, float]]:
    """Yield timed runs that are not far slower than the best of their group, with the seconds that a fit without their table predicts."""
    cases = all_cases()
    for source in Fits.of(cases).leave_out(cases, [case.table for case in cases]):
        yield from ((source.cases[i], float(source.seconds[i])) for i in source.timed)
    for name in UNFITTED_TABLES:
        rows = [case for case in read_cases(find_table(name))[0] if case.timed]
        yield from zip(rows, predict(rows).seconds.tolist(), strict=True)


def row(case: Case, seconds: float) -> dict[str, object]:
    """Return one line of the file."""
    a = case.layout
    axes = {axis: a[axis] for axis in ("tp", "pp", "cp", "ep", "mbs", "vpp", "zero")}
    return {
        "framework": case.work.framework.key, "kind": case.chip.kind, "chip": case.chip.key,
        "precision": case.work.precision, "model": case.model.name, "params": f"{float(case.model.params):.4g}",
        "devices": case.cluster.devices, "seq": case.work.seq, "batch": int(case.work.batch), **axes,
        "recompute": RECOMPUTE[a["recompute"]], "finetune": "" if case.work.finetune.method == "full" else case.work.finetune.method,
        "table": case.table, "run": case.row_id, "measured": f"{case.seconds:.4g}", "predicted": f"{seconds:.4g}",
    }  # fmt: skip


SERVING_TABLES = (
    "alcf_vllm_trt", "h200_llamacpp", "h200_vllm", "h200_vllm_server", "llamacpp_gb10", "localmaxxing_community", "rocm_vllm_mi300x",
    "strix_halo_rpc", "tensorrt_llm_hopper", "xiongjiedai_llama3_bench",
)  # fmt: skip
"""Tables of engines that are predicted with the calibrations of a plan."""


def served() -> Iterator[tuple[ServeCase, bool, float]]:
    """Yield runs of engines, whether the calibration has not seen them, and the predicted output tokens/s."""
    cases = [case for case in read_served(find_table("engines_at_load"))[0] if case.ran and case.load]
    points = serving_engines.left_out(cases)
    for case in cases:
        yield case, True, serving_engines.predicted([case], points[serving_engines.family(case)])[0].decode
    for name in SERVING_TABLES:
        rows = [case for case in read_served(find_table(name))[0] if case.ran]
        for case, found in zip(rows, predict_served(rows), strict=True):
            seen = calibrations.choose_serve(case.chip, case.runtime.key or case.runtime.engine).fitted_on
            yield case, not any(word in seen for word in (name, case.source, "in view")), found.decode


def served_row(case: ServeCase, left_out: bool, speed: float) -> dict[str, object]:
    """Return one line of the file of engines."""
    return {
        "engine": case.runtime.engine, "chip": case.chip.key, "model": case.model.name, "params": f"{float(case.model.params):.4g}",
        "experts": "yes" if case.kind == "experts" else "", "format": case.weights.format, "devices": len(case.rig.chips),
        "users": max(1, case.work.users), "prompt": case.work.prompt, "table": case.table, "run": case.row_id,
        "left_out": "yes" if left_out else "", "measured": f"{case.decode:.4g}", "predicted": f"{speed:.4g}",
    }  # fmt: skip


def write(file: str, rows: Sequence[dict[str, object]]) -> None:
    """Write the rows, sorted, if --write was given."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(sorted(rows, key=lambda row: [str(row[name]) for name in (next(iter(row)), "table", "run")]))
    if "--write" in sys.argv:
        (files.BUILT_IN / file).write_text(text.getvalue())


def main() -> None:
    if "--serving" in sys.argv:
        known = [each for each in served() if min(each[0].decode, each[2]) > 0 and math.isfinite(each[0].decode * each[2])]
        write(evidence.SERVED_FILE, [served_row(*each) for each in known])
        print(f"{len(known)} runs of {1 + len(SERVING_TABLES)} tables")
        return
    rows = [row(case, seconds) for case, seconds in predicted()]
    write(evidence.FILE, rows)
    for framework, kind in sorted({(str(each["framework"]), str(each["kind"])) for each in rows}):
        print(framework, kind, evidence.bounds((framework,), kind))
    print(f"{len(rows)} runs of {len(TABLES) + len(UNFITTED_TABLES)} tables")


if __name__ == "__main__":
    main()
