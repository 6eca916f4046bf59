"""A server that the tests of pages share."""

from collections.abc import Iterator

import pytest

from support.pages import Server, serving


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with serving() as running:
        yield running
