"""The store of a run listens on one address, and nothing that somebody writes into it is executed."""

import base64
import contextlib
import json
import os
import pickle
import random
import signal
import socket
import subprocess
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
from support.trainer_process import Training, descendants, environment_of

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


def ports_of(processes: list[int]) -> set[int]:
    """Return the ports on which processes listen."""
    sockets = {os.readlink(link) for process in processes for link in Path(f"/proc/{process}/fd").iterdir() if link.is_symlink()}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {int(row[1].partition(":")[2], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets}


@pytest.mark.slow
def test_hostile_bytes_at_every_port_and_forged_values_have_no_effect_on_a_run(tmp_path: Path) -> None:
    """Bytes that are no message change nothing; values of a forger, who speaks the store's own protocol, are not used."""
    run, rng = Training(tmp_path / "run", "--dp-shard", "2", "--steps", "100000", "--checkpoint-every", "90000"), random.Random(0)
    run.after(2)
    worker, bystander = run.workers()[0], subprocess.Popen(["sleep", "600"])
    try:
        ports = ports_of([run.process.pid, *descendants(run.process.pid)])
        for port in sorted(ports) * 10:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as stranger:
                stranger.sendall(rng.randbytes(rng.choice((1, 4, 8, 64, 4096, 60_000))))
        before = len(run.rows())
        run.after(before + 5)
        port = int(environment_of(worker)["MASTER_PORT"])
        store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=MINUTE)
        beats = [key for key in store.list_keys() if "beat/" in key]
        assert len(beats) == 2
        evil = {"count": 9, "done": 0, "node": 0, "host": "\x1b[2J", "pid": bystander.pid, "where": "", "message": "\x1b[2J"}
        for key in beats:
            store.set(key, json.dumps(evil))
        for name in ("failure", "stop", "limit/0", "limit/1"):
            store.set(beats[0].rpartition("beat/")[0] + name, json.dumps(evil))
        run.after(len(run.rows()) + 5)
        os.kill(run.process.pid, signal.SIGTERM)
        assert run.end() == 0
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
    printed = run.printed()
    assert "which is saved" in printed
    assert "\x1b" not in printed
    assert "Traceback" not in printed
