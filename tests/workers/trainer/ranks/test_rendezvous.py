"""Nodes that wait for each other: missing nodes are named, and a request to stop ends the wait."""

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from torch.distributed.elastic.rendezvous.api import RendezvousClosedError, RendezvousConnectionError, RendezvousTimeoutError
from torch.distributed.rendezvous import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from meshwise.workers.trainer.contract.process.stop import STOP_FILE
from meshwise.workers.trainer.ranks.agent import rendezvous_failure
from meshwise.workers.trainer.ranks.rendezvous import RendezvousMonitor, format_nodes
from support.trainer_process import Training, alive, descendants


def never(why: str) -> None:
    raise AssertionError(why)


def until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def where() -> Iterator[str]:
    """The store of node 0."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield f"127.0.0.1:{store.port}"
    del store


def test_node_0_reports_missing_nodes_and_those_that_left(where: str) -> None:
    printed: list[str] = []
    third = RendezvousMonitor(2, 3, where, printed.append, never, patience=60)  # pyright: ignore[reportArgumentType]
    third.begin()
    first = RendezvousMonitor(0, 3, where, printed.append, never, patience=1.6)  # pyright: ignore[reportArgumentType]
    first.begin()
    until(lambda: printed)
    assert printed == [f"waiting for node 1 at {where}"]
    until(lambda: third.missing == [1])  # published by node 0
    third.end()  # it disappears without a message
    until(lambda: len(printed) > 1)
    assert printed[1:] == [f"waiting for nodes 1 and 2 at {where}"]
    first.end()
    assert rendezvous_failure(RendezvousTimeoutError(), first).startswith(f"nodes 1 and 2 did not join at {where} within ")
    lost = RendezvousConnectionError("see inner exception")
    lost.__cause__ = RuntimeError("timed out\nframe #0: c10::Error")
    assert rendezvous_failure(lost, third) == f"node 0 at {where} cannot be reached (timed out)"
    assert rendezvous_failure(RendezvousClosedError(), third) == f"the run at {where} is over; restart the commands of all nodes"


def test_a_request_to_stop_ends_the_wait_even_before_the_store_is_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STOP_FILE, str(tmp_path / "stop"))
    why: list[str] = []
    second = RendezvousMonitor(1, 2, "127.0.0.1:1", never, why.append)  # pyright: ignore[reportArgumentType]
    (tmp_path / "stop").write_text("stop")
    until(lambda: why)
    second.end()
    assert why[0] == "stopped by a signal while waiting for node 0 at 127.0.0.1:1"


def test_many_nodes_are_named_in_short() -> None:
    assert format_nodes([3]) == "node 3"
    assert format_nodes([1, 3]) == "nodes 1 and 3"
    assert format_nodes(range(1, 64)) == "nodes 1, 2, 3, 4, 5, 6, 7, 8 and 55 more"


def test_a_signal_ends_the_wait_of_node_0_for_node_1_at_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        where = f"127.0.0.1:{free.getsockname()[1]}"
    run = Training(tmp_path / "run", "--dp-shard", "2", "--nodes", "2", "--node-rank", "0", "--rendezvous", where)
    run.until(lambda: f"waiting for node 1 at {where}" in run.printed())
    family = descendants(run.process.pid)
    assert family
    os.kill(run.process.pid, signal.SIGTERM)
    assert run.end() == 1
    run.until_gone(family)
    assert run.printed().splitlines()[-1] == f"meshwise: stopped by a signal while waiting for node 1 at {where}"
    assert alive(family) == []
