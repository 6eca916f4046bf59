"""Kernels of experts and moments of 16 bits on a GPU: checks side by side, then timings.

python benchmarks/trainer/experts_on_gpu.py [PART...]

Prints everything, and writes it to $OUT/olmoe.txt too.
"""

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import train
import trainer_on_gpu
from trainer_on_gpu import ROOT, TESTS, many, program, python, say, together

OLMOE = ("olmoe-1b-7b", 4, 2048)
CASES: dict[str, tuple[str, int, int, dict[str, Any]]] = {
    "olmoe-1b-7b": (*OLMOE, {"profile": True}),
    "olmoe-1b-7b, moments bf16": (*OLMOE, {"moments": "bf16", "profile": True}),
    "olmoe-1b-7b, gradients read for the norm": (*OLMOE, {"squares": False, "profile": True}),
    "1b": train.CASES["1b"],
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
    many(CASES, 120)()
    for line in (trainer_on_gpu.OUT / "cases.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        say(json.dumps({key: row[key] for key in row if key != "parts"}))
        for part, milliseconds in row.get("parts", {}).items():
            say(f"    {milliseconds:>8.2f} ms  {part}")


PARTS = {
    "checks": checks,
    "timings": timings,
    "losses": program("benchmarks/trainer/losses.py", "moments", "seed", limit=60),
    "grouped": program("benchmarks/kernels/grouped_products.py", limit=40),
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
