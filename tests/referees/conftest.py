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
