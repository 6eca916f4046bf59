"""Fixtures of all tests: repeatable examples, and no data of the machine they run on."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from meshwise.catalogue import files
from meshwise.ui.cli.main import main
from support.command import Done, Run
from support.nursery import Nursery

settings.register_profile("meshwise", deadline=None, derandomize=True, max_examples=150)
settings.register_profile("fuzz", deadline=None, max_examples=5000)  # pytest --hypothesis-profile=fuzz
settings.load_profile("meshwise")

# a shell has its background jobs ignore SIGINT and SIGQUIT, nohup ignores SIGHUP, and what they start inherits that
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
os.environ["MESHWISE_HOME"] = os.devnull  # no folder: the catalogues are the built-in ones, whoever runs the tests


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the trainer's tests first: they take longest, and the last tests should be short to balance the workers."""
    items.sort(key=lambda item: "workers" not in item.path.parts)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Use an empty user folder with a sub-folder for each catalogue."""
    for kind in ("chips", "clusters", "models", "frameworks", "calibration", "serving"):
        (tmp_path / kind).mkdir()
    monkeypatch.setenv("MESHWISE_HOME", str(tmp_path))
    files.clear()
    yield tmp_path
    files.clear()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs `meshwise` with arguments, in this process and without a terminal."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)

    def meshwise(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["meshwise", *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        captured = capsys.readouterr()
        return Done(int(stopped.value.code or 0), captured.out, captured.err)

    return meshwise


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """A fork server for ranks of the trainer."""
    # virtual machines announce 16-bit instructions that they do not have
    with Nursery(tmp_path_factory.mktemp("nursery"), "meshwise.workers.trainer.loop", ONEDNN_MAX_CPU_ISA="AVX2") as server:
        yield server


@pytest.fixture(scope="session")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """A fork server for programs whose Triton kernels are interpreted on the CPU: Triton reads the variable once, when it is imported."""
    pytest.importorskip("triton")
    with Nursery(tmp_path_factory.mktemp("interpreted"), "torch._dynamo", "triton.language", TRITON_INTERPRET="1") as server:
        yield server
