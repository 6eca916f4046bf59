"""Finding: something that does not add up, with its arithmetic and how sure it is."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

Sure = Literal["sure", "likely", "look"]
ORDER: tuple[Sure, ...] = ("sure", "likely", "look")


@dataclass(frozen=True, kw_only=True)
class Finding:
    rule: str
    sure: Sure
    """sure: arithmetic leaves no other reading; likely: one reading is much simpler than the others; look: unusual, and may be right."""
    where: tuple[str, ...]
    """What it is said of."""
    words: str
    arithmetic: str
    beside: tuple[str, ...] = ()
    """What it was compared with."""


ALIKE = 3
"""Findings of one file that differ in their figures alone are told as one from here on."""


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """The surest first, each once; many of a kind as one."""
    kinds: dict[tuple[str, ...], list[Finding]] = {}
    for finding in dict.fromkeys(findings):
        source = finding.where[0].split(": ")[0] if finding.where else ""
        kinds.setdefault((finding.rule, finding.sure, source, re.sub(r"[\d.,]+", "#", finding.words)), []).append(finding)
    told = [one for group in kinds.values() for one in (group if len(group) < ALIKE else [_together(group)])]
    return sorted(told, key=lambda finding: ORDER.index(finding.sure))


def _together(group: list[Finding]) -> Finding:
    places = tuple(dict.fromkeys(place for finding in group for place in finding.where))
    return replace(group[0], where=places, words=f"{group[0].words} ({len(group)} such, the first of them here)")


def number(value: float) -> str:
    """A figure in a sentence: '16,384', '15,570', '7.5', '0.549'."""
    if value != value:
        return "?"
    if abs(value) >= 1e12:
        return f"{value:.4g}"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.5g}"


def percent(share: float) -> str:
    """'34.8%', and of little two digits: '0.15%', '0.0026%'."""
    if share >= 0.01 or share <= 0:
        return f"{share:.1%}"
    return f"{100 * share:.{1 - math.floor(math.log10(100 * share))}f}%"


def near(a: float, b: float, within: float) -> bool:
    """Whether two figures are one, to a share of the larger; NaN is near nothing."""
    return abs(a - b) <= within * max(abs(a), abs(b))
