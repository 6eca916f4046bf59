"""Time the choice of the next run of `tune` among 100,000 candidates, on one core.

OMP_NUM_THREADS=1 python benchmarks/tune/tune_choice.py
"""

import time

import numpy as np

from meshwise.plan.ask import TrainAsk
from meshwise.plan.train import lookup
from meshwise.tune.belief.choice import next_runs
from meshwise.tune.belief.observation import Observation
from meshwise.tune.belief.posterior import Posterior
from meshwise.tune.belief.space import Space

QUESTIONS = (
    TrainAsk(model="llama-3.1-405b", on="2048x8xh100-sxm", batch="2048", seq="8192", framework="megatron"),
    TrainAsk(model="deepseek-v3", on="256x8xh100-sxm", batch="15360", seq="4096", framework="megatron"),
)
RUNS = (0, 5, 20)
SLOW = 0.2
"""Share of runs in a slow mode, each of which may be one or not."""


def main() -> None:
    rng = np.random.default_rng(0)
    print(f"{'':<42} {'candidates':>10} {'enumerate':>10} " + "".join(f"{f'{n} runs':>9}" for n in RUNS) + "   CPU seconds")
    for ask in QUESTIONS:
        start = time.process_time()
        space = Space.search(lookup.question(ask))
        enumerated = time.process_time() - start
        tried = rng.choice(len(space), max(RUNS), replace=False)
        slower = np.where(rng.random(len(tried)) < SLOW, 2.0, 1.0)
        seen = [
            Observation(int(row), float(space.seconds[row] * factor * rng.lognormal(0.1, 0.1)), float(space.memory[row]))
            for row, factor in zip(tried, slower, strict=True)
        ]
        seconds: list[float] = []
        for number in RUNS:
            start = time.process_time()
            next_runs(space, Posterior.of(space, seen[:number]), seen[:number])
            seconds.append(time.process_time() - start)
        print(
            f"{ask.model + ' on ' + ask.on:<42} {len(space):>10,} {enumerated:>10.2f} " + "".join(f"{s:>9.2f}" for s in seconds)
        )


if __name__ == "__main__":
    main()
