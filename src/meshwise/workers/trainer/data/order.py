"""In which order samples are read: shuffled anew for each epoch, by a permutation that is computed and not stored. No torch here."""

import hashlib

ROUNDS = 6
MASK = (1 << 64) - 1


def place(seed: int, number: int, count: int) -> int:
    """Where the sample `number` of a run lies among `count`: each once in every epoch, in an order of the epoch's own."""
    epoch, index = divmod(number, count)
    return permuted(index, count, _key(seed, epoch))


def _key(seed: int, epoch: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}:{epoch}".encode(), digest_size=8).digest(), "little")


def permuted(index: int, count: int, key: int) -> int:
    """A permutation of 0 .. count - 1 by its key: a Feistel network over the next even power of two, walked until it is below `count`.

    A Feistel network permutes its whole range (Luby and Rackoff 1988); following a cycle from a number below `count` to the next one below
    it permutes those (Black and Rogaway 2002). The range is at most four times `count`, so that takes four turns on average at most.
    """
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    low = (1 << half) - 1
    while True:
        left, right = index >> half, index & low
        for turn in range(ROUNDS):
            left, right = right, left ^ (_mix(right + (turn << half), key) & low)
        index = left << half | right
        if index < count:
            return index


def _mix(value: int, key: int) -> int:
    """A number of 64 bits in which every bit of value and key has a say (the finalizer of splitmix64)."""
    value = (value * 0x9E3779B97F4A7C15 + key) & MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & MASK
    return value ^ value >> 31
