"""A model ready to be timed: random weights of a config, or a folder's weights; prompts and decode steps as CUDA graphs."""

# pyright: basic
# torch and transformers describe their modules too loosely for strict types.
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch

from meshwise.workers.decoder import fused
from meshwise.workers.decoder.clock import free_memory, time_call
from meshwise.workers.decoder.graphs import FusedTimed
from meshwise.workers.decoder.settings import Job, Point
from meshwise.workers.decoder.static_cache import StaticTimed


class Timed(Protocol):
    """A model to time: one prompt of one request, and decode steps of all concurrent requests."""

    variant: str
    params: int
    shared: bool  # whether all points share one cache, so that the memory of a single point is unknown

    def prompt(self, prompt: int) -> Callable[[], object]:
        """Return a call that reads one prompt of this many tokens."""
        ...

    def steps(self, point: Point) -> Callable[[], float]:
        """Return a call that generates all tokens of a point and returns the seconds it took."""
        ...


def build(job: Job) -> Timed:
    """Build the model, with the fused decoder if it supports the config."""
    from transformers import AutoConfig, AutoModelForCausalLM

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
    model = (model if job.tp == 1 else shard(model, job.tp)).to(job.device, kind).eval()
    if fused.supports(model.config) and job.device == "cuda" and job.tp == 1 and job.variant != "static":
        return FusedTimed(model, job, params)
    return StaticTimed(model, job, params)


def shard(model: Any, tp: int) -> Any:
    """Shard the model over torchrun's processes by transformers' own tensor-parallel plan. Every process builds the whole model on its
    host with the same seed and keeps its part; nothing is sent."""
    if not hasattr(model, "maybe_distribute_model"):
        raise ValueError("this version of transformers cannot shard a model that is already built; 5.22 can")
    from transformers.distributed.configuration_utils import DistributedConfig

    if not model.tp_plan:
        raise ValueError(f"transformers has no tensor-parallel plan for {model.config.model_type}")
    chosen, _, mesh = model.prepare_distribute_model(DistributedConfig(tp_size=tp))
    return model.maybe_distribute_model(model, chosen, mesh)


def measure(timed: Timed, point: Point, job: Job, prompts: dict[int, list[float]]) -> dict[str, Any]:
    """Return seconds of every repeat; a prompt length that was timed at another point is not timed again."""
    if job.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    try:
        if point.prompt not in prompts:
            call = timed.prompt(point.prompt)
            prompts[point.prompt] = [time_call(call, job.device) for _ in range(job.repeats + 1)][1:]
            del call
            free_memory(job.device)
        run = timed.steps(point)
        decode = [run() for _ in range(job.repeats + 1)][1:]
        del run
    except torch.OutOfMemoryError:
        if job.tp > 1:
            raise  # the other processes wait for this one's part of a layer: all must end
        free_memory(job.device)
        return {"outcome": "oom", "prefill_s": [], "decode_s": [], "memory": 0}
    memory = torch.cuda.max_memory_allocated() if job.device == "cuda" and not timed.shared else 0
    free_memory(job.device)
    return {"outcome": "ok", "prefill_s": prompts[point.prompt], "decode_s": decode, "memory": memory}
