"""The site in a real browser: axe-core finds nothing serious on any page, nothing comes from elsewhere, and search works from files too."""

import functools
import http.server
import importlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.browser import NARROW, chromium, executable, opened

pytest.importorskip("material", reason="the generator of the site is not installed")
if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).parents[2]
AXE = ROOT / "tests" / "ui" / "web" / "vendor" / "axe.min.js"
THEMES: tuple[dict[str, Any], ...] = ({"color_scheme": "light"}, {"color_scheme": "dark", "viewport": NARROW})


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing of requests."""


@pytest.fixture(scope="module")
def site() -> Path:
    builder = importlib.import_module("site_builder")
    builder.main()
    return builder.SITE


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    pytest.importorskip("playwright", reason="Playwright is not installed")
    if executable() is None:
        pytest.skip("no Chromium is installed: apt install chromium, or set $MESHWISE_CHROMIUM")
    with chromium() as running:
        yield running


def faults(browser: "Browser", address: str, pages: list[str], theme: dict[str, Any]) -> Iterator[str]:
    """Yield what is wrong with these pages in a theme."""
    complaints: list[str] = []
    asked: set[str] = set()
    with opened(browser, complaints, **theme) as page:
        page.on("request", lambda request: asked.add(request.url))
        for name in pages:
            page.goto(f"{address}/{name}")
            page.evaluate(AXE.read_text(encoding="utf-8"))
            result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
            for each in result["violations"]:
                if each["impact"] in ("serious", "critical"):
                    yield f"{name}, {theme['color_scheme']}: {each['id']} {json.dumps(each['nodes'][0]['target'])}"
            wide, screen = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
            if wide > screen:
                yield f"{name}, {theme['color_scheme']}: {wide} pixels wide on a screen of {screen}"
    yield from complaints
    yield from (url for url in asked if not url.startswith((address, "data:", "blob:")))


def pages_of(site: Path) -> list[str]:
    return sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))


@pytest.mark.slow
def test_the_site_builds_without_a_dead_link(site: Path) -> None:
    """Dead links end its builder. It has one folder: all tests of it are in this file, which one worker runs."""
    assert (site / "index.html").exists()


@pytest.mark.slow
@pytest.mark.parametrize("turn", [0, 1], ids=["light", "dark"])
def test_no_page_shuts_anybody_out(browser: "Browser", site: Path, address: str, turn: int) -> None:
    """Every other page in the light theme, the rest in the dark one on a phone; the longer test has all in both."""
    assert list(faults(browser, address, pages_of(site)[turn::2], THEMES[turn])) == []


@pytest.mark.long
@pytest.mark.parametrize("turn", [0, 1], ids=["light", "dark"])
def test_no_page_shuts_anybody_out_in_the_other_theme(browser: "Browser", site: Path, address: str, turn: int) -> None:
    assert list(faults(browser, address, pages_of(site)[1 - turn :: 2], THEMES[turn])) == []


@pytest.mark.slow
@pytest.mark.parametrize("served", [True, False], ids=["served", "files"])
def test_search_finds_a_word_without_a_network(browser: "Browser", site: Path, address: str, served: bool) -> None:
    complaints: list[str] = []
    with opened(browser, complaints, offline=not served) as page:
        page.goto(f"{address if served else site.as_uri()}/start.html")
        page.fill("input[name=query]", "goodput")
        page.locator(".md-search-result__item").first.wait_for()
        assert "goodput" in page.locator(".md-search-result__list").inner_text().lower()
    assert complaints == []
