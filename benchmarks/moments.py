"""Losses of the 125M model on the embedded text with moments of 32 and of 16 bits: `python benchmarks/moments.py` on the GPU machine.

A second seed shows how far two runs differ anyway. Prints the mean loss of every fifth of the steps.
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from meshwise.workers.trainer.data.batches import Batches
from meshwise.workers.trainer.gradients import trained_parameters
from meshwise.workers.trainer.optimizer import make_optimizer
from meshwise.workers.trainer.parallel import Ranks
from meshwise.workers.trainer.passes import Passes
from meshwise.workers.trainer.recipe import default_rate, default_warm_up
from meshwise.workers.trainer.settings import Layout, Settings
from meshwise.workers.trainer.step import Stepper
from train import SMALL

BATCH, SEQ, PARAMS = 8, 512, 124e6


def losses(steps: int, moments: str, seed: int) -> list[float]:
    torch._dynamo.reset()
    settings = Settings(
        name="125m", model=SMALL, layout=Layout(mbs=BATCH), batch=BATCH, seq=SEQ, steps=steps, device="cuda", compile=True,
        lr=default_rate(PARAMS), warmup=default_warm_up(PARAMS, steps), moments=moments, seed=seed,
    )  # fmt: skip
    ranks = Ranks.of(settings.layout, "cuda")
    passes = Passes(settings, ranks, torch.device("cuda"))
    parameters = trained_parameters(passes.models)
    stepper = Stepper(settings, ranks, passes, make_optimizer(settings, parameters), parameters)
    with Batches(settings, ranks) as batches:
        launched = [stepper.launch(step, *next(batches)) for step in range(steps)]
        torch.cuda.synchronize()
    return [float(one.numbers[0]) for one in launched]


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{29500 + os.getpid() % 500}", rank=0, world_size=1)
    found: dict[str, list[float]] = {}
    for moments, seed in (("fp32", 0), ("bf16", 0), ("fp32", 1)):
        each = torch.tensor(losses(steps, moments, seed)).view(5, -1).mean(1).tolist()
        found[f"{moments}, seed {seed}"] = [round(loss, 4) for loss in each]
        print(f"moments {moments}, seed {seed}: {found[f'{moments}, seed {seed}']}", flush=True)
    (Path(os.environ.get("OUT", ".")) / "moments.json").write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
