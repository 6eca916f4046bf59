"""What the tests of `audit` share: the fixtures, and an audit of some of them."""

from pathlib import Path

from meshwise.audit import report
from meshwise.audit.finding import Finding
from meshwise.audit.report import Audit

FIXTURES = Path(__file__).parents[1] / "fixtures" / "audit"


def audit_of(*names: str, planned: bool = True) -> Audit:
    return report.audit(report.read([FIXTURES / name for name in names], "", {}, {}), planned=planned)


def found(audit: Audit, rule: str, words: str = "") -> list[Finding]:
    """The findings of a rule whose words or arithmetic hold some words."""
    return [one for one in audit.findings if one.rule == rule and words in f"{one.words} {one.arithmetic}"]
