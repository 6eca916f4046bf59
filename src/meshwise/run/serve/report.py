"""A bench as plain data: measured beside predicted, compared with an earlier one, as rows of a table, and causes of a gap."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from meshwise.catalogue import files
from meshwise.cost.serve.load.requests import Load
from meshwise.errors import UserError
from meshwise.plan.ask import EnergyAsk
from meshwise.plan.serve import measured as judged
from meshwise.plan.serve.choice import interval
from meshwise.plan.serve.energy import served
from meshwise.plan.serve.search import search
from meshwise.run.bench.speeds import PERCENTILES, Measured, Setting, differ
from meshwise.run.meter import Metered
from meshwise.run.serve.deployment import Deployment
from meshwise.runs import table as tables
from meshwise.runs.run import Run, Value
from meshwise.workers import tool
from meshwise.workers.decoder.rows import COLUMNS

FORMAT, KIND = 1, "bench"
SETTING = ("prompt", "output", "users", "gpus")

Report = dict[str, Any]


def point(measured: Measured, planned: Deployment | None) -> Report:
    """Return one setting in SI units: medians and values of the repeats, and percentiles of latencies."""
    row: Report = {**asdict(measured.setting), "repeats": len(measured.runs)}
    for name in ("decode", "per_user", "with_prompts", "prefill", "engine_decode", "engine_prefill"):
        row[name] = measured.median(name)
        row[f"{name}_values"] = measured.values(name)
    row["prompt_tokens"] = measured.median("prompt")
    row["spread"] = measured.spread("decode")
    for name, key in (("first", "ttft"), ("gaps", "gap")):
        row |= dict(zip((f"{key}_p{p}" for p in PERCENTILES), measured.percentiles(name), strict=False))
    row["predicted"] = predicted(planned, measured.setting) if planned else None
    return row | {"faults": measured.faults, "notes": list(measured.notes)}


def predicted(planned: Deployment, setting: Setting) -> Report | None:
    """Return the planner's answer for the same layout at this setting, with its seconds by part."""
    option = planned.predict(setting)
    if option is None or option.speed is None:
        return None
    low, high = interval(planned.question, option)
    return {
        "decode": option.speed.decode_tokens_per_second * option.layout.replicas, "with_prompts": option.throughput,
        "per_user": option.speed.per_user, "low": low, "high": high, "prefill": option.speed.prefill_tokens_per_second,
        "ttft": option.ttft, "parts": {name: float(value) for name, value in option.speed.decode.items()},
        "watts": energy.watts if (energy := served(EnergyAsk(), planned.at(setting), option)) else None,
    }  # fmt: skip


def power(metered: Metered, points: Sequence[Report]) -> Report:
    """Return what this machine's devices drew while all settings were measured, beside the mean of their predictions."""
    known = [point["predicted"]["watts"] for point in points if point["predicted"] and point["predicted"].get("watts")]
    return {**asdict(metered), "watts": metered.watts, "predicted_watts": sum(known) / len(known) if known else None}


def predicted_load(planned: Deployment, load: Load) -> Report | None:
    """Return the planner's answer for the same layout at a rate of requests; None where it does not serve that rate."""
    option = planned.predict_load(load)
    if option is None or option.report is None:
        return None
    names = [(name, part) for name in ("ttft", "tpot", "e2e") for part in ("p50", "p95", "p99")]
    times = {f"{name}_{part}": getattr(getattr(option.report, name), part) for name, part in names}
    return {"with_prompts": option.throughput, "per_user": option.per_user, "decode": None, "prefill": None, **times}


def report(points: Sequence[Report], about: Mapping[str, Any]) -> Report:
    return {
        "format": FORMAT, "kind": KIND, "date": datetime.now(UTC).isoformat(timespec="seconds"), **about,
        "points": list(points),
    }  # fmt: skip


def read(path: Path) -> Report:
    """Read a report that `bench --out` wrote."""
    values = files.json_of(files.text_of(path), str(path))
    table = cast(Report, values) if isinstance(values, dict) else {}
    points = table.get("points")
    if table.get("kind") != KIND or table.get("format") != FORMAT or not isinstance(points, list):
        raise UserError(f"{path}: not a report of 'meshwise bench --out'")
    for number, point in enumerate(cast(list[object], points), 1):
        if not isinstance(point, dict) or not all(_is_point_value(*item) for item in cast(Report, point).items()):
            raise UserError(f"{path}: point {number} is not one of 'meshwise bench --out'")
    return table


def _is_point_value(name: str, value: object) -> bool:
    """Return whether a point may have this value: positive rates that were measured, whole numbers that were asked for."""
    if name in SETTING:
        return value is None or (isinstance(value, int) and 0 <= value < 2**53)
    if name not in ("decode_values", "prefill_values"):
        return True
    rates = cast(list[object], value) if isinstance(value, list) else [None]
    return all(isinstance(rate, int | float) and 0 < rate < 1e15 for rate in rates)


@dataclass(frozen=True)
class Change:
    """A rate of one setting, against the same in an earlier report."""

    point: Report
    rate: str  # decode or prefill
    change: float
    noise: float  # 95% of chance differences are within this; infinite with one repeat each
    significant: bool


def against(earlier: Report, now: Report) -> list[Change]:
    """Compare the settings that both reports have: return for each rate whether it differs by more than noise."""
    before = {tuple(point.get(name) for name in SETTING): point for point in earlier["points"]}
    found: list[Change] = []
    for point in now["points"]:
        old = before.get(tuple(point.get(name) for name in SETTING))
        if old is None:
            continue
        for name in ("decode", "prefill"):
            a, b = (cast(list[float], table.get(f"{name}_values") or []) for table in (old, point))
            if a and b:
                found.append(Change(point, name, *differ(a, b)))
    return found


# Rows of a table.


def rows(data: Report, planned: Deployment | None) -> list[dict[str, Any]]:
    """Return the medians in the columns that validate, audit and calibrate read."""
    facts = facts_of(data, planned) if planned or not isinstance(data.get("facts"), dict) else data["facts"]
    table: list[dict[str, Any]] = []
    for i, point in enumerate(data["points"], start=1):
        ran = point["decode"] is not None
        note = [f"{point['repeats']} repeats within {100 * point['spread']:.1f}%", *point["notes"], *point["faults"]]
        table.append(
            dict.fromkeys(COLUMNS, "")
            | facts
            | {
                "row_id": f"bench-{i:03d}", "prompt_len": round(point["prompt_tokens"] or point["prompt"]),
                "gen_len": point["output"], "batch_or_concurrency": point["users"],
                "prefill_tok_s": f"{point['prefill']:.6g}" if ran and point["users"] == 1 else "",
                "decode_tok_s": f"{point['decode']:.6g}" if ran else "", "rate_of": "decode only" if ran else "",
                "ttft_ms": f"{1e3 * point['ttft_p50']:.6g}" if ran else "", "outcome": "ok" if ran else "failed",
                "note": "; ".join(note),
            }
            | (_of_rate(point) if ran and "rate" in point else {})
        )  # fmt: skip
    return table


def _of_rate(point: Report) -> dict[str, Any]:
    """Return the columns of an open loop: output tokens/s with prompts counted, at the rate that was offered."""
    return {
        "batch_or_concurrency": "", "requests_per_s": f"{point['rate']:.6g}",
        "prefix": f"{point['prefix']:.6g}" if point["prefix"] else "", "prefill_tok_s": "",
        "decode_tok_s": f"{point['output_rate']:.6g}", "rate_of": "all requests, with prompts",
        "ttft_ms": f"{1e3 * point['ttft_mean']:.6g}", "tpot_ms": f"{1e3 * point['tpot_mean']:.6g}",
    }  # fmt: skip


def facts_of(data: Report, planned: Deployment | None) -> dict[str, Any]:
    """Return the columns that all rows share. Only one request has a prefill rate: no column states how several were mixed."""
    facts: dict[str, Any] = {"source": f"meshwise bench {data['date'][:10]}", "model": data["model"], "engine": data["engine"]}
    if planned is None:
        return facts
    q, layout = planned.question, planned.layout
    used = [q.cards[i] for i in layout.cards]
    told: dict[str, Value] = {
        "model": q.model.source if q.model.tensors else q.model.name, "params": f"{q.model.params / 1e9:.3f}",
        "weights": q.weights.format, "bits_per_weight": f"{q.weights.bits_per_weight:.2f}", "engine": q.engine.name,
        "chip": used[0].chip.key, "devices": len(used), "split": layout.split if len(used) > 1 else "none",
    }  # fmt: skip
    return facts | tables.row(Run.told("", told)) | {"n_hosts": layout.hosts}


# Causes of a gap between prediction and measurement.


def causes(planned: Deployment, points: Sequence[Report], log: Sequence[str]) -> list[str]:
    """Return lines that may explain a speed outside of the predicted range: facts of this machine, and the usual causes."""
    alone = next((point for point in points if point["users"] == 1 and point["predicted"] and point["decode"]), None)
    if alone is None or alone["predicted"]["low"] <= alone["decode"] <= alone["predicted"]["high"]:
        return []
    if planned.question.cards[0].chip.key == "cpu":
        return [
            "the prediction is for a generic 16-core desktop: name a CPU of the catalogue with --on, or calibrate from --rows"
        ]
    facts = [f"  {line}" for line in [*from_log(log), *gpu_facts()]]
    usual = judged.judge(planned.question, search(planned.question), float(f"{alone['decode']:.4g}"))
    return [usual[0], *(["on this machine:", *facts] if facts else []), *usual[1:]]


def from_log(lines: Sequence[str]) -> list[str]:
    """Return causes of a low speed that llama.cpp's log shows."""
    text = "\n".join(lines)
    causes: list[str] = []
    moved = re.search(r"offloaded (\d+)/(\d+) layers to GPU", text)
    if moved and moved[1] != moved[2]:
        causes.append(f"layers on the CPU: the engine put {moved[1]} of {moved[2]} on GPUs")
    build = re.search(r"build(?:_info)?\W+b?(\d{3,6})\b", text)
    if build and 0 < int(build[1]) < 4000:
        causes.append(f"an old build: b{build[1]}, from 2024 or before")
    return causes


GPU_FACTS = ("power.limit", "power.default_limit", "pcie.link.width.current", "pcie.link.width.max")


def gpu_facts() -> list[str]:
    """Return power caps and narrow PCIe links that nvidia-smi reports."""
    try:
        return from_nvidia(tool.output("nvidia-smi", f"--query-gpu={','.join(GPU_FACTS)}", "--format=csv,noheader,nounits"))
    except tool.ToolError:
        return []


def from_nvidia(text: str) -> list[str]:
    """Read lines of 'limit, default limit, lanes, most lanes', one per GPU."""
    facts: list[str] = []
    for gpu, line in enumerate(text.splitlines()):
        cells = [cell.strip() for cell in line.split(",")]
        try:
            limit, usual, lanes, most = (float(cell) for cell in cells)
        except ValueError:  # '[N/A]', as virtual GPUs report
            continue
        if limit < usual:
            facts.append(f"power cap: GPU {gpu} is limited to {limit:g} of {usual:g} W")
        if lanes < most and lanes <= 4:
            facts.append(f"PCIe x{lanes:g}: GPU {gpu} has {lanes:g} of {most:g} lanes")
    return facts
