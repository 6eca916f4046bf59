"""Chips as tables of measurements and logs write them: with their cores and memory, or within a longer text."""

import re
from dataclasses import replace

from meshwise import units
from meshwise.catalogue import files
from meshwise.catalogue.chips import MEMORY_TOLERANCE, Chip, chip_names, find_chip, known_chip, words_in
from meshwise.errors import UserError, quoted


@files.cached
def find_card(text: str) -> Chip:
    """Find a chip by the words people use: 'A100 PCIe 80GB', '3090 24GB', 'M2 Ultra 76-Core GPU 192GB' with its cores and memory."""
    cores = re.search(r"(\d{1,6})\s*-?\s*core\b(?:\s*gpu)?", text.lower())
    rest = text.lower().replace(cores[0], " ") if cores else text.lower()
    memory = re.search(r"(\d{1,6})\s*gi?b\b", rest)
    bare = rest.replace(memory[0], " ") if memory else rest
    chip = known_chip(rest) or known_chip(bare)
    if chip is None:
        raise UserError(f"the card {quoted(text)} is not in the catalogue (meshwise show chips)")
    if memory and chip.kind == "apple":
        chip = replace(chip, memory=int(memory[1]) * units.GIB)
    if cores and chip.sms and chip.kind == "apple" and int(cores[1]) != chip.sms:
        share = int(cores[1]) / chip.sms
        chip = replace(chip, sms=int(cores[1]), flops={kind: rate * share for kind, rate in chip.flops.items()})
    return chip


@files.cached
def chip_in_text(text: str) -> Chip:
    """Find a chip whose name is part of a longer text: 'DGX-GB300', 'H100-80GB-700W'. A stated memory that differs from the chip's wins."""
    chip, plain = known_chip(text), files.squeeze(text)
    if chip is None:
        names = [(files.squeeze(name), key) for name, key in chip_names().items()]
        # the digits that follow a name may be those of its memory: 'h10080gb' holds h100, but 'a1000' does not hold a100
        inside = [(name, key) for name, key in names if _is_inside(name, plain, text)]
        if not inside:
            return find_chip(text)
        chip = find_chip(max(inside, key=lambda pair: len(pair[0]))[1])
    memory = re.search(r"(?<![\d.])(\d{1,6})\s*gi?b\b", text.lower().replace("-", " "))
    if memory and abs(int(memory[1]) * units.GIB / chip.memory - 1) > MEMORY_TOLERANCE and known_chip(text) is None:
        chip = replace(chip, memory=int(memory[1]) * units.GIB)
    return chip


def _is_inside(name: str, plain: str, text: str) -> bool:
    """Return whether a squeezed text holds the name of this chip, and not that of another: an RTX 5060 Ti is no RTX 5060. Names of two or
    three letters must be words of the text: 'p4d' holds no P4."""
    if len(name) < MIN_LETTERS_INSIDE:
        return name in words_in(text)
    return bool(re.search(rf"{re.escape(name)}((?!\d|(?:ti|super|xt|xtx|ada)(?![a-z]))|(?=\d+gi?b))", plain))


MIN_LETTERS_INSIDE = 4  # letters of a chip's name that may be found within a longer word
