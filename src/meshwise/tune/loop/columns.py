"""A run of another program in the columns of a table of measurements, which validate, audit and calibrate read."""

import math
from datetime import UTC, datetime
from typing import Any

from meshwise.cost.axes import MODEL_CUTS
from meshwise.cost.train.question import Question
from meshwise.plan.ask import TrainAsk
from meshwise.plan.train.choice import Choice
from meshwise.tune.loop.reading import Outcome
from meshwise.units import GIB

OUTCOMES = {"": "ok", "oom": "oom"}
"""Words of the column `outcome`; every other failure is 'fail'."""


def row(ask: TrainAsk, q: Question, choice: Choice, number: int, outcome: Outcome) -> dict[str, Any]:
    """Return a run as a row: what it was, what was predicted, and what was measured; blank where nothing was."""
    d, a = q.model.decoder, choice.layout
    now, tokens = datetime.now(UTC), float(q.work.batch_tokens)
    sharded, replicated = int(a["dp_shard"]), int(a["dp_replicate"])
    seconds = outcome.seconds if outcome.seconds is not None and not outcome.failure else math.nan
    timed = math.isfinite(seconds)
    return {
        "source": "meshwise tune",
        "row_id": now.strftime(f"tune-%Y%m%dT%H%M%S-{number}"),
        "model": ask.model,
        "params_b": q.model.params / 1e9,
        "n_layers": d.layers,
        "d_model": d.hidden,
        "d_ff": d.ffn,
        "n_heads": d.heads,
        "n_kv_heads": d.kv_heads,
        "vocab": d.vocab,
        "seq_len": q.work.seq,
        "gpu": q.chip.key,
        "cluster": ask.on,
        "n_gpus": choice.devices,
        "gpus_per_node": q.cluster.node.devices,
        "framework": q.work.framework.key,
        "precision": ask.precision or "bf16",
        "dp": sharded * replicated,
        "dp_shard": sharded,
        **{axis: a[axis] for axis in MODEL_CUTS},
        "zero_stage": a["zero"],
        "sharding": "hsdp" if replicated > 1 and sharded > 1 else "fsdp" if sharded > 1 else "ddp",
        "micro_batch": a["mbs"],
        "global_batch_seqs": q.work.batch,
        "recompute": a["recompute"],
        "seq_parallel": "yes" if a["sp"] else "no",
        "interleave": a["vpp"],
        "schedule": a["schedule"],
        "offload": a["offload"],
        "compile": "yes" if ask.compile else "no",
        "date": now.date().isoformat(),
        "predicted_sec_per_iter": choice.step,
        "predicted_mem_gb": choice.peak / GIB,
        "sec_per_iter": seconds if timed else "",
        "tokens_per_sec_per_gpu": tokens / seconds / choice.devices if timed else "",
        "mem_gb": outcome.memory / GIB if outcome.memory is not None else "",
        "mem_unit": "GiB",
        "outcome": OUTCOMES.get(outcome.failure, "fail"),
        "note": outcome.note,
    }
