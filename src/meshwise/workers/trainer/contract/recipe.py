"""The learning rate: defaults by model size, and its course over a run. No torch: the launcher chooses the defaults."""

import math

from meshwise.workers.trainer.contract.settings import Settings

MAX_LEARNING_RATE = 3e-3
ADAPTER_RATE, FINETUNE_RATE = 2e-4, 2e-5
"""Peak rates of fine-tuning with adapters (arXiv:2305.14314, table 9) and of all weights (arXiv:2307.09288, section 3.1)."""
MAX_WARM_UP_STEPS = 2000
COSINE_END_SHARE = 0.1  # share of the peak at the end of a cosine (arXiv:2005.14165, appendix B)
DECAY_STEPS_SHARE = 0.2  # share of the steps in which warm-up-stable-decay falls to zero (arXiv:2404.06395)


def default_rate(params: float, steps: int) -> float:
    """Return a peak learning rate for this many (active) parameters. A power of -0.3 runs through published recipes: 3e-4 at 7B and 1.5e-4
    at 70B (arXiv:2307.09288), 8e-5 at 405B (arXiv:2407.21783), 2.2e-4 with 37B active (arXiv:2412.19437). Small models stay at the highest
    rate. A run that is too short for its whole warm-up rises no faster, and stops at a lower peak: 7B would take 90 steps to 3e-4, and
    has ten of them in a run of 40."""
    share = default_warm_up(params, steps) / _whole_warm_up(params, steps)
    return float(f"{share * min(MAX_LEARNING_RATE, 3e-4 * (params / 7e9) ** -0.3):.2g}")


def default_warm_up(params: float, steps: int) -> int:
    """Return the steps of the linear warm-up: the whole one, but at most a quarter of a short run, or five steps if that is more."""
    return min(_whole_warm_up(params, steps), max(5, steps // 4))


def _whole_warm_up(params: float, steps: int) -> int:
    """Return the steps of the warm-up of a long run: a fiftieth of it, more for large models."""
    return min(MAX_WARM_UP_STEPS, max(steps // 50, round(5 * max(1.0, (params / 5e6) ** 0.4))))


def rate_at(settings: Settings, step: int) -> float:
    """Return the learning rate of a step: a linear warm-up over `warmup` steps, then by the schedule."""
    if step < settings.warmup:
        return settings.lr * (step + 1) / settings.warmup
    done = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
    if settings.lr_schedule == "linear":
        return settings.lr * (1 - done)
    if settings.lr_schedule == "wsd":
        return settings.lr * min(1.0, (1 - done) / DECAY_STEPS_SHARE)
    return settings.lr * (COSINE_END_SHARE + (1 - COSINE_END_SHARE) * (1 + math.cos(math.pi * done)) / 2)
