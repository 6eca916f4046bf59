"""Any HF model with its own layers and its static cache: the step of generation is a CUDA graph where the model lets itself be captured."""

# pyright: basic
# torch and transformers describe their modules too loosely for strict types.
from collections.abc import Callable
from typing import Any

import torch

from meshwise.workers.decoder.session import SLACK, captured, clocked
from meshwise.workers.decoder.settings import Job, Point


class StaticTimed:
    def __init__(self, model: Any, job: Job, params: int) -> None:
        self.model, self.device, self.params = model, job.device, params
        self.name = "static cache" if job.tp == 1 else f"tp{job.tp}, static cache"
        self.way, self.shared = self.name, False

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
        cache = self._cache(point.prompt + point.output + SLACK)

        def step() -> None:
            asked = {"input_ids": tokens, "position_ids": positions, "past_key_values": cache, "use_cache": True}
            tokens.copy_(self.model(**asked).logits[:, -1:].argmax(-1))
            positions.add_(1)

        def begin() -> None:
            cache.reset()
            tokens.copy_(self._read(prompts, cache).argmax(-1)[:, None])
            positions.fill_(point.prompt)

        with torch.no_grad():
            begin()
            again = self._graphed(step)

        def generate() -> float:
            with torch.no_grad():
                begin()
                return clocked(lambda: [again() for _ in range(point.output)], self.device)

        return generate

    def _graphed(self, step: Callable[[], object]) -> Callable[[], object]:
        if self.device != "cuda":
            return step
        try:
            replay = captured(step).replay
        except RuntimeError:  # a layer that asks the host something within a step
            self.way = f"{self.name}, no CUDA graph"
            return step
        self.way = f"{self.name}, CUDA graph"
        return replay

    def _cache(self, length: int) -> Any:
        from transformers import StaticCache

        return StaticCache(config=self.model.config, max_cache_len=length)

    def _read(self, tokens: torch.Tensor, cache: Any) -> torch.Tensor:
        return self.model(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
