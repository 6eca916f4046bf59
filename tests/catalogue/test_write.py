"""A file is written whole or not at all."""

from pathlib import Path

import pytest

from meshwise.catalogue import files
from meshwise.errors import UserError
from support.command import one_line


def test_a_file_is_replaced_and_no_temporary_file_is_left(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    files.write(path, "one")
    files.write(path, "two")
    assert path.read_text() == "two"
    assert list(tmp_path.iterdir()) == [path]


def test_a_text_that_cannot_be_encoded_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("old")
    with pytest.raises(UserError):
        files.write(path, "half \ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["none/a.toml", "a\0b", "."])
def test_an_unwritable_path_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError) as refused:
        files.write(tmp_path / name, "x")
    assert one_line(refused.value).startswith("cannot write")
