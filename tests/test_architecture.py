"""The map of the source tree: no circles of files, and packages whose docstrings name what is in them.

Who may import whom is in pyproject.toml (import-linter). It sees packages and their members; this sees every file.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"
PACKAGES = [path.parent for path in sorted((SRC / "meshwise").rglob("__init__.py"))]
COVERS_ALL = re.compile(r"\b(one|every other) (file|module|page)\b", re.IGNORECASE)
"""Words of a docstring for a folder whose files are found, not listed: 'training programs, one file each'."""


def dotted(path: Path) -> str:
    """The name of a file's module."""
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {dotted(path): path for path in sorted((SRC / "meshwise").rglob("*.py"))}


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node that runs: what stands under `if TYPE_CHECKING` does not."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from nodes(child)


def imports(path: Path) -> set[str]:
    """The files of meshwise that a file imports, in functions too."""
    found: set[str] = set()
    for node in nodes(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: imports are absolute"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in FILES else str(node.module) for name in names}
    return found & set(FILES)


@cache
def graph() -> dict[str, set[str]]:
    return {name: imports(path) - {name} for name, path in FILES.items()}


def test_no_files_import_each_other_in_a_circle() -> None:
    """An import inside a function hides a circle from Python, and not from a reader."""
    try:
        TopologicalSorter(graph()).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


# Docstrings of packages.


def docstring(package: Path) -> str:
    return ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or ""


def members(package: Path) -> set[str]:
    """The files and folders of a package, as a docstring names them."""
    files = {path.name for path in package.glob("*.py") if not path.name.startswith("__")}
    return files | {f"{path.parent.name}/" for path in package.glob("*/__init__.py")}


def named(text: str) -> set[str]:
    """The files and folders that a docstring names: 'plan.py', 'train/', 'read/files.py'."""
    return set(re.findall(r"(?<![\w/.`-])((?:\w+/)+(?:\w+\.py)?|\w+\.py)(?![\w/])", text))


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: dotted(path / "__init__.py"))
def test_a_package_says_what_is_in_it(package: Path) -> None:
    text = docstring(package)
    assert text
    assert {name for name in named(text) if not ((package / name).exists() or (SRC / "meshwise" / name).exists())} == set()
    if package.name != "meshwise" and not COVERS_ALL.search(text):
        assert members(package) - {name.partition("/")[0] + "/" * ("/" in name) for name in named(text)} == set()
