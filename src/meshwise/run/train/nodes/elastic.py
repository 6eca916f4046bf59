"""Runs on MIN:MAX nodes: when a node is lost, node 0 too, the others go on from the checkpoint in a layout planned for them."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from meshwise.errors import DoesNotFit, UserError
from meshwise.run.callbacks import Progress, Say
from meshwise.run.train import attempt, lock, previous
from meshwise.run.train.attempt import Attempt
from meshwise.run.train.hosts import Hosts
from meshwise.run.train.launch import Launch
from meshwise.run.train.nodes import replan
from meshwise.run.train.nodes.membership import Generation, Membership
from meshwise.run.train.processes import END
from meshwise.run.train.report import failure
from meshwise.workers.trainer.contract.settings import Settings

Result = TypeVar("Result")
MAX_TAKEOVER_SECONDS = 60.0
"""Seconds in which a lost node's lock is released, at most: a file server notices only after a while that its client is gone."""


def train(
    ready: Launch, out: Path, say: Say, progress: Progress | None, end: Callable[[Launch, Attempt], Result | None]
) -> Result | None:
    """Train to the end, over as many generations of nodes as it takes. The last leader calls `end` and returns its result."""
    replan.check_all(ready)
    left, why = ready.max_restarts, ""
    with Membership(out, ready.hosts, say) as nodes:
        while True:
            with ExitStack() as held:
                leader, before = _Leader(ready, out, nodes, held, say), nodes.current
                generation = nodes.form(leader.lead)
                if generation is None:
                    return None
                left -= bool(why) and generation.members == before.members  # a lost node is no failure of the run
                if left < 0:
                    nodes.announce(over=True)
                    raise DoesNotFit(why)
                mine = leader.prepared or _follower(ready, out, nodes)
                done = attempt.run(mine, out, say, progress, lambda: _watch(nodes))
                if not done.code and not nodes.asked_to_regroup():
                    nodes.announce(over=True)
                    return end(mine, done) if nodes.leads else None
                failed = failure.failure(out) if done.code else {}
                why = failure.reason(failed, done.code, ready.settings.checkpoint_every) if done.code else ""
                if failed.get("final"):
                    nodes.announce(over=True)
                    raise DoesNotFit(why)
                if why:
                    say(why)


def _watch(nodes: Membership) -> str:
    """Return what to do with the workers: end them if a node is lost, stop them if one joins."""
    if nodes.asked_to_regroup():
        return ""
    if nodes.lost():
        return END
    joining = nodes.joining() if nodes.leads else []
    if joining:
        nodes.announce(regroup=True)
        return f"{nodes.names(joining)} joins"
    return ""


def _hosts(generation: Generation, rank: int, nodes: Hosts) -> Hosts:
    members = generation.members
    if len(members) == 1:
        return Hosts(labels=members)
    labels = members if len(members) < nodes.nodes else ()
    return Hosts(len(members), members.index(rank), generation.rendezvous, labels=labels)


def _follower(ready: Launch, out: Path, nodes: Membership) -> Launch:
    """Return the run of a node that does not lead: the leader has written its settings."""
    hosts = _hosts(nodes.current, nodes.hosts.rank, nodes.hosts)
    return replace(ready, settings=Settings.read(out / "config.json"), hosts=hosts, max_restarts=0)


class _Leader:
    """The node that leads a generation: it plans the layout and picks the checkpoint before the others start."""

    def __init__(self, ready: Launch, out: Path, nodes: Membership, held: ExitStack, say: Say) -> None:
        self.ready, self.out, self.nodes, self.held, self.say = ready, out, nodes, held, say
        self.prepared: Launch | None = None
        self.begun = 0.0

    def lead(self, generation: Generation) -> bool:
        """Lock the folder, plan the layout for these nodes and write the settings. False if another run still holds the folder."""
        self.begun = self.begun or time.monotonic()
        try:
            self.held.enter_context(lock.lock(self.out, say=self.say))
        except UserError:
            if time.monotonic() - self.begun > MAX_TAKEOVER_SECONDS:
                raise
            return False
        replanned = replan.for_nodes(self.ready, len(generation.members))
        if self.nodes.current.members:
            gone = [rank for rank in self.nodes.current.members if rank not in generation.members]
            lost = f"{self.nodes.names(gone)} {'is' if len(gone) == 1 else 'are'} lost: " if gone else ""
            count = len(generation.members)
            self.say(f"{lost}going on with {count} node{'s' * (count > 1)}, {replanned.words}")
        hosts = _hosts(generation, self.nodes.hosts.rank, self.nodes.hosts)
        here = replace(replanned.ready, hosts=hosts, max_restarts=0)
        previous.check(here, self.out)
        self.prepared = attempt.write(here, self.out, self.say)
        return True
