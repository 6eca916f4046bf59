"""The lean decoder, timed: each prompt and each step of generation is one CUDA graph, tokens are chosen on the device."""

# pyright: basic
# torch describes its modules too loosely for strict types.
from collections.abc import Callable
from typing import Any

import torch

from meshwise.workers.decoder import kernels, lean
from meshwise.workers.decoder.session import SLACK, captured, clocked
from meshwise.workers.decoder.settings import Job, Point

ROUND = 64


def held(point: Point) -> int:
    """Tokens of one user's cache."""
    return -(-(point.prompt + point.output + SLACK) // ROUND) * ROUND


class LeanTimed:
    """One model, and one buffer for the largest cache of all points."""

    def __init__(self, model: Any, job: Job, params: int) -> None:
        self.params, self.shared = params, True
        length = max(held(point) for point in job.points)
        self.model = lean.lean(model, length)
        if job.way != "library":
            self.model.tiles = lean.tuned(self.model)
        self.way = "lean"
        free, _ = torch.cuda.mem_get_info()
        m = self.model
        token = 2 * len(m.layers) * m.key_heads * m.width
        most = max(point.users * held(point) for point in job.points)
        # What is left is for logits and the activations of a prompt.
        self.tokens = min(most, int((free - 12e9) / (token * m.head.element_size())))
        self.buffer = torch.randn(max(1, self.tokens) * token, device="cuda", dtype=m.head.dtype)
        self.processors = torch.cuda.get_device_properties(0).multi_processor_count

    def cache(self, users: int, length: int) -> lean.Cache:
        m = self.model
        if users * length > self.tokens:
            raise torch.OutOfMemoryError(f"the caches of {users} users with {length} tokens do not fit")
        each = users * length * m.key_heads * m.width
        views = [
            self.buffer[i * each : (i + 1) * each].view(users, m.key_heads, length, m.width) for i in range(2 * len(m.layers))
        ]
        return list(zip(views[::2], views[1::2], strict=True))

    def prompt(self, prompt: int) -> Callable[[], object]:
        tokens = torch.randint(self.model.embedding.shape[0], (1, prompt), device="cuda")
        positions = torch.arange(prompt, device="cuda")
        cache = self.cache(1, -(-prompt // ROUND) * ROUND)

        def read() -> torch.Tensor:
            return lean.prefill(self.model, tokens, positions, cache).argmax(-1)

        with torch.no_grad():
            return captured(read).replay

    def steps(self, point: Point) -> Callable[[], float]:
        tokens = torch.randint(self.model.embedding.shape[0], (point.users,), device="cuda")
        positions = torch.full((point.users,), point.prompt, device="cuda", dtype=torch.int32)
        cache = self.cache(point.users, held(point))
        splits = kernels.splits_of(point.users, self.model.key_heads, self.processors)

        def step() -> None:
            logits = lean.decode(self.model, tokens, positions, cache, splits)
            tokens.copy_(logits.argmax(-1))
            positions.add_(1)

        with torch.no_grad():
            graph = captured(step)

        def generate() -> float:
            positions.fill_(point.prompt)
            return clocked(lambda: [graph.replay() for _ in range(point.output)], "cuda")

        return generate
