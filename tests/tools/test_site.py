"""The site and the manual page, as far as they can be checked without their generator."""

import re
from pathlib import Path

import manpage
import site_slugs
from meshwise.ui.cli.help import ALL_VERBS

ROOT = Path(__file__).parents[2]


def test_every_page_of_docs_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if not re.search(rf"[\s\[,]{re.escape(page)}\b", text)} == set()


def test_anchors_are_those_of_github() -> None:
    assert site_slugs.github("A chip: one file", "-") == "a-chip-one-file"
    assert site_slugs.github("`check` and (others)", "-") == "check-and-others"


def test_the_manual_page_has_every_verb_and_no_stray_requests() -> None:
    lines = list(manpage.lines())
    for name in ALL_VERBS:
        assert f".SH MESHWISE {manpage.roff(name.upper())}" in lines
    assert {line.split()[0] for line in lines if line.startswith(".")} <= {
        ".TH",
        ".SH",
        ".SS",
        ".TP",
        ".B",
        ".I",
        ".PP",
        ".nf",
        ".fi",
    }
