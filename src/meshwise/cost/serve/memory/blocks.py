"""The paged KV cache of vLLM: a pool of equal blocks for layers of all kinds, and the blocks that a request takes."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from meshwise.cost.serve.memory.cache import round_up

MAX_PADDING_FACTOR = 1.25
"""Kinds of layers whose numbers differ by less than this factor are padded to the larger one, not cut into groups of the smaller."""


@dataclass(frozen=True)
class PagedLayer:
    """The cache of one layer on a device: keys and values of each token, or a recurrent state of each request."""

    token: float  # bytes of keys and values per token; 0 for a recurrent layer
    window: int = 0  # tokens that it keeps; 0: all
    state: float = 0.0  # bytes of its state per request; 0 for attention

    @property
    def kind(self) -> tuple[bool, int]:
        return bool(self.state), self.window


@dataclass(frozen=True)
class Pool:
    """Blocks of a device. A block has one page in each layer of a group; all groups take their blocks from the same pool."""

    blocks: int
    size: int  # tokens of a block
    page: float  # bytes of a block in one layer
    depth: int  # layers of a group
    full: int  # groups of layers with full attention
    windows: tuple[int, ...]  # the window of each group with one
    states: int  # groups of recurrent layers

    @property
    def groups(self) -> int:
        return self.full + len(self.windows) + self.states

    @property
    def tokens(self) -> int:
        """Tokens that fit, as vLLM's log states them: 'GPU KV cache size'."""
        return self.blocks // self.groups * self.size

    def needed(self, tokens: int, batch: int = 0) -> int:
        """Return the blocks of a request of this many tokens. A window keeps its tokens, one block more because it begins inside a block,
        and a piece of `batch` tokens that is being computed."""
        windows = (ceil(min(window - 1 + batch, tokens) / self.size) + 1 for window in self.windows)
        return self.full * ceil(tokens / self.size) + sum(windows) + self.states

    def concurrency(self, tokens: int, batch: int = 0) -> float:
        """Return the requests of this many tokens that fit: vLLM's 'maximum concurrency'."""
        return self.blocks / self.needed(tokens, batch)


def pool(layers: Sequence[PagedLayer], left: float, size: int) -> Pool:
    """Return the blocks of `size` tokens that fit into `left` bytes (vLLM's kv_cache_utils).

    Layers of one kind form groups of equal depth. With recurrent layers a block has as many tokens as a state has bytes, so that all pages
    are equal.
    Worked: gpt-oss-20b has 12 layers with windows and 12 without: two groups of 12, and a page of 16 tokens x 2 x 8 heads x 64 x 2 bytes is
    32 KiB; 10 GiB are 10 x 2**30 / (12 x 2**15) = 27,306 blocks, or 13,653 x 16 = 218,448 tokens.
    """
    token = max((layer.token for layer in layers), default=0.0)
    state = max((layer.state for layer in layers), default=0.0)
    size = max(size, round_up(ceil(state / token), size)) if token else 1
    page = size * token if token else state
    numbers = Counter(layer.kind for layer in layers)
    fewest, most = min(numbers.values()), max(numbers.values())
    depth = most if most < MAX_PADDING_FACTOR * fewest else fewest
    groups = {kind: ceil(number / depth) for kind, number in numbers.items()}
    return Pool(
        blocks=int(left // (page * depth)), size=size, page=page, depth=depth, full=groups.get((False, 0), 0),
        windows=tuple(window for (state, window), number in groups.items() if window and not state for _ in range(number)),
        states=sum(number for (state, _), number in groups.items() if state),
    )  # fmt: skip
