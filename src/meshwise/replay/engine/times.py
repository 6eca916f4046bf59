"""Seconds of passes from the cost model (cost/serve/passes): those of decode steps are kept, since they repeat."""

import math

from meshwise.cost.serve.passes.speed import Batch, PassCost

NODE_RATIO = 1.25
NODE_TOKENS = 64.0
"""Mean contexts at which decode steps are computed: 64 x (1.25^i - 1) tokens. Between two of them seconds are linear in the context, as in
the cost model, except where a window fills."""
_PER_NODE = 1 / math.log(NODE_RATIO)
_NODES = [NODE_TOKENS * (NODE_RATIO**i - 1) for i in range(80)]


class PassTimes:
    """Seconds of passes of one copy; `scale` makes all of them longer or shorter."""

    def __init__(self, cost: PassCost, draft: int = 0, scale: float = 1.0) -> None:
        self.cost, self.draft, self.scale = cost, draft, scale
        self.pipeline = cost.d.pipeline
        self.request = cost.request * scale
        """Seconds of a request's first token besides its passes."""
        self.none = (0.0,) * len(cost.d.windows)
        self.known: dict[tuple[int, int], float] = {}

    def step(self, count: int, context: float) -> float:
        """Return seconds of a decode step of `count` requests that have `context` cached tokens together."""
        mean = context / count
        node = int(math.log(mean / NODE_TOKENS + 1) * _PER_NODE)
        low, high = _NODES[node], _NODES[node + 1]
        first, last = self._at(count, node), self._at(count, node + 1)
        return first + (last - first) * (mean - low) / (high - low)

    def _at(self, count: int, node: int) -> float:
        found = self.known.get((count, node))
        if found is None:
            contexts = tuple(count * reached for reached in self.cost.d.reached(_NODES[node]))
            batch = Batch(count, contexts, groups=min(self.pipeline, count), draft=self.draft)
            found = self.known[count, node] = self.cost.seconds(batch) * self.scale
        return found

    def mixed(self, count: int, context: float, pieces: list[tuple[int, int]], ends: int, others: int) -> float:
        """Return seconds of a pass of `count` decoding requests and pieces of prompts, of which `ends` end; `others` go on after it."""
        d = self.cost.d
        contexts = tuple(count * reached for reached in d.reached(context / count)) if count else self.none
        tokens = 0
        pairs: tuple[float, ...] | list[float] = self.none
        for before, size in pieces:
            tokens += size
            found = d.prompt_pairs(size, before, size=size)
            pairs = found if pairs is self.none else [a + b for a, b in zip(pairs, found, strict=True)]
        if not count and not tokens:
            return 0.0  # prompts that are in the cache start at once
        groups = min(self.pipeline, max(1, count + others + ends))
        batch = Batch(count, contexts, float(tokens), tuple(pairs), ends, groups, self.draft if count else 0)
        return self.cost.seconds(batch) * self.scale
