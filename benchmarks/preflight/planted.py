"""Faults planted in clusters of namespaces on this machine, and healthy clusters: which does `meshwise preflight` name, and in which time?

    sudo python benchmarks/preflight/planted.py [--healthy 50] [--only slow-node] [--seconds 12] [--out results.jsonl]

Each node is a network namespace with a host name of its own, joined by a switch; its cable carries 1 Gbit/s. A fault is a quota of its
control group (a slow node, or one process of it), a slower cable in one direction, a slow path between two nodes, a process that is stopped
and continued, one that hangs, or a node that never starts. One JSON line is printed for each case.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from support import three_hosts
from support.three_hosts import ThreeHosts, ip

CGROUPS = Path("/sys/fs/cgroup/cpu")
CABLE_MBIT = 1000
PERIOD = 100_000
"""Microseconds of a period of a quota."""
DUTY_SECONDS = (0.02, 0.08)
"""How long a throttled process runs and stands still, in turns."""


class Cluster(ThreeHosts):
    """Nodes n0, n1, ... and what is wrong with them."""

    def __init__(self, nodes: int, ranks: int) -> None:
        three_hosts.HOSTS = nodes
        super().__init__()
        self.ranks, self.missing, self.over = ranks, set[int](), False
        self.ends: list[Callable[[], object]] = []

    def make(self) -> None:
        super().make()
        for number in range(len(self.names)):
            self.limit(number, CABLE_MBIT)

    def limit(self, number: int, mbit: float, *, receives: bool = False) -> None:
        """Limit what a node sends, or receives."""
        where = (self.switch, f"port{number}") if receives else (self.names[number], "cable")
        words = ("root", "tbf", "rate", f"{mbit:g}mbit", "burst", "128kb", "latency", "200ms")
        ip("netns", "exec", where[0], "tc", "qdisc", "replace", "dev", where[1], *words)

    def slow_path(self, source: int, target: int, mbit: float) -> None:
        """Limit what one node sends to another, and nothing else."""
        tc = ("netns", "exec", self.names[source], "tc")
        ip(*tc, "qdisc", "replace", "dev", "cable", "root", "handle", "1:", "htb", "default", "1")
        for name, rate in (("1", CABLE_MBIT), ("2", mbit)):
            ip(*tc, "class", "add", "dev", "cable", "parent", "1:", "classid", f"1:{name}", "htb", "rate", f"{rate}mbit")
        match = ("match", "ip", "dst", f"10.79.0.{target + 1}/32")
        ip(*tc, "filter", "add", "dev", "cable", "protocol", "ip", "parent", "1:", "u32", *match, "flowid", "1:2")

    def workers(self, node: int, local: int | None = None) -> list[int]:
        """Return the processes of a node once ranks measure: only imports come before, which would take minutes. `local`: of one rank."""
        found: list[int] = []
        for pid in ip("netns", "pids", self.names[node], check=False).split():
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
                mine = f"LOCAL_RANK={local}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            rows = Path(words.split(b"\0")[3].decode()) if b"meshwise.workers.probe.health" in words else None
            measures = rows is not None and any(rows.glob("rank-*.jsonl"))
            found += [int(pid)] if measures and (local is None or mine) else []
        return found

    def background(self, work: Callable[[], object], every: float = 0.1) -> None:
        def repeat() -> None:
            while not self.over:
                work()
                time.sleep(every)

        threading.Thread(target=repeat, daemon=True).start()

    def quota(self, node: int, local: int | None = None) -> None:
        """Give the workers of a node, or one of them, a fifth of a core, and a fifth of what others get where all share the cores."""
        group = CGROUPS / f"mw{os.getpid()}-{node}-{local}"
        group.mkdir()
        (group / "cpu.cfs_period_us").write_text(str(PERIOD))
        (group / "cpu.cfs_quota_us").write_text(str(PERIOD // 5))
        (group / "cpu.shares").write_text(str(1024 // 5))

        def move() -> None:
            for pid in self.workers(node, local):
                try:
                    (group / "cgroup.procs").write_text(str(pid))
                except OSError:
                    continue

        self.background(move)
        self.ends.append(lambda: _remove(group))

    def throttle(self, node: int, local: int) -> None:
        """Stop and continue a worker all the time, as a chip that is too hot does."""

        def blink() -> None:
            for number, seconds in ((signal.SIGCONT, DUTY_SECONDS[0]), (signal.SIGSTOP, DUTY_SECONDS[1])):
                for pid in self.workers(node, local):
                    try:
                        os.kill(pid, number)
                    except ProcessLookupError:
                        continue
                time.sleep(seconds)

        self.background(blink, 0.0)

    def hang(self, node: int, local: int) -> None:
        """Stop a worker for good."""
        self.background(lambda: [os.kill(pid, signal.SIGSTOP) for pid in self.workers(node, local)])


def _remove(group: Path) -> None:
    for _ in range(50):
        try:
            group.rmdir()
        except OSError:
            time.sleep(0.1)
        else:
            return


@dataclass(frozen=True)
class Case:
    """A cluster, what is wrong with it, and the words by which it must be named."""

    name: str
    nodes: int
    ranks: int
    plant: Callable[[Cluster], object]
    where: str = ""
    """What a finding must name: 'n1', 'n2 device 1', 'link between n0 and n2'; '' for a healthy cluster."""


FAULTS = (
    Case("slow-node", 4, 1, lambda c: c.quota(2), "n2"),
    Case("slow-node-of-two", 2, 1, lambda c: c.quota(1), "n1"),
    Case("slow-device", 2, 2, lambda c: c.quota(1, 1), "n1 device 1"),
    Case("slow-node-of-eight", 8, 1, lambda c: c.quota(5), "n5"),
    Case("throttled-device", 3, 2, lambda c: c.throttle(0, 1), "n0 device 1"),
    Case("slow-cable-sends", 4, 1, lambda c: c.limit(1, 250), "n1"),
    Case("slow-cable-receives", 4, 1, lambda c: c.limit(3, 250, receives=True), "n3"),
    Case("slow-path", 4, 1, lambda c: c.slow_path(0, 2, 200), "link between n0 and n2"),
    Case("dead-node", 3, 1, lambda c: c.missing.add(2), "node 2"),
    Case("hanging-device", 2, 2, lambda c: c.hang(1, 0), "n1"),
    Case("slow-cable-of-eight", 8, 1, lambda c: c.limit(6, 300), "n6"),
    Case("slow-cable-two-ranks", 3, 2, lambda c: c.limit(2, 200), "n2"),
)
HEALTHY = tuple(
    Case(f"healthy-{nodes}x{ranks}", nodes, ranks, lambda c: None) for nodes, ranks in ((4, 1), (2, 2), (3, 2), (8, 1), (2, 1))
)


@contextmanager
def made(case: Case) -> Iterator[Cluster]:
    cluster = Cluster(case.nodes, case.ranks)
    try:
        cluster.make()
        case.plant(cluster)
        yield cluster
    finally:
        cluster.over = True
        time.sleep(0.15)
        cluster.remove()
        for end in cluster.ends:
            end()


def run(case: Case, seconds: float, home: Path, keep: str = "") -> dict[str, object]:
    """Run a preflight on every node of a cluster; return what was found."""
    with made(case) as cluster, tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        nodes = [start(cluster, number, seconds, folder, home) for number in range(case.nodes) if number not in cluster.missing]
        said = nodes[0].communicate(timeout=400)
        took = time.monotonic() - began
        if keep:
            shutil.copy(Path(folder, "rows.jsonl"), keep)
    try:
        result = json.loads(said[0])
    except ValueError:
        return {"case": case.name, "seconds": took, "right": False, "error": said[1][-2000:]}
    sick = [one["where"] for one in result["findings"] if one["level"] == "sick"]
    right = sick[:1] == [case.where] if case.where else not sick
    words = [f"{one['level']}: {one['where']}: {one['message']}" for one in result["findings"]]
    return {
        "case": case.name, "right": right, "only": sick == [case.where] if case.where else not sick, "seconds": round(took, 1),
        "exit": nodes[0].returncode, "exclude": result["exclude"], "findings": words,
    }  # fmt: skip


def start(cluster: Cluster, number: int, seconds: float, folder: str, home: Path) -> "subprocess.Popen[str]":
    words = [
        sys.executable,
        "-m",
        "meshwise",
        "preflight",
        "--device",
        "cpu",
        "--seconds",
        f"{seconds:g}",
        "--ranks",
        str(cluster.ranks),
    ]
    words += [
        "--nodes",
        str(len(cluster.names)),
        "--node-rank",
        str(number),
        "--rendezvous",
        "10.79.0.1:29500",
        "--out",
        folder,
        "--json",
    ]
    shell = f'hostname n{number}; exec "$@"'
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "MESHWISE_HOME": str(home)}
    return subprocess.Popen(
        [*cluster.before(number), "unshare", "-u", "bash", "-c", shell, "node", *words],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--healthy", type=int, default=0, help="healthy clusters to run instead of faults")
    words.add_argument("--only", default="", help="cases whose name begins so")
    words.add_argument("--seconds", type=float, default=12.0)
    words.add_argument("--out", default="", help="file that the lines are added to")
    words.add_argument("--keep", default="", help="folder for the rows of the last case")
    asked = words.parse_args()
    cases = [HEALTHY[number % len(HEALTHY)] for number in range(asked.healthy)] or [*FAULTS]
    right = 0
    with tempfile.TemporaryDirectory() as home:
        chosen = [case for case in cases if case.name.startswith(asked.only)]
        for case in chosen:
            found = run(case, asked.seconds, Path(home), asked.keep)
            right += bool(found["right"])
            print(json.dumps(found), flush=True)
            if asked.out:
                with Path(asked.out).open("a", encoding="utf-8") as file:
                    file.write(json.dumps(found) + "\n")
    print(json.dumps({"cases": len(chosen), "right": right}))


if __name__ == "__main__":
    main()
