"""The loss of a 125M Llama on the embedded text: `python benchmarks/trainer/losses.py [STEPS [KIND...]]` on a GPU machine.

Prints the mean loss of the last tenth of the steps (500) of each kind, and its difference from bf16; another seed shows how far two runs
differ anyway.
"""

import os
import statistics
import sys
from typing import Any

import torch
import torch.distributed as dist

import train
from meshwise.workers.trainer.contract.settings import Layout, Settings
from meshwise.workers.trainer.data.samples import batch_of
from meshwise.workers.trainer.gradients import named_parameters
from meshwise.workers.trainer.optimizer import make_optimizer
from meshwise.workers.trainer.parallel import Ranks
from meshwise.workers.trainer.passes import Passes
from meshwise.workers.trainer.step import Stepper

BATCH, SEQ = 16, 512
KINDS: dict[str, dict[str, Any]] = {
    "bf16": {},
    "fp8": {"precision": "fp8"},
    "fp8-row": {"precision": "fp8-row"},
    "moments": {"moments": "bf16"},
    "seed": {"seed": 1},
}


def last_loss(options: dict[str, Any], count: int) -> float:
    """Return the mean loss of the last steps."""
    torch._dynamo.reset()
    settings = Settings(
        name="125m", model=train.SMALL, layout=Layout(mbs=BATCH), batch=BATCH, seq=SEQ, steps=count, device="cuda", compile=True,
        lr=1e-3, warmup=20, **options,
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
    usual = last_loss(KINDS["bf16"], steps)
    print(f"loss after {steps} steps: bf16 {usual:.5f}", flush=True)
    for name in sys.argv[2:] or [name for name in KINDS if name != "bf16"]:
        found = last_loss(KINDS[name], steps)
        print(f"{name} {found:.5f}, {found / usual - 1:+.2%} (must be within 0.5% after 500)", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
