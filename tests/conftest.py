"""What every test stands on: repeatable examples, and no data of the machine it runs on."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from meshwise import clusters, hardware, lookup

settings.register_profile("meshwise", deadline=None, derandomize=True, max_examples=150)
settings.register_profile("fuzz", deadline=None, max_examples=5000)  # pytest --hypothesis-profile=fuzz
settings.load_profile("meshwise")

os.environ["MESHWISE_HOME"] = os.devnull  # no folder: the catalogues are the built-in ones, whoever runs the tests


def forget() -> None:
    """Read the catalogues again: what is cached was read from another folder."""
    for cached in (hardware.find_chip, hardware.known_chip, hardware.chips, hardware.read_chip, clusters.cluster_files):
        cached.cache_clear()
    lookup.hub_ids.cache_clear()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's own folder, with room for chips, clusters and models."""
    for kind in ("chips", "clusters", "models"):
        (tmp_path / kind).mkdir()
    monkeypatch.setenv("MESHWISE_HOME", str(tmp_path))
    forget()
    yield tmp_path
    forget()
