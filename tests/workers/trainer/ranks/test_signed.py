"""What the processes of a run tell each other is signed: whoever reaches a port of theirs changes nothing, and runs nothing."""

import io
import os
import pickle
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import distributed_c10d
from torch.distributed.elastic.rendezvous.api import RendezvousStateError
from torch.distributed.rendezvous import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from meshwise.workers.secret import SECRET, Forged, opened, signed
from meshwise.workers.trainer.ranks.agent import rendezvous_failure
from meshwise.workers.trainer.ranks.rendezvous import MISSING, RendezvousMonitor
from meshwise.workers.trainer.ranks.signed import SignedPickler, SignedStore, SignedUnpickler, sign_objects
from meshwise.workers.trainer.ranks.store import serve


class Hostile:
    """An object that creates a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> TCPStore:
    monkeypatch.setenv(SECRET, "a secret")
    return serve("127.0.0.1", 0, timedelta(seconds=60))


def test_a_signature_holds_for_one_purpose_and_one_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET, "a")
    text = signed("beat/0", b"alive")
    assert opened("beat/0", text) == b"alive"
    for purpose, other in [
        ("beat/1", text),
        ("beat/0", text + b"!"),
        ("beat/0", b""),
        ("beat/0", b"alive"),
        ("beat/", b"0" + text),
    ]:
        with pytest.raises(Forged):
            opened(purpose, other)
    monkeypatch.setenv(SECRET, "b")
    with pytest.raises(Forged):
        opened("beat/0", text)


def test_values_that_somebody_else_writes_into_the_store_count_as_not_set(store: TCPStore) -> None:
    ours, keys = SignedStore(store, "start-1"), ["beat/0", "beat/1", "beat/2"]
    ours.set("beat/0", "alive")
    ours.set("beat/1", "alive too")
    assert ours.find(keys) == {"beat/0": b"alive", "beat/1": b"alive too"}
    assert SignedStore(store, "start-2").find(keys) == {}  # of another start
    store.set("beat/1", store.get("beat/0"))  # moved to another key  # pyright: ignore[reportArgumentType]
    store.set("beat/2", "alive")
    assert ours.find(keys) == {"beat/0": b"alive"}
    assert ours.claim("failure", "mine") == b"mine"
    assert ours.claim("failure", "later") == b"mine"
    store.set("failure", '{"kind": "hang"}')
    assert ours.claim("failure", "later") == b"later"


def test_an_object_is_unpickled_only_if_this_run_sent_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET, "a secret")
    file = io.BytesIO()
    SignedPickler(file).dump({"step": 3})
    assert SignedUnpickler(io.BytesIO(file.getvalue())).load() == {"step": 3}
    with pytest.raises(Forged):
        SignedUnpickler(io.BytesIO(pickle.dumps(Hostile(tmp_path / "evil")))).load()
    assert not (tmp_path / "evil").exists()


def test_collectives_of_torch_check_what_they_receive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that is not of this run sends a pickle, as torch's own all_gather_object would."""
    monkeypatch.setenv(SECRET, "a secret")
    for name in ("_pickler", "_unpickler"):
        monkeypatch.setattr(distributed_c10d, name, getattr(distributed_c10d, name))
    sign_objects()
    read, write = (getattr(distributed_c10d, name) for name in ("_tensor_to_object", "_object_to_tensor"))
    sent, size = write([1, "two"], torch.device("cpu"), None)
    assert read(sent, size, None) == [1, "two"]
    evil = torch.frombuffer(bytearray(pickle.dumps(Hostile(tmp_path / "evil"))), dtype=torch.uint8)
    with pytest.raises(Forged):
        read(evil, evil.numel(), None)
    assert not (tmp_path / "evil").exists()


def test_names_of_missing_nodes_are_not_taken_from_strangers(store: TCPStore) -> None:
    monitor = RendezvousMonitor(1, 2, f"127.0.0.1:{store.port}", print, lambda why: pytest.fail(why), patience=60)
    monitor.waiting = False
    monitor.thread.join()
    store.set(MISSING, '["\\u001b[2J"]')
    monitor._look()  # pyright: ignore[reportPrivateUsage]
    assert monitor.missing == [0]


def test_a_node_with_another_secret_is_told_what_to_share() -> None:
    assert "an --out on a file system that they share" in rendezvous_failure(RendezvousStateError("x"), None)
