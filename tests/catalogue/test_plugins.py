"""Plugins are found by entry point; one that cannot be used is refused by name."""

import sys
from pathlib import Path

import pytest

from meshwise.catalogue.plugins import load_plugins
from meshwise.errors import UserError


def install(folder: Path, source: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the module `some_plugin` under the group `meshwise.tests`, with `source` as its text."""
    if source is not None:
        (folder / "some_plugin.py").write_text(source)
    (folder / "some_plugin-1.dist-info").mkdir()
    (folder / "some_plugin-1.dist-info" / "METADATA").write_text("Name: some-plugin\nVersion: 1\n")
    (folder / "some_plugin-1.dist-info" / "entry_points.txt").write_text("[meshwise.tests]\nsome = some_plugin\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "some_plugin", raising=False)


@pytest.fixture(autouse=True)
def forget():
    yield
    sys.modules.pop("some_plugin", None)


def test_a_registered_module_is_loaded_under_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    install(tmp_path, "answer = 42\n", monkeypatch)
    assert load_plugins("meshwise.tests", "answer")["some"].answer == 42


def test_built_in_modules_are_registered_like_any_other():
    assert {"described", "ttt"} <= set(load_plugins("meshwise.families", "model_types", "read"))
    assert {"csv", "torchtitan"} <= set(load_plugins("meshwise.logs", "name", "matches", "read"))


def test_a_plugin_that_cannot_be_used_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    install(tmp_path, "answer = 42\n", monkeypatch)
    with pytest.raises(UserError, match=r"the plugin 'some' of 'meshwise.tests' \(some_plugin\) does not define question"):
        load_plugins("meshwise.tests", "answer", "question")


def test_a_plugin_that_is_not_there_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    install(tmp_path, None, monkeypatch)
    with pytest.raises(UserError, match=r"the plugin 'some' of 'meshwise.tests' \(some_plugin\) cannot be imported: No module"):
        load_plugins("meshwise.tests")


def test_a_group_without_plugins_tells_how_to_install_meshwise():
    with pytest.raises(UserError, match=r"run 'pip install \.' in its folder"):
        load_plugins("meshwise.none")
