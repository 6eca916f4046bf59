"""Speed of the shape search: candidates (shape x layout) per CPU second, CPU seconds for ten million of them, and peak memory."""

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"  # one core is one core

import resource
import sys
import time
from dataclasses import replace

from meshwise.plan.ask import TrainAsk
from meshwise.plan.shapes import stack as shapes
from meshwise.plan.shapes.search import fastest
from meshwise.plan.train import lookup

TOP = 20


def main() -> None:
    print(f"{'176B on 384 A100':38} {'shapes':>8} {'candidates':>12} {'CPU s':>7} {'per s':>11} {'s per 1e7':>10} {'MB':>5}")
    for framework in sys.argv[1:] or ("megatron-deepspeed", "megatron", "torchtitan"):
        question = lookup.question(TrainAsk(model="bloom-176b", on="jean-zay:48", batch=2048, seq=2048, framework=framework))
        base = shapes.base_of(question.model, 250_880)
        start = time.process_time()
        stack = shapes.Stack(base, shapes.near(base, 176e9))
        result = fastest(replace(question, model=base), stack, {}, TOP)
        seconds = time.process_time() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # since process start
        print(
            f"{framework:38} {len(stack.shapes):8,} {result.candidates:12,} {seconds:7.2f} {result.candidates / seconds:11,.0f} "
            f"{seconds / result.candidates * 1e7:10.2f} {peak:5.0f}"
        )
    print(f"{'must':38} {'':8} {'':12} {'':7} {'':11} {15:10} {500:5}")


if __name__ == "__main__":
    main()
