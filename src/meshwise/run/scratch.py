"""Files that pass data between this process and those it starts, and that are gone when this process is, however it ends."""

import os
import sys
import tempfile
from pathlib import Path


class ScratchFile:
    """A file that other processes of this machine open by its path. On Linux it has no name in any folder."""

    def __init__(self, text: str = "") -> None:
        self.named = False
        self.handle, self.path = -1, Path()
        if sys.platform == "linux":
            self.handle = os.memfd_create("meshwise")
            self.path = Path(f"/proc/{os.getpid()}/fd/{self.handle}")
        if not self.path.is_file():  # another system, or one without /proc
            self.close()
            self.handle, name = tempfile.mkstemp(prefix="meshwise-")
            self.named, self.path = True, Path(name)
        if text:
            os.write(self.handle, text.encode())

    def append(self, data: bytes) -> None:
        """Add data at the end."""
        os.write(self.handle, data)

    def close(self) -> None:
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1
        if self.named:
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> "ScratchFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
