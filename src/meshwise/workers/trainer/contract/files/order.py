"""The order of samples: shuffled for each epoch by a permutation that is computed and not stored. No torch."""

import hashlib

FEISTEL_ROUNDS = 6
MASK_64_BITS = (1 << 64) - 1


def shuffled_index(seed: int, number: int, count: int) -> int:
    """Return the index among `count` of a run's sample `number`: each index once per epoch, in a different order each epoch."""
    epoch, index = divmod(number, count)
    key = hashlib.blake2b(f"{seed}:{epoch}".encode(), digest_size=8).digest()
    return permute(index, count, int.from_bytes(key, "little"))


def permute(index: int, count: int, key: int) -> int:
    """Return a keyed permutation of 0 .. count - 1: a Feistel network over the next even power of two, iterated until the result is below
    `count`. A Feistel network permutes its whole range (Luby and Rackoff 1988); following its cycle from a number below `count` to the
    next such number permutes those (Black and Rogaway 2002). The range is at most four times `count`, so that takes at most four rounds
    on average."""
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    low = (1 << half) - 1
    while True:
        left, right = index >> half, index & low
        for turn in range(FEISTEL_ROUNDS):
            left, right = right, left ^ (_mix(right + (turn << half), key) & low)
        index = left << half | right
        if index < count:
            return index


def _mix(value: int, key: int) -> int:
    """Hash value and key to 64 bits (the finalizer of splitmix64)."""
    value = (value * 0x9E3779B97F4A7C15 + key) & MASK_64_BITS
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & MASK_64_BITS
    value = (value ^ value >> 27) * 0x94D049BB133111EB & MASK_64_BITS
    return value ^ value >> 31
