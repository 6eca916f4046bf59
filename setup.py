"""Puts the commit, the day of the data and the documentation into what is built; everything else is in pyproject.toml."""

import json
import shutil
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

BUILT = Path("src/meshwise/data/built.json")
SITE = Path("build/site")


def git(*words: str) -> str:
    """Return what git prints; 'unknown' outside of a checkout."""
    try:
        done = subprocess.run(["git", *words], capture_output=True, text=True, check=True, cwd=Path(__file__).parent)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip() or "unknown"


def write(folder: Path) -> None:
    """Write built.json, unless the sources have one already: an sdist is built from a checkout, a wheel perhaps from an sdist."""
    target = folder / "meshwise" / "data" / "built.json"
    if BUILT.exists() or not target.parent.is_dir():
        return
    facts = {
        "commit": git("rev-parse", "--short=12", "HEAD"),
        "data_date": git("log", "-1", "--format=%cs", "--", "src/meshwise/data"),
    }
    if facts["commit"] != "unknown":  # a tarball of git archive has its own: archived.txt
        target.write_text(json.dumps(facts) + "\n", encoding="utf-8")


def add_manual(folder: Path) -> None:
    """Add the documentation for `meshwise ui`, where `make site` has built it."""
    if SITE.is_dir():
        as_files = shutil.ignore_patterns("search_index.js")  # the index again, for pages that are opened as files
        shutil.copytree(SITE, folder / "meshwise" / "ui" / "web" / "site", dirs_exist_ok=True, ignore=as_files)


class Modules(build_py):
    """The modules and data of a wheel."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            write(Path(self.build_lib))
            add_manual(Path(self.build_lib))


class Sources(sdist):
    """The sources of an sdist."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        write(Path(base_dir) / "src")
        add_manual(Path(base_dir) / "src")


setup(cmdclass={"build_py": Modules, "sdist": Sources})
