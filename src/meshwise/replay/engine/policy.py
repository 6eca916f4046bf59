"""Policies of autoscaling: how many copies there should be, by what was seen since the last look."""

import math
from collections import deque
from dataclasses import dataclass, replace

from meshwise import units
from meshwise.errors import UserError, quoted

TOLERANCE = 0.1  # relative distance from the target within which nothing changes, as in Kubernetes' HorizontalPodAutoscaler
KINDS = {
    "static": "a constant number of copies: static:4", "rate": "requests per second of a copy: rate:2",
    "queue": "requests of a copy that wait: queue:4", "busy": "requests of a copy that wait or run: busy:32",
    "kv": "share of a copy's KV cache in use: kv:70%", "ttft": "95th percentile of TTFT: ttft:1s",
    "schedule": "copies by hour of the day: schedule:0=2,8=6,20=3",
}  # fmt: skip
EXAMPLES = "rate:2, queue:4, busy:32, kv:70%, ttft:1s, schedule:0=2,8=6 or static:4"


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A policy with its bounds, and how often it looks."""

    kind: str = "static"
    target: float = 1.0
    hours: tuple[tuple[float, int], ...] = ()  # of a schedule: the hour from which there are so many copies
    least: int = 1
    most: int = 1
    interval: float = 15.0  # seconds between two looks: HPA's
    cooldown: float = 300.0  # seconds for which the most copies that were wanted stay: HPA's stabilization window

    @property
    def words(self) -> str:
        if self.kind == "schedule":
            return "schedule:" + ",".join(f"{hour:g}={copies}" for hour, copies in self.hours)
        if self.kind == "kv":
            return f"kv:{self.target:.0%}"
        return f"{self.kind}:{units.show(self.target, 'seconds')}" if self.kind == "ttft" else f"{self.kind}:{self.target:g}"

    @property
    def first(self) -> int:
        """Copies at the start: as many as the schedule says, or the least."""
        return self.scheduled(0.0) if self.kind == "schedule" else int(self.target) if self.kind == "static" else self.least

    def scheduled(self, now: float) -> int:
        hour = now / 3600 % 24
        passed = [copies for since, copies in self.hours if since <= hour]
        return passed[-1] if passed else self.hours[-1][1]


@dataclass(frozen=True)
class Seen:
    """The state of all copies that are up, as a policy sees it."""

    copies: int
    arrived: int  # requests since the last look
    waiting: int
    running: int
    filled: float  # mean share of the cache in use
    ttft: float  # 95th percentile since the last look; 0 without requests


class Scaler:
    """A policy with its memory of what it wanted."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.wanted: deque[tuple[float, int]] = deque()

    def copies(self, now: float, seen: Seen) -> int:
        """Return how many copies there should be now: the most that were wanted within the cooldown."""
        policy = self.policy
        if policy.kind == "static":
            return int(policy.target)
        if policy.kind == "schedule":
            return policy.scheduled(now)
        current = max(1, seen.copies)
        metric = {
            "rate": seen.arrived / policy.interval, "queue": seen.waiting, "busy": seen.waiting + seen.running,
            "kv": seen.filled * current, "ttft": seen.ttft * current,
        }[policy.kind]  # fmt: skip
        ratio = metric / current / policy.target
        raw = current if abs(ratio - 1) <= TOLERANCE else math.ceil(current * ratio - 1e-9)
        want = max(policy.least, min(policy.most, raw))
        while self.wanted and self.wanted[0][0] <= now - policy.cooldown:
            self.wanted.popleft()
        self.wanted.append((now, want))
        return max(number for _, number in self.wanted)


def read(words: str, *, least: int, most: int, interval: float, cooldown: float) -> Policy:
    """Read 'queue:4' with bounds on the copies."""
    kind, colon, text = words.partition(":")
    if kind not in KINDS or not colon:
        raise UserError(f"--autoscale {quoted(words)}: expected {EXAMPLES}")
    bounded = Policy(kind=kind, least=least, most=most, interval=max(1.0, interval), cooldown=cooldown)
    try:
        if kind == "schedule":
            hours = tuple(sorted((float(hour), int(number)) for hour, number in (one.split("=") for one in text.split(","))))
            if not all(0 <= hour < 24 and 1 <= number <= 10**4 for hour, number in hours):
                raise ValueError
            return replace(bounded, hours=hours)
        target = units.parse(text, "seconds") if kind == "ttft" else units.parse(text, "share") if kind == "kv" else float(text)
    except ValueError:
        target = 0.0
    if not 0 < target < 1e6 or (kind == "static" and target != int(target)) or (kind == "kv" and target > 1):
        raise UserError(f"--autoscale {quoted(words)}: expected {EXAMPLES}")
    return replace(bounded, target=target)
