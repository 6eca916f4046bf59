"""How much load a layout takes: the most users or requests per second within latency targets, and the most at all."""

from dataclasses import replace

from meshwise.cost.serve.load.requests import Load
from meshwise.cost.serve.question import ServeQuestion
from meshwise.plan.serve.search import Option

MAX_USERS = 1 << 16


def max_rate(q: ServeQuestion, option: Option) -> float:
    """Return the most requests per second that all replicas of a layout serve, whatever their latency."""
    return option.highest(replace(q.load, users=0, rate=1.0)) * option.layout.replicas


def most_within(q: ServeQuestion, option: Option) -> float:
    """Return the most users (of a closed loop) or requests per second (of an open one) for which a layout meets the targets; 0 where one
    user is too many."""
    if option.cost is None:
        return 0.0
    return _most_rate(q, option) if q.load.rate else float(_most_users(q, option))


def _meets(q: ServeQuestion, option: Option, load: Load) -> bool:
    report = option.at(load)
    return report is not None and q.targets.missed(report) <= 1


def _most_users(q: ServeQuestion, option: Option) -> int:
    copies = option.layout.replicas
    least = replace(q.load, users=1, rate=0.0)
    if not _meets(q, option, least):
        return 0
    low, high = 1, 2
    while high < MAX_USERS and _meets(q, option, replace(least, users=high)):
        low, high = high, high * 2
    while high - low > max(1, low // 50):
        middle = (low + high) // 2
        low, high = (middle, high) if _meets(q, option, replace(least, users=middle)) else (low, middle)
    return low * copies


def _most_rate(q: ServeQuestion, option: Option) -> float:
    copies = option.layout.replicas
    low, high = 0.0, max_rate(q, option) / copies
    for _ in range(9):
        middle = (low + high) / 2
        low, high = (middle, high) if _meets(q, option, replace(q.load, users=0, rate=middle)) else (low, middle)
    return low * copies
