"""The fused decoder as CUDA graphs: one per prompt and one per decode step; tokens are chosen on the device."""

# pyright: basic
# torch describes its modules too loosely for strict types.
from collections.abc import Callable
from typing import Any

import torch

from meshwise.workers.decoder import fused, kernels
from meshwise.workers.decoder.clock import EXTRA_STEPS, capture, time_call
from meshwise.workers.decoder.settings import Job, Point

LENGTH_MULTIPLE = 64


def cache_length(point: Point) -> int:
    """Return tokens in the KV cache of one request."""
    return -(-(point.prompt + point.output + EXTRA_STEPS) // LENGTH_MULTIPLE) * LENGTH_MULTIPLE


class FusedTimed:
    """One model, and one buffer for the largest KV cache of all points."""

    def __init__(self, model: Any, job: Job, params: int) -> None:
        self.params, self.shared = params, True
        length = max(cache_length(point) for point in job.points)
        self.model = fused.convert(model, length)
        if job.variant != "library":
            self.model.tiles = fused.fastest_tiles(self.model)
        self.variant = "fused"
        free, _ = torch.cuda.mem_get_info()
        m = self.model
        token = 2 * len(m.layers) * m.key_heads * m.width
        most = max(point.users * cache_length(point) for point in job.points)
        # The rest is for logits and the activations of a prompt.
        self.tokens = min(most, int((free - 12e9) / (token * m.head.element_size())))
        self.buffer = torch.randn(max(1, self.tokens) * token, device="cuda", dtype=m.head.dtype)
        self.processors = torch.cuda.get_device_properties(0).multi_processor_count

    def cache(self, users: int, length: int) -> fused.Cache:
        m = self.model
        if users * length > self.tokens:
            raise torch.OutOfMemoryError(f"the KV caches of {users} requests with {length} tokens do not fit")
        each = users * length * m.key_heads * m.width
        views = [
            self.buffer[i * each : (i + 1) * each].view(users, m.key_heads, length, m.width) for i in range(2 * len(m.layers))
        ]
        return list(zip(views[::2], views[1::2], strict=True))

    def prompt(self, prompt: int) -> Callable[[], object]:
        tokens = torch.randint(self.model.embedding.shape[0], (1, prompt), device="cuda")
        positions = torch.arange(prompt, device="cuda")
        cache = self.cache(1, -(-prompt // LENGTH_MULTIPLE) * LENGTH_MULTIPLE)

        def read() -> torch.Tensor:
            return fused.prefill(self.model, tokens, positions, cache).argmax(-1)

        with torch.no_grad():
            return capture(read).replay

    def steps(self, point: Point) -> Callable[[], float]:
        tokens = torch.randint(self.model.embedding.shape[0], (point.users,), device="cuda")
        positions = torch.full((point.users,), point.prompt, device="cuda", dtype=torch.int32)
        cache = self.cache(point.users, cache_length(point))
        splits = kernels.choose_splits(point.users, self.model.key_heads, self.processors)

        def step() -> None:
            logits = fused.decode(self.model, tokens, positions, cache, splits)
            tokens.copy_(logits.argmax(-1))
            positions.add_(1)

        with torch.no_grad():
            graph = capture(step)

        def generate() -> float:
            positions.fill_(point.prompt)
            return time_call(lambda: [graph.replay() for _ in range(point.output)], "cuda")

        return generate
