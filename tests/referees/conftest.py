"""Referees: the real parsers of other programs on files that `export` writes. `make referees` installs each and runs these tests."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ["MESHWISE_HOME"] = os.devnull


def pytest_configure(config: pytest.Config) -> None:
    """Warnings of other programs are not ours."""
    config.addinivalue_line("filterwarnings", "ignore")


@pytest.fixture
def referee() -> str:
    """Skip a test that takes minutes, unless `make referees` runs it."""
    name = os.environ.get("MESHWISE_REFEREE", "")
    if not name:
        pytest.skip("takes minutes: make referees runs it")
    return name
