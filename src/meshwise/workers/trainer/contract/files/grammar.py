"""The embedded text: sentences of a small grammar, in ASCII. No torch."""

import random

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
    word: tuple(rule.replace("?", " ?").replace(".", " .").replace(",", " ,").split() for rule in rules)
    for word, rules in GRAMMAR.items()
}
"""The grammar split into words, with punctuation as separate words."""


def sentence(dice: random.Random) -> str:
    """Return a random sentence: TEXT, with each word of the grammar replaced by one of its rules until none is left."""
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
    """Return `length` bytes of text, the same for the same seed and number."""
    dice = random.Random(f"{seed}:{number}")
    text = ""
    while len(text) < length:
        text += sentence(dice)
    return text[:length].encode("ascii")
