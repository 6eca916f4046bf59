"""`python -m meshwise.workers.trainer.shapes settings.json`: print the global and local shape of every weight, without starting the run."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import sys
from pathlib import Path

import torch.distributed as dist
from torch.distributed.tensor import DTensor

# torch's own process group without communication; importing the module registers it
from torch.testing._internal.distributed.fake_pg import FakeStore

from meshwise.workers.trainer.contract.settings import Settings
from meshwise.workers.trainer.gradients import named_parameters
from meshwise.workers.trainer.parallel import Ranks, build_stages


def rows(settings: Settings, rank: int) -> list[str]:
    """Return one line per weight that a rank holds."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=settings.layout.devices)
    try:
        stages = build_stages(settings, Ranks.of(settings.layout, "cpu"))
        lines: list[str] = []
        for name, parameter in named_parameters(model for _, model in stages):
            local, cut = parameter.shape, ""
            if isinstance(parameter, DTensor):
                local, axes = parameter.to_local().shape, parameter.device_mesh.mesh_dim_names or ()
                cut = " ".join(f"{axis}={place}" for axis, place in zip(axes, parameter.placements, strict=True))
            lines.append(f"{name:<60} {_format(parameter.shape):>16} {_format(local):>16}  {cut}".rstrip())
        return lines
    finally:
        dist.destroy_process_group()


def _format(shape: "tuple[int, ...]") -> str:
    return "x".join(map(str, shape))


if __name__ == "__main__":
    chosen = Settings.read(Path(sys.argv[1]))
    each = chosen.layout.devices // chosen.layout.pp
    for stage in range(chosen.layout.pp):
        print(f"first rank of stage {stage + 1} of {chosen.layout.pp}: weight, global shape, local shape, placement")
        print("\n".join(rows(chosen, stage * each)))
    if chosen.layout.devices > chosen.layout.pp:
        print("S(n): sharded along dimension n; _S(n, m): the same, after the next axis split it m ways; R: replicated")
