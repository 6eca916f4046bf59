"""Plan files that the tests of verbs share."""

from pathlib import Path

import pytest

from support.command import BLOOM, meshwise


@pytest.fixture(scope="session")
def bloom_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan.json of BLOOM, written once."""
    path = tmp_path_factory.mktemp("bloom") / "plan.json"
    assert meshwise(*BLOOM, "--out", str(path)).code == 0
    return path


@pytest.fixture
def plan(bloom_file: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may change."""
    path = tmp_path / "plan.json"
    path.write_text(bloom_file.read_text(encoding="utf-8"), encoding="utf-8")
    return path
