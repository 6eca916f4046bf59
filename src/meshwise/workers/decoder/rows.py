"""Results as rows of a table of served models, in the columns that `validate`, `audit` and `calibrate` read."""

import statistics
from collections.abc import Mapping
from typing import Any

COLUMNS: tuple[str, ...] = (
    "source", "row_id", "model", "params_b", "quant", "bits_per_weight", "engine", "gpu", "n_gpus", "n_hosts", "link", "split",
    "prompt_len", "gen_len", "batch_or_concurrency", "requests_per_s", "prefix", "prefill_tok_s", "decode_tok_s", "rate_of",
    "ttft_ms", "tpot_ms", "mem_gb", "outcome", "note",
)  # fmt: skip


def spread(values: list[float]) -> float:
    """Return the range of repeats as a fraction of their median."""
    return (max(values) - min(values)) / statistics.median(values) if values else 0.0


def row(point: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Turn one point of the worker into a row; `facts` are the columns that all points share."""
    ran = point["outcome"] == "ok"
    prefill, decode = (statistics.median(point[part]) if ran else 0.0 for part in ("prefill_s", "decode_s"))
    values = dict.fromkeys(COLUMNS, "") | dict(facts)
    spreads = f"decode within {100 * spread(point['decode_s']):.1f}%, prefill {100 * spread(point['prefill_s']):.1f}%"
    note = [facts.get("note", ""), point["variant"], f"{len(point['decode_s'])} repeats, {spreads}" if ran else ""]
    return values | {
        "row_id": f"{facts['model']}-{point['prompt']}-{point['output']}-{point['users']}", "prompt_len": point["prompt"],
        "gen_len": point["output"], "batch_or_concurrency": point["users"],
        "prefill_tok_s": f"{point['prompt'] / prefill:.6g}" if ran else "",
        "decode_tok_s": f"{point['users'] * point['output'] / decode:.6g}" if ran else "",
        "ttft_ms": f"{1e3 * prefill:.6g}" if ran else "", "mem_gb": f"{point['memory'] / 2**30:.4g}" if point["memory"] else "",
        "outcome": point["outcome"], "note": "; ".join(filter(None, note)),
    }  # fmt: skip
