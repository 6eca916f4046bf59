"""Messages between the processes of a run, signed with its secret: values in the store, and objects that ranks exchange.

torch's store has no password, and its ranks unpickle what a peer sends. So no value of the store is used, and no object unpickled, before
its signature is checked.
"""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false, reportPrivateUsage=false, reportAttributeAccessIssue=false
import io
import pickle
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import Store

from meshwise.workers.secret import Forged, opened, signed

OBJECT = "object"  # the purpose of objects that ranks exchange


class SignedStore:
    """A store whose values are signed for their key: a value that no process of this run wrote counts as not set."""

    def __init__(self, store: Store, name: str) -> None:
        self.store, self.name = store, name
        """The store, and a name for it that is part of what is signed: values of another start do not hold."""

    def set(self, key: str, value: str) -> None:
        self.store.set(key, self._signed(key, value))

    def find(self, keys: Sequence[str], *, whole: bool = False) -> dict[str, bytes]:
        """Return the values of those keys that a process of this run has set; none of them as long as not all are set, with `whole`."""
        present = keys if self.store.check(list(keys)) else [] if whole else [key for key in keys if self.store.check([key])]
        found: dict[str, bytes] = {}
        for key, value in zip(present, self.store.multi_get(list(present)) if present else (), strict=True):
            with suppress(Forged):
                found[key] = opened(self._purpose(key), value)
        return found

    def claim(self, key: str, value: str) -> bytes:
        """Set a key that no process of this run has set; return what it holds then."""
        own = self._signed(key, value)
        try:
            return opened(self._purpose(key), self.store.compare_set(key, "", own))
        except Forged:
            self.store.set(key, own)
            return value.encode()

    def _purpose(self, key: str) -> str:
        return f"{self.name}/{key}"

    def _signed(self, key: str, value: str) -> Any:
        return signed(self._purpose(key), value.encode())


class SignedPickler:
    """Writes a pickle behind its signature, under the names that torch calls."""

    def __init__(self, file: io.BytesIO) -> None:
        self.file = file

    def dump(self, value: object) -> None:
        self.file.write(signed(OBJECT, pickle.dumps(value)))


class SignedUnpickler:
    """Reads a pickle only if a process of this run wrote it."""

    def __init__(self, file: io.BytesIO) -> None:
        self.file = file

    def load(self) -> Any:
        return pickle.loads(opened(OBJECT, self.file.read()))


def sign_objects() -> None:
    """Have all object collectives of torch, those of distributed checkpoints too, sign what they send and check what they receive."""
    distributed_c10d._pickler = SignedPickler
    distributed_c10d._unpickler = SignedUnpickler
