"""Cached prefixes of one copy, by blocks: those of running requests, those that are kept on the device, in host memory and on disk."""

from collections import OrderedDict
from typing import NamedTuple


class Tiers(NamedTuple):
    """Where blocks go that the device has no room for. 0 blocks: there is no such tier."""

    host: int = 0
    disk: int = 0  # blocks that fit
    host_seconds: float = 0.0
    disk_seconds: float = 0.0  # seconds to load a block to the device


NO_TIERS = Tiers()


class Found(NamedTuple):
    """The part of a request that the cache holds."""

    tokens: int  # prompt tokens that need not be computed
    shared: int  # tokens in blocks that other running requests hold already
    seconds: float  # seconds to load blocks from other tiers


class PrefixCache:
    """Blocks that a copy holds. The least recently used ones make room for running requests, and move to the next tier."""

    def __init__(self, block: int, tiers: Tiers = NO_TIERS) -> None:
        self.block, self.tiers = block, tiers
        self.held: dict[int, int] = {}
        """Blocks of running requests, with the number of these."""
        self.idle: OrderedDict[int, None] = OrderedDict()
        self.host: OrderedDict[int, None] = OrderedDict()
        self.disk: OrderedDict[int, None] = OrderedDict()

    def matched(self, blocks: tuple[int, ...]) -> int:
        """Return how many of the first blocks are in any tier."""
        held, idle, host, disk = self.held, self.idle, self.host, self.disk
        for number, block in enumerate(blocks):
            if block not in held and block not in idle and block not in host and block not in disk:
                return number
        return len(blocks)

    def shared(self, blocks: tuple[int, ...]) -> int:
        """Return the tokens in blocks that running requests hold already."""
        held = self.held
        return self.block * sum(block in held for block in blocks)

    def take(self, blocks: tuple[int, ...], prompt: int) -> Found:
        """Hold the blocks of a request that is admitted, and return what it finds of them. The last token is always computed."""
        held, idle, tiers = self.held, self.idle, self.tiers
        found = shared = 0
        seconds = 0.0
        on = True
        for block in blocks:
            users = held.get(block)
            if users:
                held[block] = users + 1
                shared += 1
                found += on
                continue
            if block in idle:
                del idle[block]
                found += on
            elif on and block in self.host:
                del self.host[block]
                seconds += tiers.host_seconds
                found += 1
            elif on and block in self.disk:
                del self.disk[block]
                seconds += tiers.disk_seconds
                found += 1
            else:
                on = False
            held[block] = 1
        return Found(min(found * self.block, prompt - 1), min(shared * self.block, prompt - 1), seconds)

    def give(self, blocks: tuple[int, ...]) -> None:
        """Release the blocks of a request that ends; the last ones are forgotten first."""
        held, idle = self.held, self.idle
        for block in reversed(blocks):
            users = held[block]
            if users > 1:
                held[block] = users - 1
            else:
                del held[block]
                idle[block] = None

    def trim(self, free: float) -> None:
        """Move the least recently used blocks out of a device that has `free` tokens for them."""
        idle, tiers = self.idle, self.tiers
        over = len(idle) - (int(free // self.block) if free > 0 else 0)
        if over <= 0:
            return
        oldest = idle.popitem
        if not tiers.host and not tiers.disk:
            for _ in range(over):
                oldest(False)
            return
        for _ in range(over):
            block, _ = oldest(False)
            if tiers.host:
                self.host[block] = None
                if len(self.host) > tiers.host:
                    block, _ = self.host.popitem(last=False)
                    self._to_disk(block)
            else:
                self._to_disk(block)

    def _to_disk(self, block: int) -> None:
        if self.tiers.disk:
            self.disk[block] = None
            if len(self.disk) > self.tiers.disk:
                self.disk.popitem(last=False)
