"""What a bench found, as plain data: beside what was predicted, against an earlier one, and as rows of a table of measurements."""

import json
import math
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from meshwise.catalogue import files
from meshwise.errors import UserError
from meshwise.plan.serve.choice import interval
from meshwise.run.bench.speeds import PERCENTILES, Measured, Setting, differ
from meshwise.run.serve.start import Planned
from meshwise.workers.decoder.rows import COLUMNS

FORMAT, KIND = 1, "bench"
RATES = {"decode": "generation", "prefill": "prompts", "per_user": "one user"}

Report = dict[str, Any]


def point(found: Measured, planned: Planned | None) -> Report:
    """One setting in SI units: medians of the repeats, all their values, percentiles of what users waited for."""
    told: Report = {**asdict(found.setting), "repeats": len(found.runs)}
    for name in ("decode", "per_user", "with_prompts", "prefill", "engine_decode", "engine_prefill"):
        told[name] = found.median(name)
        told[f"{name}_values"] = found.values(name)
    told["prompt_tokens"] = found.median("prompt")
    told["spread"] = found.spread("decode")
    for name, key in (("first", "ttft"), ("gaps", "gap")):
        told |= dict(zip((f"{key}_p{p}" for p in PERCENTILES), found.percentiles(name), strict=False))
    told["predicted"] = predicted(planned, found.setting) if planned else None
    return told | {"faults": found.faults, "notes": list(found.notes)}


def predicted(planned: Planned, setting: Setting) -> Report | None:
    """The planner's answer for the same split at this setting; its seconds by part."""
    option = planned.at(setting)
    if option is None or option.speed is None:
        return None
    low, high = interval(planned.question, option)
    return {
        "decode": option.throughput,
        "per_user": option.per_user,
        "low": low,
        "high": high,
        "prefill": option.speed.prefill_tokens_per_second,
        "ttft": option.ttft,
        "parts": {name: float(value) for name, value in option.speed.decode.items()},
    }


def report(points: Sequence[Report], about: Mapping[str, Any]) -> Report:
    return {
        "format": FORMAT,
        "kind": KIND,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **about,
        "points": list(points),
    }


def read(path: Path) -> Report:
    """A report that --out wrote."""
    try:
        values: object = json.loads(files.text_of(path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not valid JSON: {error}") from None
    table = cast(Report, values) if isinstance(values, dict) else {}
    points = table.get("points")
    if table.get("kind") != KIND or table.get("format") != FORMAT or not isinstance(points, list):
        raise UserError(f"{path}: not what 'meshwise bench --out' writes")
    return table


def against(earlier: Report, now: Report) -> list[str]:
    """For every setting that both have: whether they differ by more than repeats of the same do."""
    key = ("prompt", "output", "users", "gpus")
    before = {tuple(one.get(name) for name in key): one for one in earlier["points"]}
    found: list[str] = []
    for one in now["points"]:
        old = before.get(tuple(one.get(name) for name in key))
        if old is None:
            continue
        for name in ("decode", "prefill"):
            a, b = (cast(list[float], table.get(f"{name}_values") or []) for table in (old, one))
            if a and b:
                found.append(f"{one['users']} users, prompt {one['prompt']}, {RATES[name]}: {_verdict(a, b)}")
    return found or ["the earlier report has none of these settings"]


def _verdict(a: Sequence[float], b: Sequence[float]) -> str:
    change, chance, sure = differ(a, b)
    if math.isinf(chance):
        return f"{100 * change:+.1f}%; one repeat each cannot tell whether that is chance"
    told = "more than repeats differ" if sure else "no more than repeats differ"
    return f"{100 * change:+.1f}%, {told} (95% of chance within {100 * chance:.1f}%)"


# Rows of a table.


def rows(told: Report, planned: Planned | None) -> list[dict[str, Any]]:
    """The columns that validate, audit and calibrate read; rates of what was measured, by the median."""
    facts = _facts(told, planned)
    found: list[dict[str, Any]] = []
    for i, one in enumerate(told["points"], start=1):
        ran = one["decode"] is not None
        note = [f"{one['repeats']} repeats within {100 * one['spread']:.1f}%", *one["notes"], *one["faults"]]
        found.append(
            dict.fromkeys(COLUMNS, "")
            | facts
            | {
                "row_id": f"bench-{i:03d}",
                "prompt_len": round(one["prompt_tokens"] or one["prompt"]),
                "gen_len": one["output"],
                "batch_or_concurrency": one["users"],
                "prefill_tok_s": f"{one['prefill']:.6g}" if ran and one["users"] == 1 else "",
                "decode_tok_s": f"{one['decode']:.6g}" if ran else "",
                "ttft_ms": f"{1e3 * one['ttft_p50']:.6g}" if ran else "",
                "outcome": "ok" if ran else "failed",
                "note": "; ".join(note),
            }
        )
    return found


def _facts(told: Report, planned: Planned | None) -> dict[str, Any]:
    """What all rows share. A prompt's rate is one user's: with several the columns cannot say how they were mixed."""
    facts: dict[str, Any] = {"source": f"meshwise bench {told['date'][:10]}", "model": told["model"], "engine": told["engine"]}
    if planned is None:
        return facts
    q, layout = planned.question, planned.layout
    used = [q.cards[i] for i in layout.cards]
    kind = q.weights
    facts |= {
        "model": q.model.source if q.model.tensors else q.model.name,
        "params_b": f"{q.model.params / 1e9:.3f}",
        "quant": kind.format,
        "bits_per_weight": f"{kind.bits_per_weight:.2f}",
        "engine": q.engine.name,
        "gpu": used[0].chip.key,
        "n_gpus": len(used),
        "n_hosts": layout.hosts,
        "split": layout.split if len(used) > 1 else "none",
    }
    return facts


# What explains a gap, where it can be known.


def from_log(lines: Sequence[str]) -> list[str]:
    """What llama.cpp's own log tells of why it is slower than planned."""
    text = "\n".join(lines)
    found: list[str] = []
    moved = re.search(r"offloaded (\d+)/(\d+) layers to GPU", text)
    if moved and moved[1] != moved[2]:
        found.append(f"layers on the CPU: the engine put {moved[1]} of {moved[2]} on cards")
    build = re.search(r"build(?:_info)?\W+b?(\d{3,6})\b", text)
    if build and 0 < int(build[1]) < 4000:
        found.append(f"an old build: b{build[1]}, of 2024 or before")
    return found


GPU_FACTS = ("power.limit", "power.default_limit", "pcie.link.width.current", "pcie.link.width.max")


def gpu_facts() -> list[str]:
    """What nvidia-smi tells of the cards: power caps and narrow links."""
    asked = ["nvidia-smi", f"--query-gpu={','.join(GPU_FACTS)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError):
        return []
    return from_nvidia(done.stdout) if not done.returncode else []


def from_nvidia(text: str) -> list[str]:
    """Lines of 'limit, default limit, lanes, most lanes', one per card."""
    found: list[str] = []
    for card, line in enumerate(text.splitlines()):
        cells = [cell.strip() for cell in line.split(",")]
        try:
            limit, usual, lanes, most = (float(cell) for cell in cells)
        except ValueError:  # '[N/A]', as virtual cards say
            continue
        if limit < usual:
            found.append(f"power cap: card {card} is held to {limit:g} of {usual:g} W")
        if lanes < most and lanes <= 4:
            found.append(f"PCIe x{lanes:g}: card {card} has {lanes:g} of {most:g} lanes")
    return found
