"""The store of a run listens on one address, and nothing that somebody writes into it is executed."""

import base64
import os
import pickle
import signal
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.rendezvous import RendezvousParameters, dynamic_rendezvous
from torch.distributed.elastic.rendezvous.api import RendezvousStateError
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import _NodeDesc, _RendezvousState  # pyright: ignore[reportPrivateUsage]
from torch.distributed.rendezvous import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from meshwise.workers.trainer.ranks.store import StateError, StateText, install, serve
from support.trainer_process import Training, descendants

MINUTE = timedelta(seconds=60)


class Hostile:
    """An object that creates a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


def state() -> _RendezvousState:
    made, now = _RendezvousState(), datetime.now(UTC)
    made.round, made.complete, made.deadline = 3, True, now
    made.participants = {_NodeDesc("node-a", 5, 0): 0, _NodeDesc("fe80::1", 6, 1): 1}
    made.wait_list, made.redundancy_list = {_NodeDesc("é", 7, 2)}, {_NodeDesc("d", 8, 3)}
    made.last_heartbeats = {_NodeDesc("node-a", 5, 0): now}
    return made


def test_the_state_of_a_rendezvous_is_text_and_reads_back() -> None:
    for made in (state(), _RendezvousState()):
        assert vars(StateText.loads(StateText.dumps(made))) == vars(made)


def test_anything_else_is_refused(tmp_path: Path) -> None:
    good = StateText.dumps(state())
    cases = [
        pickle.dumps(Hostile(tmp_path / "evil")), pickle.dumps(_RendezvousState()), b"", b"{}", b"[]", b"5", b"null", good[:-5],
        good.replace(b'"round": 3', b'"round": "x"'), good.replace(b'"round": 3', b'"round": 1e999'),
        good.replace(b'"node-a", 5', b'["node-a"], 5'), good.replace(b'"node-a", 5', b'"node-a", "5"'),
        good.replace(b'"participants": [', b'"participants": [1, '), b"[" * 100_000, b"\xff\xfe",
    ]  # fmt: skip
    for text in cases:
        with pytest.raises(StateError):
            StateText.loads(text)
    assert not (tmp_path / "evil").exists()


def test_a_store_listens_on_its_address_alone() -> None:
    store = serve("127.0.0.1", 0, MINUTE)
    TCPStore("127.0.0.1", store.port, is_master=False, wait_for_workers=False, timeout=MINUTE).set("a", "b")
    assert store.get("a") == b"b"
    with pytest.raises(ConnectionRefusedError):  # a store of torch's own answers on every address
        socket.create_connection(("127.0.0.2", store.port), timeout=5).close()
    with pytest.raises(OSError, match="in use"):
        serve("127.0.0.1", store.port, MINUTE)


def test_a_pickle_in_the_store_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key of the rendezvous is replaced as anybody can who reaches the port."""
    for module, name in (
        (dynamic_rendezvous, "pickle"),
        (dynamic_rendezvous.DynamicRendezvousHandler, "_create_tcp_store_server"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name))
    from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend as backends

    monkeypatch.setattr(backends, "_create_tcp_store", backends._create_tcp_store)  # pyright: ignore[reportPrivateUsage]
    install()
    given = RendezvousParameters("c10d", "localhost:0", "run", 1, 1, is_host="true")
    backend, store = create_backend(given)
    handler = dynamic_rendezvous.create_handler(store, backend, given)
    assert handler.next_rendezvous().world_size == 1
    evil = base64.b64encode(pickle.dumps(Hostile(tmp_path / "evil"))).decode()
    store.set("torch.rendezvous.run", evil)
    with pytest.raises(RendezvousStateError):
        handler.next_rendezvous()
    assert not (tmp_path / "evil").exists()


def listening(processes: set[int]) -> set[str]:
    """Return the addresses, in hexadecimal as the kernel writes them, on which processes listen."""
    sockets: set[str] = set()
    for process in processes:
        try:
            sockets |= {os.readlink(link) for link in Path(f"/proc/{process}/fd").iterdir()}
        except OSError:
            continue
    found: set[str] = set()
    for file in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(file).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
                found.add(words[1].partition(":")[0])
    return found


@pytest.mark.slow
def test_a_run_on_one_machine_listens_on_loopback_alone(tmp_path: Path) -> None:
    run = Training(tmp_path / "run", "--dp-shard", "2", "--steps", "3000")
    run.after(2)
    family = descendants(run.process.pid)
    found = listening({run.process.pid, *family})
    os.kill(run.process.pid, signal.SIGTERM)
    run.end()
    run.until_gone(family)
    assert found == {"0100007F"}


@pytest.mark.slow
def test_two_nodes_meet_at_the_address_that_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        where = f"127.0.0.1:{free.getsockname()[1]}"
    words = ("--dp-shard", "2", "--nodes", "2", "--rendezvous", where, "--steps", "4", "--checkpoint-every", "2")
    runs = [Training(tmp_path / "run", *words, "--node-rank", str(node)) for node in range(2)]
    assert [run.end() for run in runs] == [0, 0], runs[0].printed()[-2000:]
    assert len(runs[0].losses()) == 4
