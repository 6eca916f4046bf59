"""Checks and timings of the trainer that need a GPU, in one command on the GPU machine.

python benchmarks/trainer/trainer_on_gpu.py PART...

Every part has its own limit in seconds and writes what it finds to $OUT as it goes, so that a part that fails or hangs costs only itself.
Checks of correctness run side by side, timings one by one. $OUT/log.txt has the output of all.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import train
import unseen_shapes_on_gpu

ROOT = Path(__file__).parents[2]
OUT = Path(os.environ.get("OUT", "."))
TESTS = ROOT / "tests" / "workers" / "trainer"
GROUPS = 5
"""Processes that share the families: compiling takes most of their time."""


def environment() -> dict[str, str]:
    """Return the environment of the parts, which run from the sources."""
    places = [ROOT / "src", ROOT / "tests", Path(__file__).parent, TESTS, *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": ":".join(map(str, places)), "PYTHONUNBUFFERED": "1", "MESHWISE_HOME": "/tmp/meshwise-home"}


def say(text: str) -> None:
    print(text, flush=True)
    with (OUT / "log.txt").open("a", encoding="utf-8") as log:
        log.write(text + "\n")


def together(commands: Mapping[str, list[str]], limit: float, tail: int = 1500) -> None:
    """Run commands at the same time, for at most `limit` seconds; log the end of what each printed."""
    began, env = time.monotonic(), environment()
    logs = {name: Path(f"/tmp/{name}.log") for name in commands}
    started = {
        name: subprocess.Popen(command, stdout=logs[name].open("w"), stderr=subprocess.STDOUT, env=env, cwd=ROOT)
        for name, command in commands.items()
    }
    for name, process in started.items():
        try:
            process.wait(max(1.0, limit - (time.monotonic() - began)))
        except subprocess.TimeoutExpired:
            process.kill()
        end = logs[name].read_text(encoding="utf-8", errors="replace")[-tail:]
        say(f"== {name}: exit {process.poll()}, {time.monotonic() - began:.0f} s\n{end}")


def python(*words: str) -> list[str]:
    return [sys.executable, *words]


def tests() -> None:
    """All families, 8 bits, and groups of one rank over NCCL, against float32, 16 bits and plain PyTorch."""
    sys.path[:0] = [str(ROOT / "tests"), str(TESTS), str(ROOT / "src")]
    test_layouts: Any = import_module("test_layouts")
    families: dict[str, Any] = import_module("test_step_on_gpu").FAMILIES
    commands: dict[str, list[str]] = {}
    names = list(families)
    for index in range(GROUPS):
        cases = {name: {"model_type": name} | families[name] for name in names[index::GROUPS]}
        Path(f"/tmp/cases-{index}.json").write_text(json.dumps(cases), encoding="utf-8")
        worker = str(TESTS / "families_on_gpu_worker.py")
        commands[f"families-{index}"] = python(worker, f"/tmp/cases-{index}.json", f"/tmp/found-{index}.json")
    layouts = {name: test_layouts.case_of(name, *case) for name, case in test_layouts.LAYOUTS[1].items()}
    Path("/tmp/layouts.json").write_text(json.dumps(layouts), encoding="utf-8")
    alone = "MASTER_ADDR=127.0.0.1 MASTER_PORT=29777 RANK=0 WORLD_SIZE=1 LOCAL_RANK=0"
    worker = f"{sys.executable} {TESTS / 'layouts_worker.py'} /tmp/layouts.json /tmp/layouts-found.json cuda"
    commands["layouts"] = ["bash", "-c", f"{alone} {worker}"]
    commands["kernels"] = python("-m", "pytest", "-q", "-p", "no:cacheprovider", str(TESTS / "ops" / "test_kernels_on_gpu.py"))
    together(commands, 130)
    found: dict[str, Any] = {}
    for path in (*(Path(f"/tmp/found-{i}.json") for i in range(GROUPS)), Path("/tmp/layouts-found.json")):
        found |= json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    (OUT / "tests.json").write_text(json.dumps(found), encoding="utf-8")
    for name, row in found.items():
        if "launched" in row:
            pairs = {
                key: max(abs(a / b - 1) for a, b in zip(row[key], row["launched"], strict=True))
                for key in ("captured", "fp8", "fp8-row")
                if key in row
            }
            say(
                f"{name}: distance {row['distance']:.4f}, from launched {pairs}, loss {row['captured'][0]:.3f} to {row['captured'][-1]:.3f}"
            )
        else:
            say(f"{name}: {row.get('failed', row)}")


def timed(*cases: str) -> Callable[[], None]:
    """Return a part that times cases of train.py, each 'case' or 'case:{options}'."""

    def run() -> None:
        for case in cases:
            label, _, extra = case.partition(":")
            model, batch, seq, options = train.CASES[label]
            options = options | json.loads(extra or "{}")
            batch, seq = options.pop("batch", batch), options.pop("seq", seq)
            together({"case": python(train.__file__, "--one", json.dumps([model, batch, seq, options]))}, 75, 1)
            lines = [
                line for line in Path("/tmp/case.log").read_text(errors="replace").splitlines() if line.startswith("RESULT ")
            ]
            row: dict[str, Any] = {"case": case} | (json.loads(lines[-1].removeprefix("RESULT ")) if lines else {})
            if not lines:
                say(Path("/tmp/case.log").read_text(errors="replace")[-1500:])
                continue
            with (OUT / "cases.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            rate = batch * seq / row["seconds"]
            say(
                f"{case}: {rate:,.0f} tok/s, {row['seconds']:.4f} s, {row['memory']:.2f} GiB, first {row['first']:.0f} s, {row['loss']}"
            )
            for part, milliseconds in list(row.get("parts", {}).items())[:28]:
                say(f"    {milliseconds:>8.2f} ms  {part}")

    return run


def changed() -> None:
    """Kernels and families that changed last, side by side."""
    sys.path[:0] = [str(ROOT / "tests"), str(TESTS), str(ROOT / "src")]
    families: dict[str, Any] = import_module("test_step_on_gpu").FAMILIES
    commands = {"kernels": python("-m", "pytest", "-q", "-p", "no:cacheprovider", str(TESTS / "ops" / "test_kernels_on_gpu.py"))}
    for name in ("olmoe", "gemma2, wide heads", "olmo2"):
        place = Path(f"/tmp/case-{name.partition(',')[0]}.json")
        place.write_text(json.dumps({name: {"model_type": name} | families[name]}), encoding="utf-8")
        commands[name] = python(str(TESTS / "families_on_gpu_worker.py"), str(place), f"{place}.found")
    together(commands, 70, 800)
    found = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in Path("/tmp").glob("case-*.json.found")}
    (OUT / "tests.json").write_text(json.dumps(found), encoding="utf-8")


def many(cases: Mapping[str, tuple[str, int, int, dict[str, Any]]], limit: float) -> Callable[[], None]:
    """Return a part that times cases in one process."""
    return lambda: together({"many": python(train.__file__, "--many", json.dumps(cases))}, limit, 6000)


def packed() -> None:
    """`meshwise run` with and without --pack on documents of this repository, with its report by kernel."""
    documents = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").rglob("*.md"))]
    pieces = [part for text in documents for part in text.split("\n## ") if len(part) > 100]
    lines = [json.dumps({"text": part}) for part in pieces * 20]
    Path("/tmp/documents.jsonl").write_text("\n".join(lines), encoding="utf-8")
    say(f"{len(pieces)} documents of {sum(map(len, pieces)) / len(pieces):.0f} bytes on average")
    for name, extra in (("plain", []), ("pack", ["--pack"])):
        words = ["run", "llama-3.2-1b", "--batch", "8x2048", "--steps", "30", "--data", "/tmp/documents.jsonl"]
        together({name: python("-m", "meshwise", *words, "--out", f"/tmp/run-{name}", *extra)}, 75, 5000)
        steps = Path(f"/tmp/run-{name}/steps.jsonl")
        seconds = [json.loads(line)["seconds"] for line in steps.read_text().splitlines()] if steps.is_file() else []
        say(f"{name}: seconds of the last ten steps {[round(value, 4) for value in seconds[-10:]]}")


def program(*words: str, limit: float = 200) -> Callable[[], None]:
    return lambda: together({Path(words[0]).stem: python(*words)}, limit, 6000)


LAST: dict[str, tuple[str, int, int, dict[str, Any]]] = {
    "olmoe-1b-7b": ("olmoe-1b-7b", 4, 2048, {"profile": True}),
    "gemma-2-2b": ("gemma-2-2b", 4, 2048, {"profile": True}),
    "gemma-2-2b-llama": ("gemma-2-2b as llama", 4, 2048, {}),
    **{name: train.CASES[name] for name in ("1b", "125m", "ttt-16x128", "qwen3-1.7b")},
    **{name: unseen_shapes_on_gpu.cases()[name] for name in ("pythia-1.4b 8x1024", "qwen3-1.7b 2x4096", "phi-3-mini 2x2048")},
    **{name: unseen_shapes_on_gpu.cases()[name] for name in ("gemma-3-270m 16x1024", "ttt-mlp-125m", "ttt-mlp-350m")},
    "8b-fp8": ("llama-3-8b", 6, 2048, {"precision": "fp8"}),
}
FIRST = [name for name in unseen_shapes_on_gpu.cases() if name not in ("olmoe-1b-7b", "llama-3-8b, fp8")]
"""Shapes without those that other parts time."""
PARTS: dict[str, Callable[[], None]] = {
    "tests": tests,
    "changed": changed,
    "probe": program("-m", "meshwise.workers.probe", str(OUT / "probe.jsonl"), "30", "cuda", limit=60),
    "last": many(LAST, 230),
    "olmoe": timed('olmoe-1b-7b:{"profile":true}'),
    "grouped": program("benchmarks/kernels/grouped_products.py", limit=80),
    "shapes": program("benchmarks/trainer/unseen_shapes_on_gpu.py", *FIRST, limit=240),
    "long": timed('1b:{"batch":1,"seq":131072,"graph":false,"steps":3}'),
    "pack": packed,
    "fp8": timed('qwen3-1.7b:{"precision":"fp8"}'),
    "gemma": timed('gemma-2-2b:{"profile":true}', "gemma-2-2b-llama"),
    "kept": timed("1b", "125m", "ttt-16x128", "qwen3-1.7b"),
}


def main() -> None:
    began = time.monotonic()
    for name in sys.argv[1:] or PARTS:
        say(f"==== {name}, after {time.monotonic() - began:.0f} s")
        try:
            PARTS[name]()
        except Exception as error:  # the next part may still work
            say(f"{name} failed: {type(error).__name__}: {error}")
    say(f"==== done after {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
