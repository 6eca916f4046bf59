"""transformers: the worker of meshwise.generation, which times prompts and steps of one GPU, or of several that share each layer. It serves
nobody."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from meshwise.errors import DoesNotFit, UserError
from meshwise.models import find
from meshwise.run.bench.speeds import Measured, Setting, steady_run
from meshwise.workers.decoder.settings import Job, Point

MISSING = "the transformers engine needs torch and transformers: pip install torch transformers"


@dataclass(frozen=True)
class Timed:
    """What the worker found, and on what."""

    measured: list[Measured]
    device: str
    torch: str


def job(
    model: str, settings: list[Setting], *, device: str, repeats: int, tp: int = 1, weights: str = "", precision: str = ""
) -> Job:
    values, name, _ = find.find_values(model)
    points = tuple(Point(prompt=one.prompt, output=one.output, users=one.users) for one in settings)
    return Job(
        name=name,
        model={key: value for key, value in values.items() if key != "meshwise"},
        points=points,
        weights=weights,
        device=device,
        precision=precision or ("bf16" if device == "cuda" else "fp32"),
        repeats=repeats,
        tp=tp,
    )


def timed(asked: Job, progress: Callable[[], None]) -> Timed:
    """Runs the worker to its end; it dies with this process, and what it refuses is told in its words."""
    from meshwise.run.serve.process import Program, run_to_end

    said: list[dict[str, Any]] = []

    def hear(line: str) -> None:
        text = line.partition(": ")[2]
        if text.startswith("{"):
            said.append(json.loads(text))
            progress()

    with TemporaryDirectory() as folder:
        file = Path(folder, "job.json")
        file.write_text(asked.to_json(), encoding="utf-8")
        several = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(asked.tp)) if asked.tp > 1 else ()
        command = (sys.executable, *several, "-m", "meshwise.workers.decoder", str(file))
        running = run_to_end(Program(name="transformers", command=command), hear)
    refused = next((str(line["error"]) for line in said if "error" in line), "")
    if refused.endswith("is not installed"):
        raise UserError(MISSING)
    ready = next((line for line in said if line.get("event") == "ready"), None)
    if refused or ready is None:
        last = next((line for line in reversed(running.log) if line.strip()), "it said nothing")
        raise DoesNotFit(f"transformers: {refused or last[:240]}")
    points = [line for line in said if line.get("event") == "point"]
    return Timed([measured(line) for line in points], str(ready["device"]), str(ready["torch"]))


def measured(line: dict[str, Any]) -> Measured:
    """A point of the worker in the figures of a bench."""
    setting = Setting(prompt=line["prompt"], output=line["output"], users=line["users"])
    if line["outcome"] != "ok":
        return Measured(setting=setting, runs=(), faults={"out of memory": 1})
    times = zip(line["prefill_s"], line["decode_s"], strict=True)
    runs = [steady_run(setting, prompt=prompt, steps=steps) for prompt, steps in times]
    return Measured(setting=setting, runs=tuple(runs), notes=(line["variant"],))
