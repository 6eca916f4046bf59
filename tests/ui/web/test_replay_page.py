"""The page Replay answers in the words of the command line, and reads no files."""

from html import unescape
from urllib.parse import urlencode

import meshwise as mw
from support.pages import Server

MADE = {"model": "llama-3.1-8b:fp8", "on": "1xh200", "make": "conversation", "rate": "1/s", "hours": "0.1", "ttft": "1s@p95"}


def test_the_page_shows_what_the_library_answers(server: Server) -> None:
    words = {name: value for name, value in MADE.items() if name != "model"}
    made = mw.replay(MADE["model"], **words)
    text = unescape(server.get(f"/replay?{urlencode(MADE)}").text)
    for shown in (made.command, "holds the targets", "whole request", "Over time", "<svg", f"{made.figures.device_hours:,.2f}"):
        assert shown in text
    assert server.get(f"/replay.json?{urlencode(MADE)}").json()["figures"]["requests"] == made.figures.requests
    assert len(server.get(f"/replay.csv?{urlencode(MADE)}").text.splitlines()) == 61


def test_the_page_reads_no_files_and_bounds_its_work(server: Server) -> None:
    for change, words in (
        ({"make": "", "rate": "", "hours": "", "trace": "/etc/passwd"}, "the page reads no files"),
        ({"hours": "1000"}, "at most 50,000 requests"),
        ({"cheapest": "1"}, "use the command line"),
        ({"read": "nginx"}, "reads no files"),
    ):
        reply = server.get(f"/replay?{urlencode(MADE | change)}")
        assert reply.status == 400
        assert words in unescape(reply.text)
