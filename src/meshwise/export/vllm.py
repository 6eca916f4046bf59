"""vLLM: `vllm serve` (its docs, engine arguments; parallelism and scaling)."""

import shlex

from meshwise.cost.serve.layouts import ServeLayout
from meshwise.cost.serve.question import ServeQuestion
from meshwise.models import find

NAMED = {"awq": "awq", "gptq": "gptq", "fp8": "fp8"}
"""Formats passed to --quantization; vLLM reads others from the checkpoint."""
CONVERTED = ("fp32", "bf16", "fp16", "fp8")
"""Formats that vLLM converts published weights to when it loads them; other formats need their own checkpoint."""
DTYPES = {"fp16": "half", "fp32": "float"}


def lines(q: ServeQuestion, layout: ServeLayout) -> list[str]:
    """Return `vllm serve`, after the lines that start Ray where the layout spans hosts."""
    per_host = max(1, sum(card.host == 0 for card in q.cards) // len(layout.cards))
    copies = min(layout.replicas, per_host) if layout.hosts == 1 else 1
    command = _serve(q, layout, copies)
    if layout.hosts > 1:
        start = [f"ray start --address=host1:6379  # on host {i}" for i in range(2, layout.hosts + 1)]
        lines = [
            "ray start --head --port=6379  # on host 1",
            *start,
            f"{command} --distributed-executor-backend ray  # on host 1",
        ]
        return [f"# run on each of {layout.replicas} groups of hosts", *lines] if layout.replicas > 1 else lines
    hosts = -(-layout.replicas // copies)
    return [f"# run on each of {hosts} hosts, behind a load balancer", command] if hosts > 1 else [command]


def _serve(q: ServeQuestion, layout: ServeLayout, copies: int) -> str:
    fmt = q.weights.format
    words = ["vllm", "serve", find.hub_id(q.model.name) if fmt in CONVERTED else f"path/to/{q.model.name}-{fmt}"]
    words += ["--tensor-parallel-size", str(1 if layout.apart else layout.tp)]
    words += ["--data-parallel-size", str(layout.tp), "--enable-expert-parallel"] if layout.apart else []
    words += ["--pipeline-parallel-size", str(layout.pp)] if layout.pp > 1 else []
    words += ["--data-parallel-size", str(copies)] if copies > 1 else []
    words += ["--max-model-len", str(q.work.context), "--max-num-seqs", str(-(-q.work.users // layout.replicas))]
    words += ["--dtype", DTYPES[fmt]] if fmt in DTYPES else []
    words += ["--quantization", NAMED[fmt]] if fmt in NAMED else []
    words += ["--kv-cache-dtype", q.work.kv] if q.work.kv == "fp8" else []
    usable = q.runtime.usable.get(q.cards[0].chip.kind, 1.0)
    return shlex.join([*words, "--gpu-memory-utilization", f"{usable:g}"])
