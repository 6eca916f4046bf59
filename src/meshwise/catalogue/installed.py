"""Installed: the version and data of this installation, its extras, and the engines, programs and devices that this machine has."""

import json
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from typing import Any, cast

from meshwise.catalogue import files, here
from meshwise.version import VERSION

BUILT = files.BUILT_IN / "built.json"
"""Written into a wheel or sdist by setup.py: the commit that it was built from, and the day of its data."""
ARCHIVED = files.BUILT_IN / "archived.txt"  # where `git archive` writes the commit and its day (.gitattributes)
CHECKOUT = files.BUILT_IN.parents[2]
REQUIREMENT = re.compile(r"""([A-Za-z0-9._-]+).*;\s*extra\s*==\s*['"]([\w-]+)['"]""")
UNKNOWN = "unknown"
DEVELOPING = ("dev", "site")  # extras of people who work on meshwise itself, which nobody else needs to hear of


@dataclass(frozen=True)
class Installed:
    """What is installed, and what is seen."""

    version: str
    commit: str
    data_date: str
    python: str
    data: str
    """The folder of the built-in data."""
    own: str
    """The user's folder, whose files come before the built-in ones."""
    own_files: tuple[str, ...]
    extras: Mapping[str, tuple[str, ...]]
    """By extra: the packages that are missing; none where it can be used."""
    engines: Mapping[str, str]
    """By engine that is found: the program or package that shows it."""
    frameworks: Mapping[str, str]
    gpus: tuple[str, ...]
    host_memory: float
    """Bytes."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def look() -> Installed:
    """Look at this installation and this machine."""
    commit, date = built()
    signs = cast(Mapping[str, Mapping[str, list[str]]], files.table_of(files.BUILT_IN / "installed.toml"))
    own = files.user_folder()
    return Installed(
        version=VERSION, commit=commit, data_date=date, python=platform.python_version(),
        data=str(files.BUILT_IN), own=str(own), extras=extras(), host_memory=here.host_memory(),
        own_files=tuple(str(path.relative_to(own)) for path in sorted(own.rglob("*")) if path.is_file()),
        engines=_seen(signs["engines"]), frameworks=_seen(signs["frameworks"]), gpus=(*here.gpus(), *here.radeons()),
    )  # fmt: skip


def built() -> tuple[str, str]:
    """Return the commit and the day of the data: those of the wheel, the archive, or the checkout that this file lies in."""
    if BUILT.exists():
        stated = json.loads(BUILT.read_text(encoding="utf-8"))
        return str(stated["commit"]), str(stated["data_date"])
    commit, _, day = ARCHIVED.read_text(encoding="utf-8").strip().partition(" ")
    if "$" not in commit:
        return commit[:12], day
    return _git("rev-parse", "--short=12", "HEAD"), _git("log", "-1", "--format=%cs", "--", "src/meshwise/data")


def _git(*words: str) -> str:
    if not (CHECKOUT / ".git").exists() or shutil.which("git") is None:
        return UNKNOWN
    done = subprocess.run(["git", "-C", str(CHECKOUT), *words], capture_output=True, text=True, check=False, timeout=20)
    return done.stdout.strip() or UNKNOWN


def extras() -> dict[str, tuple[str, ...]]:
    """Return the packages that each extra lacks, from the metadata of this installation."""
    missing: dict[str, tuple[str, ...]] = {}
    stated = metadata.requires("meshwise") if _has("meshwise") else ()
    for line in stated or ():
        found = REQUIREMENT.match(line)
        if found and found[2] not in DEVELOPING:
            missing[found[2]] = (*missing.get(found[2], ()), *(() if _has(found[1]) else (found[1],)))
    return missing


def _has(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def _seen(signs: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Return by name the first sign that is there: the path of a program, or a Python package with its version."""
    found = {name: next((sign for sign in map(_sign, known) if sign), "") for name, known in signs.items()}
    return {name: sign for name, sign in found.items() if sign}


def _sign(name: str) -> str:
    program = shutil.which(name)
    if program:
        return program
    if not name.isidentifier() or find_spec(name) is None:
        return ""
    package = name.replace("_", "-")
    return f"Python package {name} {metadata.version(package)}" if _has(package) else f"Python package {name}"
