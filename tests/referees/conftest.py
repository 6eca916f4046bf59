"""Referees: the real parsers of other programs on files that `export` writes. `make referees` installs each and runs these tests."""

import importlib
import importlib.util
import os
import sys
import typing
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
if "override" not in vars(typing) and importlib.util.find_spec("typing_extensions"):
    typing.override = importlib.import_module("typing_extensions").override  # type: ignore[attr-defined]  # Megatron's code is of Python 3.12
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
