"""Seconds of one step by part, from the kernels that the GPU ran: a profiled step, classified by the kernels' names."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, cast

import torch
from torch.profiler import ProfilerActivity, profile

from meshwise.workers.trainer.contract.rows import Kernels

KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("communication", ("nccl",)),
    ("attention", ("flex_attention", "sdpa", "fmha", "flash", "compute_dot_do_o", "convert_dq", "mha_")),
    ("products", ("nvjet", "gemm", "cutlass", "cublas", "splitkreduce", "_grouped_mm", "::mm_", "triton_tem_fused_mm")),
    ("optimizer", ("adam",)),
    ("loss", ("cross_entropy", "log_softmax", "nll_loss")),
)
"""Parts, each with words in the names of its kernels; the first that fits. Everything else is norms, activations and the like."""
OWN_KERNEL_PARTS = {
    "_update": "optimizer", "_squares": "optimizer", "_rows": "loss", "_times": "loss", "wide_forward": "attention",
    "wide_delta": "attention", "wide_scores": "attention", "wide_by_keys": "attention", "wide_by_queries": "attention",
    "_by_rows": "products", "_by_weights": "products", "_gated": "products",
}  # fmt: skip
"""Parts of the trainer's own kernels (trainer/ops), by their whole name."""
OTHER_PART = "other"


class Span(NamedTuple):
    """One kernel: its name, and when it ran, in nanoseconds."""

    name: str
    start: int
    end: int


def part_of(name: str) -> str:
    """Return the part of a step that a kernel belongs to."""
    if name in OWN_KERNEL_PARTS:
        return OWN_KERNEL_PARTS[name]
    low = name.lower()
    return next((part for part, words in KINDS if any(word in low for word in words)), OTHER_PART)


def by_part(spans: Iterable[Span]) -> Kernels:
    """Add up kernels by part. Communication counts as exposed where no other kernel runs; the rest of the time the GPU is idle."""
    every = sorted(spans, key=lambda span: span.start)
    seconds: dict[str, float] = {}
    for span in every:
        seconds[part_of(span.name)] = seconds.get(part_of(span.name), 0.0) + (span.end - span.start) / 1e9
    computing = _covered(span for span in every if part_of(span.name) != "communication")
    busy = _covered(every)
    exposed = busy - computing
    hidden = seconds.pop("communication", 0.0) - exposed
    whole = max((span.end for span in every), default=0) - min((span.start for span in every), default=0)
    extra = {"communication, exposed": exposed, "communication, hidden": max(0.0, hidden)} if exposed or hidden > 1e-9 else {}
    return Kernels(whole / 1e9, seconds | extra | {"idle": whole / 1e9 - busy})


def _covered(spans: Iterable[Span]) -> float:
    """Return the seconds in which at least one of these kernels, in the order of their starts, runs."""
    total = last = 0
    for span in spans:
        total += max(0, span.end - max(span.start, last))
        last = max(last, span.end)
    return total / 1e9


@contextmanager
def kernels_of_step(found: list[Kernels]) -> Generator[None]:
    """Profile the kernels of a step, and append their times to `found`. Only the GPU's own records are kept, which cost little."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        yield
        torch.cuda.synchronize()
    with suppress(AttributeError, RuntimeError):  # no run ends because another program holds the GPU's profiler
        results: Any = cast(Any, seen.profiler).kineto_results
        events = [event for event in results.events() if "CUDA" in str(event.device_type())]
        spans = [Span(event.name(), event.start_ns(), event.start_ns() + event.duration_ns()) for event in events]
        found += [by_part(kept)] if (kept := [span for span in spans if span.end > span.start]) else []
