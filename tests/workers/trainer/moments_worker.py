"""Run as one rank with a folder: a checkpoint with moments of one format is read by an optimizer with the other. Fails if they differ."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from meshwise.workers.trainer.checkpoint import Checkpoints
from meshwise.workers.trainer.contract.settings import Layout, Settings
from meshwise.workers.trainer.optimizer import DTYPES, MOMENTS, SplitWeightsAdamW


def ready(moments: str, out: Path) -> tuple[nn.Parameter, SplitWeightsAdamW, Checkpoints]:
    weight = nn.Parameter(torch.zeros(40, 8))
    optimizer = SplitWeightsAdamW([{"params": [weight], "weight_decay": 0.1}], DTYPES[moments])
    shape = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 40}
    model = {"model_type": "llama", "tie_word_embeddings": True, **shape}
    settings = Settings(
        name="tiny", model=model, layout=Layout(), batch=8, seq=16, steps=6, checkpoint_every=3, out=str(out), moments=moments
    )
    return weight, optimizer, Checkpoints(settings, [("weight", weight)], optimizer, "", lambda: None)


def check(before: str, after: str, out: Path) -> None:
    weight, optimizer, checkpoints = ready(before, out)
    whole = torch.randn(40, 8)
    optimizer.restore(weight, {"weight": whole}, 3)
    for kind in MOMENTS:
        optimizer.adamw.state[weight][kind].uniform_(0, 2)
    checkpoints.save(3, 0)
    checkpoints.wait()
    other, resumed, reader = ready(after, out)
    assert reader.resume().step == 3
    assert torch.equal(resumed.adamw.value(other), whole)
    for kind in MOMENTS:
        written, read = optimizer.adamw.state[weight][kind], resumed.adamw.state[other][kind]
        assert written.any()
        assert read.dtype == DTYPES[after]
        assert torch.equal(read, written.to(read.dtype)), kind


dist.init_process_group("gloo")
for pair in (("fp32", "bf16"), ("bf16", "fp32"), ("bf16", "bf16")):
    check(*pair, Path(sys.argv[1], "-".join(pair)))
dist.destroy_process_group()
