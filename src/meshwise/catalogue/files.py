"""Find, read and write the data files of the catalogue. Files in the user's own folder come before the built-in ones."""

import os
import re
import tempfile
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from meshwise.errors import UserError, quoted

BUILT_IN = Path(__file__).parent.parent / "data"
LARGEST_FILE = 16 * 2**20
"""No chip, cluster or config.json is near this; a larger one was named by mistake."""

_CACHES: list[Any] = []
Read = TypeVar("Read", bound=Callable[..., Any])


def cached(read: Read) -> Read:
    """Cache a function that reads the catalogue until `clear` is called."""
    _CACHES.append(cache(read))
    return _CACHES[-1]


def clear() -> None:
    """Forget everything that was read from the catalogue, so that changed files are read again."""
    for one in _CACHES:
        one.cache_clear()


def user_folder() -> Path:
    """`$MESHWISE_HOME`, or ~/.config/meshwise: the same sub-folders as the built-in data."""
    return Path(os.environ.get("MESHWISE_HOME") or Path.home() / ".config" / "meshwise")


def files(kind: str, suffix: str) -> dict[str, Path]:
    """Name to file for one catalogue ('chips', '.toml'), sorted by name."""
    found: dict[str, Path] = {}
    for folder in (BUILT_IN / kind, user_folder() / kind):
        own = _within(folder, suffix)
        taken = {squeeze(name) for name in own}
        found = {name: path for name, path in found.items() if squeeze(name) not in taken} | own
    return dict(sorted(found.items()))


def _within(folder: Path, suffix: str) -> dict[str, Path]:
    try:
        paths = list(folder.iterdir()) if folder.is_dir() else []
    except OSError as error:
        raise UserError(f"cannot read {quoted(str(folder), 200)}: {error.strerror}") from None
    return {path.name.removesuffix(suffix): path for path in paths if path.name.endswith(suffix)}


def squeeze(name: str) -> str:
    """What is left of a name when case and punctuation do not count: 'RTX 4060 Ti-16GB' is 'rtx4060ti16gb'.

    A decimal point stays: 'OPT 1.3B' and 'OPT 13B' are two models. So do the marks that name a cluster: 'a10:0' is no 'a100'.
    """
    return re.sub(r"(?<!\d)\.|\.(?!\d)|[^\w.:()]|_", "", name.lower())


def text_of(path: Path) -> str:
    """The text of a data file; what keeps it from being read is told in one line."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise UserError(f"{path}: larger than {LARGEST_FILE >> 20} MiB, so not a file of this kind")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path}: not a text file (UTF-8)") from None
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {quoted(str(path), 200)}: {getattr(error, 'strerror', None) or error}") from None


def table_of(path: Path) -> dict[str, object]:
    """The table that a TOML file holds."""
    try:
        return tomllib.loads(text_of(path))
    except (ValueError, RecursionError) as error:  # ValueError: malformed, or a number of thousands of digits
        raise UserError(f"{path}: not valid TOML: {error}") from None


def write(path: Path, content: str | bytes) -> None:
    """A reader never finds half a file, and a failure leaves the old one as it was."""
    beside = None
    try:
        handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.")
        with open(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        os.chmod(beside, 0o666 & ~_mask())  # mkstemp's file is for its owner alone
        os.replace(beside, path)
        beside = None
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise UserError(f"cannot write {quoted(str(path), 200)}: {getattr(error, 'strerror', None) or error}") from None
    finally:
        if beside is not None:
            Path(beside).unlink(missing_ok=True)


def _mask() -> int:
    """What the user's shell takes away from new files."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
