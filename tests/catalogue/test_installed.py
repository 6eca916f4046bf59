"""What is installed: where the commit and the day of the data come from."""

import json
from pathlib import Path

import pytest

from meshwise.catalogue import installed


def test_a_wheel_then_a_tarball_then_a_checkout_say_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """git archive fills in archived.txt (.gitattributes); setup.py writes built.json."""
    assert installed.ARCHIVED.read_text(encoding="utf-8") == "$Format:%H %cs$\n"
    monkeypatch.setattr(installed, "ARCHIVED", tmp_path / "archived.txt")
    monkeypatch.setattr(installed, "BUILT", tmp_path / "built.json")
    monkeypatch.setattr(installed, "CHECKOUT", tmp_path)
    installed.ARCHIVED.write_text("$Format:%H %cs$\n")
    assert installed.built() == (installed.UNKNOWN, installed.UNKNOWN)
    installed.ARCHIVED.write_text(f"{'0123456789' * 4} 2026-11-18\n")
    assert installed.built() == ("012345678901", "2026-11-18")
    installed.BUILT.write_text(json.dumps({"commit": "abc", "data_date": "2026-11-17"}))
    assert installed.built() == ("abc", "2026-11-17")
