"""Timing of calls, and their capture as CUDA graphs."""

# pyright: basic
# torch describes its modules too loosely for strict types.
import gc
import time
from collections.abc import Callable

import torch

EXTRA_STEPS = 8  # steps that warm-up and capture take, beyond those that are timed


def time_call(call: Callable[[], object], device: str) -> float:
    """Return seconds of one call, by the device's own clock if it has one."""
    if device != "cuda":
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    first.record()
    call()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / 1e3


def free_memory(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def capture(step: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """Run `step` once on a separate stream, as capturing requires, then capture it as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph
