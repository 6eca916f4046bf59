"""The secret of a run: new for one machine, one file for several, readable by its owner alone."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from meshwise.errors import UserError
from meshwise.run.train import secrets
from meshwise.run.train.hosts import Hosts

ONE, TWO = Hosts(), Hosts(2, 0, "node-a:29500")


def test_each_run_on_one_machine_has_a_new_secret_and_no_file(tmp_path: Path) -> None:
    made = {secrets.of_run(tmp_path, ONE, {}) for _ in range(3)}
    assert len(made) == 3
    assert not list(tmp_path.iterdir())


def test_all_nodes_of_a_shared_folder_have_the_same_secret_whichever_comes_first(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as nodes:
        found = set(nodes.map(lambda _: secrets.of_run(tmp_path, TWO, {}), range(32)))
    worker = Hosts(worker={"RANK": "1"})  # started by torchrun or srun
    assert found == {secrets.of_run(tmp_path, worker, {})}
    assert (tmp_path / ".secret").stat().st_mode & 0o777 == 0o600


def test_a_secret_that_the_user_gives_counts(tmp_path: Path) -> None:
    assert secrets.of_run(tmp_path, TWO, {"MESHWISE_SECRET": "ours"}) == "ours"
    assert not list(tmp_path.iterdir())


def test_a_secret_that_others_can_read_or_that_is_a_link_or_none_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secrets, "WRITTEN_SECONDS", 0.2)
    file = tmp_path / ".secret"
    secrets.of_run(tmp_path, TWO, {})
    file.chmod(0o644)
    with pytest.raises(UserError, match="can be read by others; remove it"):
        secrets.of_run(tmp_path, TWO, {})
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="cannot be read or made"):
        secrets.of_run(tmp_path, TWO, {})
    file.unlink()
    os.mkfifo(file, 0o600)
    with pytest.raises(UserError, match="is not one that meshwise made"):
        secrets.of_run(tmp_path, TWO, {})
    file.unlink()
    file.touch(0o600)
    with pytest.raises(UserError, match="is not one that meshwise made"):
        secrets.of_run(tmp_path, TWO, {})
