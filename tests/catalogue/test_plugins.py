"""Plugins are found in a folder of ours, or by entry point; one of another package that cannot be used is refused by name."""

import sys
from pathlib import Path

import pytest

from meshwise.catalogue.plugins import load_own, load_plugins
from meshwise.errors import UserError
from meshwise.programs.logs.detect import formats


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
    assert load_plugins("meshwise.tests", (), "answer")["some"].answer == 42


def test_a_file_in_a_folder_of_ours_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    package = tmp_path / "some_folder"
    package.mkdir()
    for name, text in {"__init__": "", "my_plugin_2": "answer = 42\n", "helper": "question = 6\n"}.items():
        (package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert load_own(["some_folder"], "my-plugin.2").answer == 42
    assert "some_folder.helper" not in sys.modules
    assert load_own(["some_folder"], "other") is None
    assert list(load_plugins("meshwise.tests", ["some_folder"], "answer")) == ["my_plugin_2"]


def test_a_name_of_ours_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "our_folder").mkdir()
    (tmp_path / "our_folder" / "some.py").write_text("answer = 41\n")
    install(tmp_path, "answer = 42\n", monkeypatch)
    assert load_plugins("meshwise.tests", ["our_folder"], "answer")["some"].answer == 41


def test_our_families_and_formats_are_found_in_their_folders():
    assert set(load_plugins("meshwise.families", ["meshwise.models.families"], "model_types", "read")) == {"described", "ttt"}
    assert {"csv", "torchtitan"} <= {module.name for module in formats()}


def test_a_plugin_that_cannot_be_used_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    install(tmp_path, "answer = 42\n", monkeypatch)
    with pytest.raises(UserError, match=r"the plugin 'some' of 'meshwise.tests' \(some_plugin\) does not define question"):
        load_plugins("meshwise.tests", (), "answer", "question")


def test_a_plugin_that_is_not_there_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    install(tmp_path, None, monkeypatch)
    with pytest.raises(UserError, match=r"the plugin 'some' of 'meshwise.tests' \(some_plugin\) cannot be imported: No module"):
        load_plugins("meshwise.tests", ())


@pytest.mark.parametrize("source", ["raise ValueError('broken')", "1 / 0", "import nowhere_at_all", "raise KeyError('x')"])
def test_a_plugin_that_raises_anything_is_refused_in_one_line(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    install(tmp_path, source, monkeypatch)
    with pytest.raises(UserError, match="cannot be imported"):
        load_plugins("meshwise.tests", (), "answer")
