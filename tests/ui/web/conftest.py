"""A server that the tests of pages share."""

from collections.abc import Iterator

import pytest

pytest.importorskip("starlette", reason="the extra [ui] is not installed")
from support.pages import Server, serving


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with serving() as running:
        yield running
