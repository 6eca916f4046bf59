"""Routers: which copy gets a request."""

from collections.abc import Callable, Sequence
from itertools import count

from meshwise.replay.engine.copy import Copy
from meshwise.replay.engine.job import Job

Router = Callable[[Sequence[Copy], Job], Copy]
ROUTERS = ("least-loaded", "round-robin", "prefix")
MORE_LOADED = 1.5
MORE_REQUESTS = 4
"""A copy with the longest prefix is passed over where it has more than 1.5 times the requests of the least loaded one, and 4 more. A
choice, near the defaults of SGLang's and llm-d's routers."""


def router(name: str) -> Router:
    """Return the router of a name, with a state of its own."""
    if name == "round-robin":
        turns = count()
        return lambda copies, job: copies[next(turns) % len(copies)]
    return _prefix if name == "prefix" else _least_loaded


def _least_loaded(copies: Sequence[Copy], job: Job) -> Copy:
    best = copies[0]
    least = best.load
    for copy in copies:
        load = copy.load
        if load < least:
            best, least = copy, load
    return best


def _prefix(copies: Sequence[Copy], job: Job) -> Copy:
    """Return the copy that has most of a request's prefix, unless it has far more requests than the least loaded one."""
    least = _least_loaded(copies, job)
    if not job.blocks:
        return least
    most = MORE_LOADED * least.load + MORE_REQUESTS
    best, length = least, least.cache.matched(job.blocks) if least.cache else 0
    for copy in copies:
        if copy.cache is not None and copy is not least and copy.load <= most:
            matched = copy.cache.matched(job.blocks)
            if matched > length:
                best, length = copy, matched
    return best
