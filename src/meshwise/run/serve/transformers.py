"""transformers: run the worker `meshwise.workers.decoder`, which times prompts and decode steps on GPUs; it serves nothing."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from meshwise.errors import DoesNotFit, UserError
from meshwise.models import find
from meshwise.run.bench.speeds import Measured, Setting, steady_run
from meshwise.run.scratch import ScratchFile
from meshwise.run.serve.process import Program, run_to_end
from meshwise.workers.decoder.settings import Job, Point

MISSING_PACKAGES = "the transformers engine needs torch and transformers: pip install torch transformers"


@dataclass(frozen=True)
class Timed:
    """The worker's measurements, its device and its version of torch."""

    measured: list[Measured]
    device: str
    torch: str


def job(
    model: str, settings: list[Setting], *, device: str, repeats: int, tp: int = 1, weights: str = "", precision: str = ""
) -> Job:
    """Return the settings of the worker."""
    values, name, _ = find.find_values(model)
    points = tuple(Point(prompt=setting.prompt, output=setting.output, users=setting.users) for setting in settings)
    return Job(
        name=name, model={key: value for key, value in values.items() if key != "meshwise"}, points=points, weights=weights,
        device=device, precision=precision or ("bf16" if device == "cuda" else "fp32"), repeats=repeats, tp=tp,
    )  # fmt: skip


def timed(job: Job, done: Callable[[], None]) -> Timed:
    """Run the worker to its end; raise its error message if it fails. `done` is called after each line of results."""
    lines: list[dict[str, Any]] = []

    def read(line: str) -> None:
        text = line.partition(": ")[2]
        if text.startswith("{"):
            lines.append(json.loads(text))
            done()

    with ScratchFile(job.to_json()) as file:
        several = ("meshwise.workers.local", str(job.tp)) if job.tp > 1 else ()
        command = (sys.executable, "-m", *several, "meshwise.workers.decoder", str(file.path))
        running = run_to_end(Program(name="transformers", command=command), read)
    error = next((str(line["error"]) for line in lines if "error" in line), "")
    if error.endswith("is not installed"):
        raise UserError(MISSING_PACKAGES)
    ready = next((line for line in lines if line.get("event") == "ready"), None)
    if error or ready is None:
        last = next((line for line in reversed(running.log) if line.strip()), "it printed nothing")
        raise DoesNotFit(f"transformers: {error or last[:240]}")
    points = [line for line in lines if line.get("event") == "point"]
    return Timed([measured(line) for line in points], str(ready["device"]), str(ready["torch"]))


def measured(line: dict[str, Any]) -> Measured:
    """Convert a point of the worker into the rates of a bench."""
    setting = Setting(prompt=line["prompt"], output=line["output"], users=line["users"])
    if line["outcome"] != "ok":
        return Measured(setting=setting, runs=(), faults={"out of memory": 1})
    times = zip(line["prefill_s"], line["decode_s"], strict=True)
    runs = [steady_run(setting, prompt=prompt, steps=steps) for prompt, steps in times]
    return Measured(setting=setting, runs=tuple(runs), notes=(f"decoder: {line['variant']}",))
