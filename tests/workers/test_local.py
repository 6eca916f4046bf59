"""Ranks of one machine meet on loopback alone: no port of theirs is open to a network, and nothing that is written there is unpickled."""

import os
import pickle
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed.rendezvous import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from meshwise.run.children import descendants
from meshwise.workers.probe.meeting import Meeting, Place
from meshwise.workers.secret import SECRET, Forged

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sockets of a process are read from /proc")
RANK = """
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
os.write(1, f"total {float(total)}\\n".encode())  # one write, so that lines of two ranks are never mixed
time.sleep(float(os.environ["WAIT"]))
os._exit(int(os.environ["CODE"]) if dist.get_rank() else 0)
"""


class Owned:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.open, (str(self.path), os.O_CREAT)


def listening(pid: int) -> list[str]:
    """Return the addresses on which a process and its children listen, as the kernel writes them."""
    files = [path for one in (pid, *descendants(pid)) for path in Path(f"/proc/{one}/fd").iterdir() if os.path.lexists(path)]
    inodes = {os.readlink(path).removeprefix("socket:[").removesuffix("]") for path in files}
    rows = [row.split() for name in ("tcp", "tcp6") for row in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return [row[1] for row in rows if row[3] == "0A" and row[9] in inodes]


def start(tmp_path: Path, wait: float, code: int = 0) -> "subprocess.Popen[str]":
    (tmp_path / "rank_of_test.py").write_text(RANK)
    return subprocess.Popen(
        [sys.executable, "-m", "meshwise.workers.local", "2", "rank_of_test"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}", "WAIT": str(wait), "CODE": str(code)},
    )  # fmt: skip


def attack(addresses: list[str], file: Path) -> None:
    """Write pickles that create a file into every store at these addresses."""
    for port in {int(address.partition(":")[2], 16) for address in addresses}:
        try:
            store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=1))
        except (RuntimeError, ValueError):
            continue  # a port of gloo
        for key in ("torch.rendezvous.none", "default_pg/0", "rendezvous"):
            store.set(key, pickle.dumps(Owned(file)))  # pyright: ignore[reportArgumentType]


@pytest.mark.slow
def test_ranks_meet_on_loopback_and_pickles_in_their_store_have_no_effect(tmp_path: Path) -> None:
    with start(tmp_path, 6.0) as ranks:
        assert ranks.stdout is not None
        assert ranks.stdout.readline() == "total 3.0\n"
        found = listening(ranks.pid)
        attack(found, tmp_path / "owned")
        assert ranks.wait(60) == 0
    assert found
    assert all(address.startswith("0100007F:") for address in found), found
    assert not (tmp_path / "owned").exists()


@pytest.mark.slow
def test_a_rank_that_fails_ends_the_others_and_gives_its_exit_code(tmp_path: Path) -> None:
    with start(tmp_path, 0.1, code=7) as ranks:
        assert ranks.wait(120) == 7


def test_ranks_of_a_preflight_believe_only_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    from meshwise.run.serve.process import free_port

    port = free_port()
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), SECRET: "of the run"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    meeting = Meeting(Place(0, 1, 0, 1), 20.0)
    assert [address for address in listening(os.getpid()) if address.endswith(f":{port:04X}")] == [f"0100007F:{port:04X}"]
    assert meeting.gather("") == []
    meeting.tell("alone", [{"kind": "machine"}])
    assert meeting.told("alone") == [{"kind": "machine"}]
    stranger = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=20))
    stranger.set("alone/0", '[{"kind": "machine", "host": "forged"}]')
    with pytest.raises(Forged):
        meeting.told("alone")
    began = time.monotonic()
    meeting.leave()
    assert time.monotonic() - began < 5
