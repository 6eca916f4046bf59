"""Write a file whole or not at all."""

import os
import tempfile
from pathlib import Path

from meshwise.errors import UserError, quoted


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
