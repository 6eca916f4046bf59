"""Find, match, read and write the data files of the catalogue. Files in the user's own folder override the built-in ones."""

import io
import json
import os
import re
import stat
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Mapping
from difflib import SequenceMatcher
from functools import cache
from io import BufferedReader, FileIO
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar

from meshwise.errors import UserError, quoted

BUILT_IN = Path(__file__).parent.parent / "data"
MAX_FILE_BYTES = 16 * 2**20  # bytes. No chip, cluster or config.json comes near this; a larger file was named by mistake.
READ_BYTES = 1 << 18  # bytes that are read at once, and that can be looked at before a file is read
SUFFIXES = {"models": ".json", "measurements": ".csv"}  # suffixes of the files in folders that hold no TOML
TYPO_SIMILARITY = 0.75  # similarity (difflib's ratio) above which a misspelt name is taken to mean another
SUGGESTED_SIMILARITY = 0.5  # similarity above which a name with the same leading word is suggested

_CACHES: list[Any] = []
Read = TypeVar("Read", bound=Callable[..., Any])


def cached(read: Read) -> Read:
    """Cache a function that reads the catalogue until `clear` is called."""
    _CACHES.append(cache(read))
    return _CACHES[-1]


def clear() -> None:
    """Clear all caches of the catalogue, so that changed files are read again."""
    for cached_function in _CACHES:
        cached_function.cache_clear()


def user_folder() -> Path:
    """Return `$MESHWISE_HOME`, or ~/.config/meshwise. It has the same subfolders as the built-in data."""
    return Path(os.environ.get("MESHWISE_HOME") or Path.home() / ".config" / "meshwise")


def files(kind: str, suffix: str) -> dict[str, Path]:
    """Return the files of one catalogue ('chips', '.toml') by name, sorted."""
    paths: dict[str, Path] = {}
    for folder in (BUILT_IN / kind, user_folder() / kind):
        in_folder = _in_folder(folder, suffix)
        taken = {squeeze(name) for name in in_folder} if paths else set[str]()
        kept = {name: path for name, path in paths.items() if squeeze(name) not in taken} if taken else paths
        paths = kept | in_folder
    return dict(sorted(paths.items()))


def _in_folder(folder: Path, suffix: str) -> dict[str, Path]:
    try:
        paths = list(folder.iterdir()) if folder.is_dir() else []
    except OSError as error:
        raise UserError(f"cannot read {quoted(str(folder), 200)}: {error.strerror}") from None
    return {path.name.removesuffix(suffix): path for path in paths if path.name.endswith(suffix)}


def names(kind: str) -> list[str]:
    """Return the names in one catalogue ('chips', 'clusters', 'models'), sorted, without reading any file: for shell completion."""
    return list(files(kind, SUFFIXES.get(kind, ".toml")))


def squeeze(name: str) -> str:
    """Drop case and punctuation, which do not count in names: 'RTX 4060 Ti-16GB' becomes 'rtx4060ti16gb'. A decimal point stays, since
    'OPT 1.3B' and 'OPT 13B' are two models. So do the marks of a cluster: 'a10:0' is not 'a100'."""
    return re.sub(r"(?<!\d)\.|\.(?!\d)|[^\w.:()]|_", "", name.lower())


def matching(words: str, names: Iterable[str], aliases: Mapping[str, Iterable[str]] | None = None) -> list[str]:
    """Return the names that contain every word, in themselves or in one of their `aliases`; case and punctuation do not count. A name that
    is exactly `words` is returned alone. Without words, all names are returned."""
    listed = list(names)
    exact = [name for name in listed if squeeze(name) == squeeze(words)]
    pieces = [squeeze(word) for word in words.split()]

    def contains(name: str, piece: str) -> bool:
        return any(piece in squeeze(alias) for alias in (name, *(aliases or {}).get(name, ())))

    return exact or [name for name in listed if all(contains(name, piece) for piece in pieces)]


def similar(given: str, names: Iterable[str]) -> list[str]:
    """Return the names that `given` may stand for, closest first; empty if nothing is close. An incomplete name stands for all that
    contain it. A misspelt one stands for the closest with a similarity above TYPO_SIMILARITY, else, above SUGGESTED_SIMILARITY, for the
    one with the same leading word and the longest common start: 'glm-4.5-air' does not stand for 'llama-4-maverick'."""
    plain, word = squeeze(given), leading_word(given)
    matcher = SequenceMatcher(b=plain, autojunk=False)
    scores = {name: _likeness(matcher, squeeze(name)) for name in names}
    start = {name: _common_start(name.lower(), given.lower()) for name in scores}
    ranked = sorted(scores, key=lambda name: (*scores[name], start[name]), reverse=True)
    containing = [name for name in ranked if len(plain) > 1 and plain in squeeze(name)]
    close = [name for name in ranked if scores[name][0] >= TYPO_SIMILARITY]
    related = [name for name in ranked if scores[name][0] >= SUGGESTED_SIMILARITY and leading_word(name) == word]
    return containing or close[:1] or sorted(related, key=lambda name: -start[name])[:1]


def _likeness(matcher: "SequenceMatcher[str]", name: str) -> tuple[float, float]:
    """Return difflib's similarity of `name` and the matcher's text, and the share of their letters in any order. Similarities below
    SUGGESTED_SIMILARITY are not computed, and are 0."""
    matcher.set_seq1(name)
    letters = matcher.quick_ratio() if matcher.real_quick_ratio() >= SUGGESTED_SIMILARITY else 0.0
    return (matcher.ratio() if letters >= SUGGESTED_SIMILARITY else 0.0), letters


def _common_start(a: str, b: str) -> int:
    """Return the number of letters with which both texts begin."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def leading_word(name: str) -> str:
    """Return the letters that a name begins with, in lower case: 'llama' for 'Llama-3-70b', 'h' for 'h100-sxm'."""
    match = re.match(r"[^\W\d_]+", name.strip().lower())
    return match[0] if match else ""


def open_file(path: Path) -> BufferedReader:
    """Open a file or pipe to read bytes; a UserError says why it cannot be read. Devices never end, and are refused; so are names that
    would be more than a part of one line where they are printed or written into a script."""
    if not str(path).isprintable():
        raise UserError(
            f"cannot read {quoted(str(path), 200)}: line breaks and control characters in a name are refused; rename it"
        )
    try:
        # not to wait for a writer of a pipe that has none
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None
    mode = os.fstat(handle).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        os.close(handle)
        kind = "a folder" if stat.S_ISDIR(mode) else "a device" if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) else "no file"
        raise UserError(f"cannot read {quoted(str(path), 200)}: it is {kind}")
    os.set_blocking(handle, True)
    return BufferedReader(FileIO(handle), READ_BYTES)


def unreadable(path: Path, error: Exception) -> UserError:
    """Return the error for a file that cannot be opened or read."""
    return UserError(f"cannot read {quoted(str(path), 200)}: {getattr(error, 'strerror', None) or error}")


def bytes_of(path: Path, most: int = MAX_FILE_BYTES) -> bytes:
    """Read a file of at most `most` bytes, whatever its size is said to be."""
    with open_file(path) as file:
        try:
            data = file.read(most + 1)
        except OSError as error:
            raise unreadable(path, error) from None
    if len(data) > most:
        raise UserError(f"{path}: larger than {most >> 20} MiB, so it is not a file of this kind")
    return data


def text_of(path: Path, most: int = MAX_FILE_BYTES) -> str:
    """Read a data file of at most `most` bytes as text; a UserError says why it cannot be read."""
    try:
        return io.TextIOWrapper(io.BytesIO(bytes_of(path, most)), encoding="utf-8-sig").read()
    except UnicodeDecodeError:
        raise UserError(f"{path}: not a text file (UTF-8)") from None


def json_of(text: str, where: str) -> object:
    """Return the value of JSON; `where` names its source in the error."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: malformed, truncated, or a number of thousands of digits
        raise UserError(f"{where}: not valid JSON: {error}") from None


def table_of(path: Path) -> dict[str, object]:
    """Read a TOML file."""
    try:
        return tomllib.loads(text_of(path))
    except (ValueError, RecursionError) as error:  # ValueError: malformed, or a number of thousands of digits
        raise UserError(f"{path}: not valid TOML: {error}") from None


def write_own(kind: str, name: str, content: str) -> Path:
    """Write a file to a sub-folder of the user's folder, which is made if need be; return its path."""
    folder = user_folder() / kind
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot create the folder {folder}: {error.strerror}; MESHWISE_HOME names another") from None
    write(folder / name, content)
    return folder / name


def write(path: Path, content: str | bytes) -> None:
    """Write a file atomically: readers never see half of it, and a failure leaves the old one as it was."""
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.")
        with open(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        os.chmod(temporary, 0o666 & ~_mask())  # mkstemp makes a file that only its owner can read
        os.replace(temporary, path)
        temporary = None
    except (OSError, ValueError) as error:  # ValueError: an impossible file name
        raise UserError(f"cannot write {quoted(str(path), 200)}: {getattr(error, 'strerror', None) or error}") from None
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def _mask() -> int:
    """Return the umask: the permissions that new files do not get."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
