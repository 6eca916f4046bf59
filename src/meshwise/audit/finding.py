"""Finding: what does not add up in a run or in its launch files, with the arithmetic; and how figures are written in a sentence."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

Certainty = Literal["certain", "likely", "unusual"]
Severity = Literal["stops", "warns", "notes"]
CERTAINTIES: tuple[Certainty, ...] = ("certain", "likely", "unusual")
MIN_FINDINGS_TO_MERGE = 3  # at least this many findings in one file that differ only in their numbers are merged into one


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One contradiction, of figures that were measured or of settings that will run."""

    rule: str
    certainty: Certainty
    """certain: arithmetic allows no other reading; likely: one reading is much simpler than the others; unusual: may be right."""
    where: tuple[str, ...]  # the places that contradict something
    message: str
    arithmetic: str = ""
    compared_with: tuple[str, ...] = ()  # the places that they were compared with
    severity: Severity = "warns"  # stops: the program cannot start; warns: it does something else than its source seems to say


def contradiction(severity: Severity, message: str, where: tuple[str, ...] = ()) -> Finding:
    """Return a finding about settings that contradict each other."""
    return Finding(rule="launch file", certainty="certain", where=where, message=message, severity=severity)


def sort_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Return distinct findings, the most certain first; three or more similar ones of a file are merged into one."""
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for finding in dict.fromkeys(findings):
        source = finding.where[0].split(": ")[0] if finding.where else ""
        pattern = re.sub(r"[\d.,]+", "#", finding.message)
        groups.setdefault((finding.rule, finding.certainty, source, pattern), []).append(finding)
    shown = [
        finding for group in groups.values() for finding in (group if len(group) < MIN_FINDINGS_TO_MERGE else [_merge(group)])
    ]
    return sorted(shown, key=lambda finding: CERTAINTIES.index(finding.certainty))


def _merge(group: list[Finding]) -> Finding:
    places = tuple(dict.fromkeys(place for finding in group for place in finding.where))
    return replace(group[0], where=places, message=f"{group[0].message} (the first of {len(group)} such findings)")


def number(value: float) -> str:
    """Write a figure in a sentence: '16,384', '15,570', '7.5', '0.549'."""
    if value != value:
        return "?"
    if abs(value) >= 1e12:
        return f"{value:.4g}"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.5g}"


def percent(share: float) -> str:
    """Write a share as '34.8%', below one percent with two digits: '0.15%', '0.0026%'."""
    if share >= 0.01 or share <= 0:
        return f"{share:.1%}"
    return f"{100 * share:.{1 - math.floor(math.log10(100 * share))}f}%"


def near(a: float, b: float, tolerance: float) -> bool:
    """Return whether two figures agree to within a share of the larger; NaN agrees with nothing."""
    return abs(a - b) <= tolerance * max(abs(a), abs(b))
