"""A real browser: Debian's or any other Chromium, driven by Playwright."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WIDE = {"width": 1600, "height": 1000}
NARROW = {"width": 390, "height": 844}


def executable() -> str | None:
    """Return the path of a Chromium: $MESHWISE_CHROMIUM, or one that is installed."""
    return os.environ.get("MESHWISE_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def chromium() -> "Iterator[Browser]":
    """Start the browser, without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        # no sandbox: tests often run as root in a container, where Chromium's own cannot start
        browser = play.chromium.launch(executable_path=executable(), args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


@contextmanager
def opened(browser: "Browser", complaints: list[str], **settings: Any) -> "Iterator[Page]":
    """Open a page with a profile of its own; errors of its console are added to `complaints`."""
    given: dict[str, Any] = {"viewport": WIDE} | settings
    context = browser.new_context(**given)
    context.set_default_timeout(90_000)
    page = context.new_page()
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    try:
        yield page
    finally:
        context.close()


def settle(page: "Page") -> None:
    """Wait until the answer is there, and the parts of it that come later."""
    page.wait_for_function(
        """() => document.readyState === "complete" && document.getElementById("answer").getAttribute("aria-busy") === "false"
        && !document.querySelector("#answer .loading") && ![...document.querySelectorAll(".plot")].some((e) => !e.firstChild)"""
    )
