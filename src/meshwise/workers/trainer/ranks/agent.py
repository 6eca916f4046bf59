"""`python -m meshwise.workers.trainer.ranks.agent`: torchrun with its own arguments, that ends with who started it, leaves signals to the workers,
and does not start again what would fail again."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false
# pyright: reportIncompatibleVariableOverride=false, reportCallIssue=false, reportPrivateUsage=false, reportPrivateImportUsage=false
import json
import logging
import os
import signal
import socket
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import torch.distributed.elastic.multiprocessing.api as processes
import torch.distributed.launcher.api as launcher
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous.api import RendezvousClosedError, RendezvousError, RendezvousTimeoutError
from torch.distributed.run import parse_args, run

from meshwise.workers.trainer.ranks.faults import FAILURE, Failure, die_with_parent, say_error
from meshwise.workers.trainer.ranks.gathering import Gathering, named
from meshwise.workers.trainer.ranks.meeting import NODE_RANK, NODES, STORE
from meshwise.workers.trainer.report.rows import read_rows
from meshwise.workers.trainer.settings import Settings


def oom_kills() -> int:
    """Processes that the kernel has killed for want of memory since it started, on this host."""
    try:
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def step_under_way(out: Path, started: float, steps: int) -> int:
    """The step that workers were in, from 1: behind the last one written since they were started, on the node that writes."""
    path = out / "steps.jsonl"
    rows = read_rows(path) if path.is_file() and path.stat().st_mtime >= started else []
    return min(rows[-1]["step"] + 2, steps) if rows else 1


class Agent(LocalElasticAgent):
    """torchrun's, that looks at why workers failed before it starts them again."""

    out, steps = Path(), 0
    started = 0.0
    """When the workers were, in seconds since 1970."""
    killed_before = oom_kills()
    gathering: Gathering | None = None
    """Over several nodes."""

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        if self.gathering:
            self.gathering.begin()
        super()._rendezvous(worker_group)
        if self.gathering:
            self.gathering.end()

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        (self.out / FAILURE).unlink(missing_ok=True)
        self.started = time.time()
        return super()._start_workers(worker_group)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result = super()._monitor_workers(worker_group)
        if result.state in (WorkerState.FAILED, WorkerState.UNHEALTHY):
            failure = self._failure(result)
            if failure.final:
                self._remaining_restarts = 0
            most, nodes = worker_group.spec.max_restarts, worker_group.group_world_size or 1
            waits = f", as soon as all {nodes} nodes are here" if nodes > 1 else ""
            if self._remaining_restarts and os.environ.get(NODE_RANK, "0") == "0":
                say_error(f"{failure.message}; restart {most - self._remaining_restarts + 1} of {most}{waits}")
        return result

    def _failure(self, result: RunResult) -> Failure:
        """What the workers said; where they said nothing, or only that one is gone, what their end tells."""
        path = self.out / FAILURE
        told = Failure(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None
        ends = {rank: -one.exitcode for rank, one in result.failures.items() if one.exitcode < 0}
        if (told and told.kind not in ("gone", "lost")) or not ends:
            return told or Failure("error", 0, socket.gethostname(), 0, "a worker failed")
        rank = min(ends)
        oom = oom_kills() > Agent.killed_before and ends[rank] == signal.SIGKILL
        by = "killed by the kernel, for the host had no memory left" if oom else f"killed by {signal.Signals(ends[rank]).name}"
        step = max(step_under_way(self.out, self.started, self.steps), told.step if told else 1)
        failure = Failure("oom" if oom else "killed", rank, socket.gethostname(), step, f"rank {rank} was {by} in step {step}")
        failure.write(self.out)
        return failure


def _leave(number: int, frame: FrameType | None) -> None:
    """Leave a signal to the workers: they stop when they have agreed on a step, and torchrun after them."""


def main(arguments: list[str]) -> int:
    die_with_parent()
    logging.disable(logging.ERROR)
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, _leave)
    given: Any = parse_args(arguments)
    given.log_dir = given.log_dir or os.devnull  # nothing is logged there, and torchrun would leave a folder in /tmp for it
    settings = Settings.read(Path(given.training_script_args[-1]))
    Agent.out, Agent.steps = Path(settings.out), settings.steps
    launcher.LocalElasticAgent = Agent  # torchrun has no way to be given another
    processes._terminate_process_handler = _leave
    Agent.gathering = _gathering()
    try:
        run(given)
    except ChildFailedError:
        return 1
    except RendezvousError as error:
        why = apart(error, Agent.gathering)
        if (Agent.out / FAILURE).exists():  # what the launcher will say is why they had to meet again
            say_error(why)
        else:
            _unmet(why).tell(Agent.out)
        return 1
    return 0


def _gathering() -> Gathering | None:
    if STORE not in os.environ:
        return None
    nodes, node, where = int(os.environ[NODES]), int(os.environ[NODE_RANK]), os.environ[STORE]
    return Gathering(node, nodes, where, say_error, lambda why: _unmet(why, "stopped").tell(Agent.out))


def _unmet(why: str, kind: str = "lost") -> Failure:
    return Failure(kind, 0, socket.gethostname(), 0, why)


def apart(error: RendezvousError, gathering: Gathering | None) -> str:
    """Why nodes did not meet, in words of theirs."""
    where = gathering.where if gathering else "this machine"
    if isinstance(error, RendezvousTimeoutError) and gathering:
        waited = time.monotonic() - gathering.since
        return f"{named(gathering.missing)} did not come to {where} within {waited:.0f} s; start all commands again"
    if isinstance(error, RendezvousClosedError):
        return f"the run at {where} is over: start the commands of all nodes again"
    cause = next(iter(str(error.__cause__ or error).splitlines()), type(error).__name__)
    return (
        f"node 0 at {where} cannot be reached ({cause})" if gathering and gathering.node else f"the nodes did not meet: {cause}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
