"""The loss of a 125M Llama after 500 steps on the embedded text, in bf16 and in fp8: `python benchmarks/fp8_loss.py` on a GPU machine.

Prints the mean loss of the last 50 steps of each, and their difference.
"""

import os
import statistics

import torch
import torch.distributed as dist

import train
from meshwise.workers.trainer.data.samples import batch_of
from meshwise.workers.trainer.gradients import named_parameters
from meshwise.workers.trainer.optimizer import make_optimizer
from meshwise.workers.trainer.parallel import Ranks
from meshwise.workers.trainer.passes import Passes
from meshwise.workers.trainer.settings import Layout, Settings
from meshwise.workers.trainer.step import Stepper

STEPS, LAST, BATCH, SEQ = 500, 50, 16, 512


def last_loss(precision: str) -> float:
    """Return the mean loss of the last steps."""
    torch._dynamo.reset()
    settings = Settings(
        name="125m", model=train.SMALL, layout=Layout(mbs=BATCH), batch=BATCH, seq=SEQ, steps=STEPS, device="cuda", compile=True,
        precision=precision, lr=1e-3, warmup=20,
    )  # fmt: skip
    ranks = Ranks.of(settings.layout, "cuda")
    passes = Passes(settings, ranks, torch.device("cuda"))
    parameters = named_parameters(passes.models)
    stepper = Stepper(settings, ranks, passes, make_optimizer(settings, parameters), parameters)
    steps = [stepper.launch(step, *(part.pin_memory() for part in batch_of(settings, step))) for step in range(STEPS)]
    torch.cuda.synchronize()
    return statistics.mean(float(step.numbers[0]) for step in steps[-LAST:])


def main() -> None:
    port = 29500 + os.getpid() % 500
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    found = {precision: last_loss(precision) for precision in ("bf16", "fp8")}
    print(f"loss after {STEPS} steps: {found}, fp8 {100 * (found['fp8'] / found['bf16'] - 1):+.2f}% (must 0.5%)", flush=True)


if __name__ == "__main__":
    main()
