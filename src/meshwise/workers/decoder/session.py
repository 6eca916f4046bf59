"""A model ready to be timed: random weights of a config, or a folder's; prompts and steps of generation as CUDA graphs."""

# pyright: basic
# torch and transformers describe their modules too loosely for strict types.
import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch

from meshwise.workers.decoder.settings import Job, Point

SLACK = 8
"""Steps that warm-up and capture take, beyond those that are timed."""


class Timed(Protocol):
    """What is timed: one prompt of one user, and steps of all of them."""

    way: str
    params: int
    shared: bool
    """One cache for all points: the memory of one of them cannot be told."""

    def prompt(self, prompt: int) -> Callable[[], object]:
        """A call that reads one prompt of so many tokens."""
        ...

    def steps(self, point: Point) -> Callable[[], float]:
        """A call that generates all tokens of a point, and says how many seconds that took."""
        ...


def build(job: Job) -> Timed:
    """The model, and the leanest way that suits it."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from meshwise.workers.decoder import lean
    from meshwise.workers.decoder.graphs import LeanTimed
    from meshwise.workers.decoder.static import StaticTimed

    kind = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[job.precision]
    torch.manual_seed(job.seed)
    model: Any
    if job.weights:
        model = AutoModelForCausalLM.from_pretrained(Path(job.weights), dtype=kind, local_files_only=True)
    else:
        config = AutoConfig.for_model(**job.model)
        with torch.device(job.device if job.tp == 1 else "cpu"):
            model = AutoModelForCausalLM.from_config(config, dtype=kind)
    params = sum(weight.numel() for weight in model.parameters())
    model = (model if job.tp == 1 else cut(model, job.tp)).to(job.device, kind).eval()
    if lean.suits(model.config) and job.device == "cuda" and job.tp == 1 and job.way != "static":
        return LeanTimed(model, job, params)
    return StaticTimed(model, job, params)


def cut(model: Any, tp: int) -> Any:
    """The same model over the processes of torchrun, by transformers' own plan for it: every process made the whole model on its host with
    the same seed, keeps its part, and sends nothing."""
    if not hasattr(model, "maybe_distribute_model"):
        raise ValueError("this transformers does not cut a model that is there already; 5.22 does")
    from transformers.distributed.configuration_utils import DistributedConfig

    if not model.tp_plan:
        raise ValueError(f"transformers has no tensor-parallel plan for {model.config.model_type}")
    chosen, _, mesh = model.prepare_distribute_model(DistributedConfig(tp_size=tp))
    return model.maybe_distribute_model(model, chosen, mesh)


def measure(timed: Timed, point: Point, job: Job, prompts: dict[int, list[float]]) -> dict[str, Any]:
    """Seconds of every repeat; a prompt that was timed at another point is not timed again."""
    if job.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    try:
        if point.prompt not in prompts:
            call = timed.prompt(point.prompt)
            prompts[point.prompt] = [clocked(call, job.device) for _ in range(job.repeats + 1)][1:]
            del call
            free(job.device)
        run = timed.steps(point)
        decode = [run() for _ in range(job.repeats + 1)][1:]
        del run
    except torch.OutOfMemoryError:
        if job.tp > 1:
            raise  # the others wait for this one's part of a layer: all must end
        free(job.device)
        return {"outcome": "oom", "prefill_s": [], "decode_s": [], "memory": 0}
    memory = torch.cuda.max_memory_allocated() if job.device == "cuda" and not timed.shared else 0
    free(job.device)
    return {"outcome": "ok", "prefill_s": prompts[point.prompt], "decode_s": decode, "memory": memory}


def clocked(call: Callable[[], object], device: str) -> float:
    """Seconds of one call, by the device's own clock where it has one."""
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


def free(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def captured(step: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """A CUDA graph of `step`, which has run before on a stream of its own, as capturing wants it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph
