"""The wheel that `pip install` takes: built, installed into a folder of its own, and run from another one."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[1]
pytest.importorskip("setuptools", "77")  # pyproject.toml's; nothing is downloaded here
pytestmark = pytest.mark.slow


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "--no-input", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, because setuptools writes beside its sources."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    skipped = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", source / "src", ignore=skipped)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source))
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    target = wheel.parent / "installed"
    pip("install", "--no-deps", "--no-index", "--target", str(target), str(wheel))
    return target


def test_every_module_and_data_file_is_in_the_wheel(wheel: Path) -> None:
    source = ROOT / "src"
    wanted = {
        str(path.relative_to(source))
        for path in (source / "meshwise").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with ZipFile(wheel) as archive:
        assert wanted - set(archive.namelist()) == set()
    assert {Path(name).suffix for name in wanted} >= {".py", ".toml", ".json", ".csv", ".typed"}


def run(installed: Path, folder: Path, *arguments: str) -> str:
    """Standard output of a program that finds the installed files first."""
    environment = os.environ | {"PYTHONPATH": str(installed), "COLUMNS": "80"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_installed_program_counts_plans_and_serves_from_any_folder(installed: Path, tmp_path: Path) -> None:
    script = "import meshwise, meshwise.api; print(meshwise.__file__, meshwise.api.__file__)"
    assert all(Path(file).is_relative_to(installed) for file in run(installed, tmp_path, "-c", script).split())
    counted = json.loads(run(installed, tmp_path, "-m", "meshwise", "count", "llama-3-8b", "--json"))
    assert counted[0]["parameters"]["total"] == 8_030_261_248
    planned = run(installed, tmp_path, "-m", "meshwise", "plan", "llama-3-8b", "--on", "8xh100-sxm", "--batch", "64")
    assert "reproduce: meshwise plan llama-3-8b --on 8xh100-sxm --batch 64x4096" in planned
    served = run(installed, tmp_path, "-m", "meshwise", "serve", "llama-3.3-70b:q4_k_m", "--on", "4xrtx4060ti-16gb")
    assert "llama-server -m llama-3.3-70b-Q4_K_M.gguf" in served
    scored = json.loads(run(installed, tmp_path, "-m", "meshwise", "validate", "korthikanti2022_iteration", "--json"))
    assert scored["rows"] == 10
    assert list(tmp_path.iterdir()) == []


def test_the_script_is_installed(installed: Path, tmp_path: Path) -> None:
    assert run(installed, tmp_path, str(installed / "bin" / "meshwise"), "--help").startswith("Usage: meshwise VERB")
