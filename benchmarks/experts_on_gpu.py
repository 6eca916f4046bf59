"""Kernels of experts and moments of 16 bits on a GPU: checks side by side, then timings, `python benchmarks/experts_on_gpu.py [PART...]`.

Prints everything, and writes it to $OUT/olmoe.txt too.
"""

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import trainer_on_gpu
from trainer_on_gpu import ROOT, TESTS, many, program, python, say, together

OLMOE = ("olmoe-1b-7b", 4, 2048)
CASES: dict[str, tuple[str, int, int, dict[str, Any]]] = {
    "copied": (*OLMOE, {"profile": True, "steps": 14}),
    "torch's weight gradients": (*OLMOE, {"squares": False, "profile": True, "steps": 14}),
    "gated by torch": (*OLMOE, {"gated": False, "profile": True, "steps": 14}),
}


def checks() -> None:
    """Kernels against plain PyTorch, and families of experts launched against captured."""
    sys.path[:0] = [str(ROOT / "tests"), str(TESTS), str(ROOT / "src")]
    families: dict[str, Any] = import_module("test_step_on_gpu").FAMILIES
    kernels = str(TESTS / "ops" / "test_kernels_on_gpu.py")
    commands = {"kernels": python("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "experts or moments or split", kernels)}
    for index, name in enumerate(("olmoe", "olmoe, whole tiles", "deepseek_v3", "mixtral", "llama")):
        place = Path(f"/tmp/experts-{index}.json")
        place.write_text(json.dumps({name: {"model_type": name} | families[name]}), encoding="utf-8")
        commands[name] = python(str(TESTS / "families_on_gpu_worker.py"), str(place), f"{place}.found")
    together(commands, 75, 1200)
    for path in sorted(Path("/tmp").glob("experts-*.json.found")):
        for name, row in json.loads(path.read_text(encoding="utf-8")).items():
            rounded = {key: [round(x, 5) for x in part] if isinstance(part, list) else part for key, part in row.items()}
            say(f"{name}: {rounded}")


def timings() -> None:
    many(CASES, 75)()
    for line in (trainer_on_gpu.OUT / "cases.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        say(json.dumps({key: row[key] for key in row if key != "parts"}))
        for part, milliseconds in row.get("parts", {}).items():
            say(f"    {milliseconds:>8.2f} ms  {part}")


def weights() -> None:
    """Rates of the weights' gradients alone."""
    together({"weights": python("-c", MICRO)}, 40, 4000)


MICRO = """
import torch
from functools import partial
import grouped_products as b
from meshwise.workers.trainer.ops import grouped_products as g
for kind in ("eight", "even"):
    x = b.Inputs(kind)
    for name, left, right in (("gate_up weights", x.wide, x.wide), ("down weights", x.wide, x.narrow)):
        found = {"torch": b.rate(name, x.theirs()[name])}
        right_one = x.theirs()[name]()
        for copied, tile in ((True, g.Tile()), (False, g.Tile()), (False, g.Tile(stages=4)), (True, g.Tile(256, 128))):
            g.COPIED = copied
            run = lambda: g.product_by_weights(left, right, x.ends, tile)[0]
            far = float((run().float() - right_one.float()).norm() / right_one.float().norm())
            found[f"{'copied' if copied else 'stored'} {tile.tall}x{tile.wide} {tile.stages}"] = (b.rate(name, run), far)
        print(kind, name, found, flush=True)
"""


def update() -> None:
    """Bytes per second of AdamW's kernel in several launches."""
    together({"update": python("-c", UPDATE)}, 25, 4000)


UPDATE = """
import re, sys, torch, triton
from pathlib import Path
import meshwise.workers.trainer.ops.adamw as plain
text = Path(plain.__file__).read_text()
text = re.sub(r"tl.load\\((\\w+) \\+ at, inside\\)", r"tl.load(\\1 + at, inside, eviction_policy='evict_first')", text)
text = re.sub(r"(tl.store\\(.*), inside\\)", r"\\1, inside, eviction_policy='evict_first')", text)
Path("/tmp/streamed.py").write_text(text)
sys.path.insert(0, "/tmp")
import streamed
n = 2**28
w, low, g = (torch.zeros(n, dtype=t, device="cuda") for t in (torch.bfloat16, torch.int16, torch.bfloat16))
g.normal_(); w.normal_()
now = torch.tensor([1e-3, 1.0, 0.5, 0.5], device="cuda")
for kind in (torch.float32, torch.bfloat16):
    m, v = (torch.zeros(n, dtype=kind, device="cuda") for _ in range(2))
    for name, module in (("plain", plain), ("streamed", streamed)):
        for size, warps in ((1024, 4), (2048, 4), (2048, 8), (4096, 8), (512, 2)):
            run = lambda: module._update[(n // size,)](w, low, g, m, v, now, n, 0.1, 0.9, 0.95, 1e-8, size, num_warps=warps)
            ms = triton.testing.do_bench(run, warmup=5, rep=25, return_mode="median")
            print(kind, name, size, warps, f"{n * (10 + 4 * m.element_size()) / ms / 1e9:.3f} TB/s", flush=True)
"""
PARTS = {
    "weights": weights,
    "update": update,
    "checks": checks,
    "timings": timings,
    "losses": program("benchmarks/losses.py", "moments", "seed", limit=60),
    "grouped": program("benchmarks/grouped_products.py", limit=40),
}


def main() -> None:
    target = Path(os.environ.get("OUT", ".")) / "olmoe.txt"
    trainer_on_gpu.OUT = Path("/tmp/experts-on-gpu")
    trainer_on_gpu.OUT.mkdir(exist_ok=True)
    os.environ["OUT"] = str(trainer_on_gpu.OUT)
    for name in sys.argv[1:] or PARTS:
        say(f"==== {name}")
        try:
            PARTS[name]()
        except Exception as error:  # the next part may still work
            say(f"{name} failed: {type(error).__name__}: {error}")
        target.write_text((trainer_on_gpu.OUT / "log.txt").read_text(encoding="utf-8"), encoding="utf-8")


if __name__ == "__main__":
    main()
