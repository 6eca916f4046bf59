"""The embedded text: sentences of a small grammar, one token per byte. A sample is a pure function of seed and number.

So nothing has to be stored to go on after a stop, in whatever layout: step s reads samples s x batch and the `batch - 1` after it.
"""

import random

import torch
from torch import Tensor

from meshwise.trainer.parallel import Ranks
from meshwise.trainer.settings import Settings

GRAMMAR: dict[str, tuple[str, ...]] = {
    "TEXT": ("SAY. ", "SAY. ", "SAY, and SAY. ", "If SAY, then SAY. ", "SAY because SAY. ", "Why does WHO DO? Because SAY. "),
    "SAY": ("WHO DOES", "WHO DOES", "WHO DOES HOW", "WHEN WHO DOES", "WHO is KIND", "NUM THINGS are KIND"),
    "WHO": ("the THING", "the KIND THING", "a THING", "NAME", "NAME", "every THING near WHO"),
    "DOES": ("feeds WHO", "moves WHO", "waits for WHO", "turns", "shines", "carries NUM THINGS to WHO", "counts to NUM"),
    "DO": ("feed WHO", "move WHO", "wait for WHO", "turn", "shine", "count to NUM"),
    "THING": ("river", "lantern", "engine", "gardener", "bridge", "falcon", "clock", "baker", "harbour", "mirror"),
    "THINGS": ("rivers", "lanterns", "engines", "gardeners", "bridges", "falcons", "clocks", "bakers", "harbours", "mirrors"),
    "KIND": ("quiet", "bright", "old", "narrow", "patient", "hollow", "green", "distant"),
    "NAME": ("Ada", "Boris", "Chidi", "Dora", "Emil", "Farah", "Goro", "Hana"),
    "NUM": ("two", "three", "four", "seven", "nine", "twelve", "forty"),
    "HOW": ("slowly", "at dawn", "by the sea", "without a sound", "again"),
    "WHEN": ("today", "in winter", "before noon", "at night"),
}
RULES = {
    word: tuple(_.replace("?", " ?").replace(".", " .").replace(",", " ,").split() for _ in ways)
    for word, ways in GRAMMAR.items()
}
"""The grammar cut into words, marks apart."""


def sentence(dice: random.Random) -> str:
    """One of TEXT's ways, each word of the grammar in it replaced until none is left."""
    words: list[str] = []
    left = ["TEXT"]
    while left:
        word = left.pop()
        if word in RULES:
            left.extend(reversed(dice.choice(RULES[word])))
        elif word in ".,?":
            words[-1] += word
        else:
            words.append(word)
    return " ".join(words) + " "


def sample(seed: int, number: int, length: int) -> bytes:
    """`length` bytes of text, always the same for a seed and number."""
    dice = random.Random(f"{seed}:{number}")
    text = ""
    while len(text) < length:
        text += sentence(dice)
    return text[:length].encode("ascii")


def batch_of(settings: Settings, step: int, first: int = 0, count: int | None = None) -> tuple[Tensor, Tensor]:
    """Tokens and what follows each of them, of `count` samples from `first` of a step's batch, or of all."""
    count = settings.batch if count is None else count
    numbers = range(step * settings.batch + first, step * settings.batch + first + count)
    rows = [torch.frombuffer(bytearray(sample(settings.seed, number, settings.seq + 1)), dtype=torch.uint8) for number in numbers]
    both = torch.stack(rows).long()
    return both[:, :-1], both[:, 1:]


def own_batch(settings: Settings, ranks: Ranks, step: int) -> tuple[Tensor, Tensor]:
    """What this rank reads of a step: its replica's samples, and of those its part of the sequence."""
    each = settings.batch // settings.layout.dp
    tokens, targets = batch_of(settings, step, ranks.replica * each, each)
    length, part = settings.seq // settings.layout.cp, ranks.at("cp")
    return tokens[:, part * length : (part + 1) * length], targets[:, part * length : (part + 1) * length]
