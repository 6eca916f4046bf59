"""`python -m meshwise.workers.trainer.ranks.agent`: torchrun, with its own arguments, whose workers end with it.

It leaves signals to the workers, and does not restart a run that would fail again.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false
# pyright: reportIncompatibleVariableOverride=false, reportCallIssue=false, reportPrivateUsage=false, reportPrivateImportUsage=false
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import torch.distributed.elastic.multiprocessing.api as processes
import torch.distributed.launcher.api as launcher
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from torch.distributed.run import parse_args, run

from meshwise.workers.secret import SECRET
from meshwise.workers.trainer.contract.process.kill_points import reach
from meshwise.workers.trainer.contract.process.parent import AGENT
from meshwise.workers.trainer.contract.process.stop import CUT_OFF, LOST_TERMINAL, STOPS
from meshwise.workers.trainer.contract.rows import read_rows
from meshwise.workers.trainer.contract.settings import Settings
from meshwise.workers.trainer.ranks.faults import FAILURE, Failure, say_error
from meshwise.workers.trainer.ranks.process_group import LABELS, NODE_RANK, NODES, STORE
from meshwise.workers.trainer.ranks.rendezvous import RendezvousMonitor, format_nodes
from meshwise.workers.trainer.ranks.store import LOOPBACK, install

ANSWER_SECONDS = 3.0  # seconds in which a node that can be reached accepts a connection

SHARE = f"give all nodes an --out on a file system that they share, which holds the secret, or the same text in {SECRET}"


def oom_kills() -> int:
    """Return the number of processes on this host that the kernel has killed for lack of memory since it booted."""
    try:
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def current_step(out: Path, started: float, steps: int) -> int:
    """Return the step that workers were in, from 1: the one after the last written since they started, on the node that writes."""
    path = out / "steps.jsonl"
    rows = read_rows(path) if path.is_file() and path.stat().st_mtime >= started else []
    return min(rows[-1]["step"] + 2, steps) if rows else 1


class Agent(LocalElasticAgent):
    """torchrun's agent, which restarts workers only if their failure may not repeat."""

    out, steps = Path(), 0
    started = 0.0  # when the workers started, in seconds since 1970
    killed_before = oom_kills()
    monitor: RendezvousMonitor | None = None  # set if the run has several nodes

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        if self.monitor:
            self.monitor.begin()
        super()._rendezvous(worker_group)
        if self.monitor:
            self.monitor.end()

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        (self.out / FAILURE).unlink(missing_ok=True)
        self.started = time.time()
        reach("agent ready")
        started = super()._start_workers(worker_group)
        reach("agent started workers")
        return started

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result = super()._monitor_workers(worker_group)
        if result.state in (WorkerState.FAILED, WorkerState.UNHEALTHY):
            failure = self._failure(result)
            if failure.final:
                self._remaining_restarts = 0
            most, nodes = worker_group.spec.max_restarts, worker_group.group_world_size or 1
            waits = f", as soon as all {nodes} nodes have joined" if nodes > 1 else ""
            if self._remaining_restarts and os.environ.get(NODE_RANK, "0") == "0":
                say_error(f"{failure.message}; restart {most - self._remaining_restarts + 1} of {most}{waits}")
        return result

    def _failure(self, result: RunResult) -> Failure:
        """Return the failure that the workers wrote; if there is none, or only that a rank is gone, derive one from their exit codes."""
        path = self.out / FAILURE
        written = Failure(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None
        signals = {rank: -failed.exitcode for rank, failed in result.failures.items() if failed.exitcode < 0}
        if (written and written.kind not in ("gone", "lost")) or not signals:
            return written or Failure("error", 0, socket.gethostname(), 0, "a worker failed")
        rank = min(signals)
        oom = oom_kills() > Agent.killed_before and signals[rank] == signal.SIGKILL
        by = (
            "killed by the kernel because the host ran out of memory"
            if oom
            else f"killed by {signal.Signals(signals[rank]).name}"
        )
        step = max(current_step(self.out, self.started, self.steps), written.step if written else 1)
        failure = Failure("oom" if oom else "killed", rank, socket.gethostname(), step, f"rank {rank} was {by} in step {step}")
        failure.write(self.out)
        return failure


def answers(endpoint: str) -> bool:
    """Return whether something accepts connections at HOST:PORT."""
    host, _, port = endpoint.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_SECONDS).close()
    except OSError:
        return False
    return True


def watch_store(endpoint: str, node: int, out: Path, timeout: float) -> None:
    """End this agent, and its workers with it, when the node that has the store cannot be reached for the timeout. torchrun asks that
    store while its workers run, and would wait for an answer for minutes."""
    labels = os.environ.get(LABELS, "").split()
    first, own = (labels[i] if i < len(labels) else str(i) for i in (0, node))
    since = time.monotonic()
    while True:
        if answers(endpoint):
            since = time.monotonic()
        silent = time.monotonic() - since
        if silent > timeout:
            name = f"node {own} ({socket.gethostname()})"
            _failed(f"node {first} at {endpoint} could not be reached from {name} for {silent:.0f} s").exit(out, code=CUT_OFF)
        time.sleep(min(2.0, timeout / 5))


def _ignore(number: int, frame: FrameType | None) -> None:
    """Leave a signal to the workers: they stop once they have agreed on a step, and torchrun after them."""


def main(arguments: list[str]) -> int:
    os.environ[AGENT] = str(os.getpid())  # a worker that finds another parent is an orphan
    logging.disable(logging.ERROR)
    for number in (*STOPS, *LOST_TERMINAL):
        signal.signal(number, _ignore)
    given: Any = parse_args(arguments)
    given.log_dir = given.log_dir or os.devnull  # nothing is logged there, but torchrun would create a folder in /tmp
    settings = Settings.read(Path(given.training_script_args[-1]))
    Agent.out, Agent.steps = Path(settings.out), settings.steps
    if given.standalone:
        given.local_addr = LOOPBACK
    install()
    launcher.LocalElasticAgent = Agent  # torchrun has no option for another agent
    processes._terminate_process_handler = _ignore
    Agent.monitor = _monitor()
    if Agent.monitor and Agent.monitor.node:
        watched = (Agent.monitor.endpoint, Agent.monitor.node, Agent.out, settings.timeout)
        threading.Thread(target=watch_store, args=watched, name="store", daemon=True).start()
    try:
        run(given)
    except ChildFailedError:
        return 1
    except RendezvousError as error:
        why = rendezvous_failure(error, Agent.monitor)
        code = CUT_OFF if isinstance(error, RendezvousConnectionError) and Agent.monitor and Agent.monitor.node else 1
        if (Agent.out / FAILURE).exists():  # the launcher will print the failure that made a new rendezvous necessary
            say_error(why)
        else:
            _failed(why).exit(Agent.out, code=code)
        return code
    return 0


def _monitor() -> RendezvousMonitor | None:
    if STORE not in os.environ:
        return None
    nodes, node, endpoint = int(os.environ[NODES]), int(os.environ[NODE_RANK]), os.environ[STORE]
    return RendezvousMonitor(node, nodes, endpoint, say_error, lambda why: _failed(why, "stopped").exit(Agent.out))


def _failed(why: str, kind: str = "lost") -> Failure:
    return Failure(kind, 0, socket.gethostname(), 0, why)


def rendezvous_failure(error: RendezvousError, monitor: RendezvousMonitor | None) -> str:
    """Return why the rendezvous of the nodes failed, in one line."""
    endpoint = monitor.endpoint if monitor else "this machine"
    if isinstance(error, RendezvousTimeoutError) and monitor:
        waited = time.monotonic() - monitor.since
        return (
            f"{format_nodes(monitor.missing)} did not join at {endpoint} within {waited:.0f} s; restart the commands of all nodes"
        )
    if isinstance(error, RendezvousStateError):
        return f"what is stored at {endpoint} is not signed with this node's secret: {SHARE}"
    if isinstance(error, RendezvousClosedError):
        return f"the run at {endpoint} is over; restart the commands of all nodes"
    cause = next(iter(str(error.__cause__ or error).splitlines()), type(error).__name__)
    return f"node 0 at {endpoint} cannot be reached ({cause})" if monitor and monitor.node else f"rendezvous failed: {cause}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
