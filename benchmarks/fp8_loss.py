"""The loss of a 125M Llama on the embedded text in bf16 and in 8 bits: `python benchmarks/fp8_loss.py [STEPS [PRECISION...]]` on a GPU.

Prints the mean loss of the last tenth of the steps (500) for each precision (bf16, fp8, fp8-row), and how far it is from the first.
"""

import os
import statistics
import sys

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

BATCH, SEQ = 16, 512


def last_loss(precision: str, count: int) -> float:
    """Return the mean loss of the last steps."""
    torch._dynamo.reset()
    settings = Settings(
        name="125m", model=train.SMALL, layout=Layout(mbs=BATCH), batch=BATCH, seq=SEQ, steps=count, device="cuda", compile=True,
        precision=precision, lr=1e-3, warmup=20,
    )  # fmt: skip
    ranks = Ranks.of(settings.layout, "cuda")
    passes = Passes(settings, ranks, torch.device("cuda"))
    parameters = named_parameters(passes.models)
    stepper = Stepper(settings, ranks, passes, make_optimizer(settings, parameters), parameters)
    steps = [stepper.launch(step, *(part.pin_memory() for part in batch_of(settings, step))) for step in range(count)]
    torch.cuda.synchronize()
    return statistics.mean(float(step.numbers[0]) for step in steps[-max(1, count // 10) :])


def main() -> None:
    port = 29500 + os.getpid() % 500
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    found = {precision: last_loss(precision, steps) for precision in sys.argv[2:] or ("bf16", "fp8", "fp8-row")}
    first = next(iter(found.values()))
    for precision, loss in found.items():
        print(f"{precision}: loss {loss:.5f} after {steps} steps ({loss / first - 1:+.2%}; must 0.5% after 500)", flush=True)


if __name__ == "__main__":
    main()
