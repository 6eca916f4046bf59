"""How much load a layout takes: the most users or requests per second within latency targets, and the most at all."""

from dataclasses import replace

from meshwise.cost.serve.load.requests import Load
from meshwise.cost.serve.question import ServeQuestion
from meshwise.plan.serve.search import Option, users_of

MAX_USERS = 1 << 16


def max_rate(q: ServeQuestion, option: Option) -> float:
    """Return the most requests per second that all replicas of a layout serve, whatever their latency."""
    return option.highest(replace(q.load, users=0, rate=1.0)) * option.layout.replicas


def most_within(q: ServeQuestion, option: Option) -> float:
    """Return the most users or requests per second for which a layout meets the targets; 0 where one user is too many."""
    if option.cost is None:
        return 0.0
    return _most_rate(q, option) if q.load.rate else float(_most_users(q, option))


def _meets(q: ServeQuestion, option: Option, load: Load) -> bool:
    report = option.at(load)
    return report is not None and q.targets.missed(report) <= 1


def _most_users(q: ServeQuestion, option: Option) -> int:
    """Bisect from the planned users, so that the answer is below them exactly where the plan does not meet the targets."""
    copies, planned = option.layout.replicas, users_of(q, option.layout)
    load = replace(q.load, rate=0.0)
    if _meets(q, option, replace(load, users=planned)):
        low, high = planned, planned * 2
        while high < MAX_USERS and _meets(q, option, replace(load, users=high)):
            low, high = high, high * 2
    elif planned > 1 and _meets(q, option, replace(load, users=1)):
        low, high = 1, planned
    else:
        return 0
    while high - low > max(1, low // 50):
        middle = (low + high) // 2
        low, high = (middle, high) if _meets(q, option, replace(load, users=middle)) else (low, middle)
    return low * copies


def _most_rate(q: ServeQuestion, option: Option) -> float:
    """Return the most requests per second that meet the targets."""
    copies, most = option.layout.replicas, max_rate(q, option) / option.layout.replicas
    planned = q.load.rate / copies
    low, high = (planned, max(planned, most)) if _meets(q, option, replace(q.load, rate=planned)) else (0.0, min(planned, most))
    for _ in range(9):
        middle = (low + high) / 2
        low, high = (middle, high) if _meets(q, option, replace(q.load, users=0, rate=middle)) else (low, middle)
    return low * copies
