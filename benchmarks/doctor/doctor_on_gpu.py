"""`doctor` and `preflight` on one GPU machine, in one command of at most 235 seconds:
`python benchmarks/doctor/doctor_on_gpu.py [--unseen [CASE...]]`.

First `preflight` on the machine; then steps of our trainer (Llama 3.2 1B, OLMoE with six layers, LoRA), each traced and its parts put
beside the plan's; then faults and clean runs that no limit of a rule was set on (unseen.py), as many as there is time for. JSON lines go to
standard output and $OUT/doctor_on_gpu.jsonl, slim traces to $OUT/traces.tar.gz.

It needs Python 3.12, torch 2.11, numpy, scipy, PyYAML and huggingface_hub, which the machine's image has; what the command line needs
beside them is pure Python and travels in the root of the repository:
`python3.12 -m pip install --target .gpu-packages --no-deps --no-compile
typer rich click shellingham markdown-it-py mdurl pygments annotated-doc`
"""

import gzip
import json
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
OUT = Path(os.environ.get("OUT", "/tmp"))
WORK = Path("/tmp/doctor-on-gpu")
LIMIT = 235.0
MAX_PACKED = 14e6  # bytes of the traces that are kept
BEGAN = time.monotonic()
PATHS = [
    str(ROOT / "src"),
    str(ROOT / ".gpu-packages"),
    str(Path(__file__).parent),
    *filter(None, [os.environ.get("PYTHONPATH")]),
]
ENVIRONMENT = os.environ | {"PYTHONPATH": ":".join(PATHS), "PYTHONUNBUFFERED": "1", "MESHWISE_HOME": str(WORK / "home")}
RUNS = {
    "llama-1b": (["llama-3.2-1b", "--batch", "8x2048"], 75.0),
    "olmoe": ([str(WORK / "olmoe.json"), "--batch", "4x2048"], 75.0),
    "lora": (["llama-3.2-1b", "--batch", "8x2048", "--finetune", "lora:16"], 70.0),
}


def left() -> float:
    return LIMIT - (time.monotonic() - BEGAN)


def say(row: dict[str, Any]) -> None:
    row["at"] = round(time.monotonic() - BEGAN, 1)
    print(json.dumps(row), flush=True)
    with (OUT / "doctor_on_gpu.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def command(words: list[str], limit: float) -> "subprocess.CompletedProcess[str]":
    """Run a command for at most so many seconds; one that takes longer counts as failed."""
    try:
        return subprocess.run(
            [sys.executable, *words],
            capture_output=True,
            text=True,
            timeout=max(1.0, min(limit, left())),
            env=ENVIRONMENT,
            cwd=WORK,
        )
    except subprocess.TimeoutExpired as error:
        return subprocess.CompletedProcess(words, 124, str(error.stdout or "")[-2000:], f"took more than {limit:g} s")


def preflight() -> None:
    done = command(["-m", "meshwise", "preflight", "--seconds", "12", "--out", str(WORK / "preflight"), "--json"], 60.0)
    try:
        said = json.loads(done.stdout)
        say(
            {
                "part": "preflight",
                "exit": done.returncode,
                **{key: said[key] for key in ("facts", "unseen", "nodes", "expected", "findings", "notes")},
            }
        )
        say({"part": "cluster.toml", "text": (WORK / "preflight" / "cluster.toml").read_text(encoding="utf-8")})
        kept = [json.loads(line) for line in (WORK / "preflight" / "rows.jsonl").read_text(encoding="utf-8").splitlines()]
        say({"part": "counters", "rows": [row for row in kept if row["kind"] in ("counters", "xid", "missing")]})
    except (ValueError, KeyError, OSError) as error:
        say({"part": "preflight", "exit": done.returncode, "error": f"{error}; {done.stderr[-1500:]} {done.stdout[-500:]}"})


def own_run(name: str, words: list[str], limit: float) -> None:
    """Trace three steps of our trainer, and compare their parts with the plan's."""
    folder = WORK / name
    run = ["-m", "meshwise", "run", *words, "--steps", "13", "--profile", "10:3", "--on", "1xh200", "--out", str(folder)]
    done = command(run, limit)
    said = command(["-m", "meshwise", "doctor", str(folder), "--json"], 40.0)
    try:
        found = json.loads(said.stdout)
        parts = {
            row["part"]: {"ms": round(1e3 * row["measured"], 2), "plan": row["should_be"] and round(1e3 * row["should_be"], 2),
                          "off": row["should_be"] and round(row["measured"] / row["should_be"] - 1, 3)}
            for row in found["parts"]
        }  # fmt: skip
        faults = [f"{fault['name']} ({fault['certainty']})" for fault in found["faults"]]
        say(
            {
                "part": f"own run {name}",
                "exit": done.returncode,
                "predicted from": found["predicted_from"],
                "parts": parts,
                "faults": faults,
            }
        )
    except (ValueError, KeyError) as error:
        say(
            {
                "part": f"own run {name}",
                "exit": done.returncode,
                "error": f"{error}; {said.stderr[-800:]}; run: {done.stderr[-1200:]} {done.stdout[-600:]}",
            }
        )


def unseen(cases: list[str]) -> None:
    """Plant faults and clean runs in plain PyTorch steps, all or some of the cases, and diagnose them."""
    ENVIRONMENT["TRACES"], ENVIRONMENT["SECONDS_LEFT"] = str(WORK / "unseen"), f"{max(5.0, left() - 20):g}"
    errors = (WORK / "unseen.log").open("w+", encoding="utf-8")
    with errors, subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("unseen.py")), "cuda", *cases],
        stdout=subprocess.PIPE, stderr=errors, text=True, env=ENVIRONMENT, cwd=WORK,
    ) as worker:  # fmt: skip
        assert worker.stdout is not None
        for line in worker.stdout:
            say({"part": "unseen", **json.loads(line)})
            if left() < 10:
                worker.kill()
        if worker.wait():
            errors.seek(0)
            say({"part": "unseen", "exit": worker.returncode, "error": errors.read()[-1500:]})


def keep() -> None:
    """Pack slim traces, for tests/fixtures/doctor."""
    from plant import slim

    with tarfile.open(OUT / "traces.tar.gz", "w:gz") as packed:
        for path in sorted((WORK / "unseen").glob("*.json.gz")):
            if left() > 4 and path.stat().st_size < 8e6:
                slim(path, path)
                if (OUT / "traces.tar.gz").stat().st_size + path.stat().st_size < MAX_PACKED:
                    packed.add(path, path.name)
        for name in RUNS:
            for path in sorted((WORK / name).glob("*.json*")):
                if path.name == "trace-rank0.json" and left() > 4:
                    small = path.with_suffix(".json.gz")
                    small.write_bytes(gzip.compress(path.read_bytes(), 1))
                    slim(small, small)
                    packed.add(small, f"{name}/{small.name}")
                elif path.stat().st_size < 1e6:
                    packed.add(path, f"{name}/{path.name}")


def main() -> None:
    WORK.mkdir(parents=True, exist_ok=True)
    (OUT / "doctor_on_gpu.jsonl").unlink(missing_ok=True)
    model = json.loads((ROOT / "src/meshwise/data/models/olmoe-1b-7b.json").read_text(encoding="utf-8"))
    (WORK / "olmoe.json").write_text(json.dumps(model | {"num_hidden_layers": 6}), encoding="utf-8")
    if sys.argv[1:2] == ["--unseen"]:
        unseen(sys.argv[2:])
    else:
        preflight()
        for name, (words, limit) in RUNS.items():
            if left() > 60:
                own_run(name, words, limit)
        unseen([])
    sys.path[:0] = PATHS
    try:
        keep()
    except Exception as error:
        say({"part": "traces", "error": str(error)[:300]})
    say({"part": "all", "seconds": round(time.monotonic() - BEGAN, 1)})


if __name__ == "__main__":
    main()
