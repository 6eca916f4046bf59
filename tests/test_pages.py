"""README and the pages of docs: links lead somewhere, every page is on the map, and prose is as wide as the rest."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WIDTH = 120
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [*(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG", "SECURITY", "benchmarks/README")), *DOCS]
INDEX = ROOT / "docs" / "index.md"
LINK = re.compile(r"(?<!`)!?\[[^\]]*\]\(([^)\s]+)\)")
FOLDERS = ("src", "tests", "tools", "benchmarks", "docs")


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of a page that are neither code nor between cog's marks."""
    fenced = generated = False
    for number, line in enumerate(text.splitlines(), 1):
        if "[[[cog" in line:
            generated = True
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced and not generated:
            yield number, line
        if "[[[end]]]" in line:
            generated = False


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    fenced, found = False, set[str]()
    for line in page.read_text(encoding="utf-8").splitlines():
        fenced = fenced != line.startswith("```")
        if not fenced and (heading := re.match(r"#+ (.*)", line)):
            words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).lower()
            found.add(re.sub(r"[^\w\- ]", "", words).replace(" ", "-"))
    return frozenset(found)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for link in LINK.findall(re.sub(r"<!-- \[\[\[cog.*?\]\]\] -->", "", text, flags=re.DOTALL)):
        path, _, anchor = link.partition("#")
        if "://" in path:
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name(page)} links to {link}"
        assert not anchor or anchor in anchors(target), f"{name(page)} links to {link}, which has no such heading"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_prose_is_wrapped(page: Path) -> None:
    """Tables, code, what cog writes, and a word that is longer by itself are excepted."""
    wide = [
        number
        for number, line in prose(page.read_text(encoding="utf-8"))
        if len(line) > WIDTH and not line.startswith(("|", "![")) and " " in line.strip()
    ]
    assert not wide, f"{name(page)}: lines {wide} are wider than {WIDTH}"


def test_every_page_is_on_the_map() -> None:
    linked = {(INDEX.parent / link.partition("#")[0]).resolve() for link in LINK.findall(INDEX.read_text(encoding="utf-8"))}
    assert not set(DOCS) - linked - {INDEX}


def test_readme_is_a_page() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_pages_and_scripts_that_texts_name_exist() -> None:
    """`docs/use/plan.md` and `benchmarks/tune/tune_loop.py` in code, data and pages."""
    named = re.compile(r"(?<![\w/.'-])(docs/(?:use|models|reports)/[\w-]+\.md|benchmarks/[a-z0-9_/]+\.(?:py|sh))")
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md", ".toml", ".html")]
    missing = {
        f"{name(path)}: {text}"
        for path in [*files, *PAGES, ROOT / "Makefile", ROOT / "pyproject.toml"]
        for text in named.findall(path.read_text(encoding="utf-8"))
        if not (ROOT / text).exists()
    }
    assert not missing


def test_every_benchmark_is_in_its_readme() -> None:
    text = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    scripts = {path.name for path in (ROOT / "benchmarks").glob("*/*") if path.suffix in (".py", ".sh")}
    assert {script for script in scripts if f"`{script}`" not in text} == set()
