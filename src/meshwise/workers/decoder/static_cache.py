"""Any HF model with its own layers and static cache; a decode step is a CUDA graph if the model can be captured."""

# pyright: basic
# torch and transformers describe their modules too loosely for strict types.
from collections.abc import Callable
from typing import Any

import torch

from meshwise.workers.decoder.clock import EXTRA_STEPS, capture, time_call
from meshwise.workers.decoder.settings import Job, Point


class StaticTimed:
    """An HF model that is timed with its static cache."""

    def __init__(self, model: Any, job: Job, params: int) -> None:
        self.model, self.device, self.params = model, job.device, params
        self.name = "static cache" if job.tp == 1 else f"tp{job.tp}, static cache"
        self.variant, self.shared = self.name, False

    def prompt(self, prompt: int) -> Callable[[], object]:
        tokens = torch.randint(self.model.config.vocab_size, (1, prompt), device=self.device)

        def read() -> torch.Tensor:
            with torch.no_grad():
                return self._read(tokens, self._cache(prompt)).argmax(-1)

        return read

    def steps(self, point: Point) -> Callable[[], float]:
        prompts = torch.randint(self.model.config.vocab_size, (point.users, point.prompt), device=self.device)
        tokens = torch.zeros(point.users, 1, device=self.device, dtype=torch.long)
        positions = torch.zeros(point.users, 1, device=self.device, dtype=torch.long)
        cache = self._cache(point.prompt + point.output + EXTRA_STEPS)

        def step() -> None:
            inputs = {"input_ids": tokens, "position_ids": positions, "past_key_values": cache, "use_cache": True}
            tokens.copy_(self.model(**inputs).logits[:, -1:].argmax(-1))
            positions.add_(1)

        def begin() -> None:
            cache.reset()
            tokens.copy_(self._read(prompts, cache).argmax(-1)[:, None])
            positions.fill_(point.prompt)

        with torch.no_grad():
            begin()
            run = self._graphed(step)

        def generate() -> float:
            with torch.no_grad():
                begin()
                return time_call(lambda: [run() for _ in range(point.output)], self.device)

        return generate

    def _graphed(self, step: Callable[[], object]) -> Callable[[], object]:
        if self.device != "cuda":
            return step
        try:
            replay = capture(step).replay
        except RuntimeError:  # a layer synchronizes with the host within a step
            self.variant = f"{self.name}, no CUDA graph"
            return step
        self.variant = f"{self.name}, CUDA graph"
        return replay

    def _cache(self, length: int) -> Any:
        from transformers import StaticCache

        return StaticCache(config=self.model.config, max_cache_len=length)

    def _read(self, tokens: torch.Tensor, cache: Any) -> torch.Tensor:
        return self.model(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
