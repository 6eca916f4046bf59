"""The secret of a run, which only its own processes know: what they tell each other through ports that others may reach is signed with it.
No torch.

The launcher passes it in the environment, which other users cannot read. Without it, texts are signed with an empty key.
"""

import hashlib
import hmac
import os

SECRET = "MESHWISE_SECRET"  # the variable that holds it
SIZE = hashlib.sha256().digest_size


class Forged(ValueError):
    """A text that no process of this run signed."""


def signed(purpose: str, data: bytes) -> bytes:
    """Return data behind its signature, which holds for this purpose alone."""
    return _signature(purpose, data) + data


def opened(purpose: str, text: bytes) -> bytes:
    """Return the data of a signed text; raise Forged if the signature is not that of this run and purpose."""
    signature, data = text[:SIZE], text[SIZE:]
    if not hmac.compare_digest(signature, _signature(purpose, data)):
        raise Forged("it holds something that no process of this run wrote")
    return data


def _signature(purpose: str, data: bytes) -> bytes:
    key = hashlib.sha256(os.environ.get(SECRET, "").encode("utf-8", "surrogateescape")).digest()
    return hmac.new(key, len(purpose.encode()).to_bytes(8, "big") + purpose.encode() + data, hashlib.sha256).digest()
