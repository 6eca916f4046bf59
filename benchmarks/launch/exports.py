"""Plans for a program, written by `export`, read again and predicted again: 10 models x every training program.

    python benchmarks/launch/exports.py [PROGRAM ...]      one JSON line per program and model, then the sums

Of each plan every row is written; the first is read from its files alone by `check`: its layout and its prediction must be the plan's.
What a file does not state (the model of DeepSpeed's JSON) is answered as `--model` and `--set` do, and named in the row.
"""

import json
import os
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from meshwise import api
from meshwise.audit.check.layout import normal
from meshwise.errors import UserError
from meshwise.plan.train.plan import TrainPlan
from meshwise.programs.program import programs

MODELS = (
    "llama-3.1-8b", "llama-3.3-70b", "qwen3-30b-a3b", "qwen2.5-7b", "mixtral-8x7b", "deepseek-v3", "gemma-3-12b", "gpt-oss-20b",
    "olmo-2-7b", "bloom-176b",
)  # fmt: skip
MACHINES = {"mlx-lm": "m3-ultra", "unsloth": "h100-sxm"}
VERSIONS = ("torchtitan-0.2",)  # programs that `plan` has under the name of another version
SAME_SHARE = 0.01
"""Difference of two predictions of one run that rounding explains."""


def planned(program: str, model: str) -> TrainPlan:
    """Plan a model for a program: training, or adapters where the program runs on one device."""
    alone = program in MACHINES
    on = MACHINES.get(program) or ("64x8xh100-sxm" if model in ("deepseek-v3", "bloom-176b") else "8x8xh100-sxm")
    words: dict[str, Any] = {"finetune": "lora"} if alone else {}
    framework = programs()[program].framework if program in VERSIONS else program
    return api.plan(model, on=on, batch="16x2048" if alone else "1024x4096", framework=framework, top=5, **words)


def judged(program: str, model: str) -> dict[str, object]:
    """Return what becomes of the plan of a model for a program."""
    row: dict[str, object] = {"program": program, "model": model}
    try:
        plan = planned(program, model)
    except UserError as error:
        return row | {"outcome": "not planned", "why": str(error)}
    told = next((note for note in plan.notes if "can write none" in note), "")
    if told:
        return row | {"outcome": "told", "why": told}
    with TemporaryDirectory() as folder:
        try:
            written = [api.export(plan, to=program, row=number) for number in range(1, len(plan.choices) + 1)]
            paths = written[0].save(Path(folder))
            verdict = api.check(*paths, on=plan.ask.on)
            if verdict.own is None:  # a file that names no model, or not the sequence, is asked again with these
                stated = {"seq": plan.ask.seq, "recompute": plan.choices[0].layout["recompute"]}
                answers = tuple(f"{name}={value}" for name, value in stated.items() if f"{name}: not stated" in verdict.unknown)
                row["answered"] = ["model", *answers]
                verdict = api.check(*paths, on=plan.ask.on, model=model, set=answers)
        except UserError as error:
            return row | {"outcome": "REFUSED", "why": str(error)}
    row |= {"rows": len(written), "layout": plan.choices[0].name}
    if verdict.own is None:
        return row | {"outcome": "written", "why": "; ".join(verdict.unknown)}
    if normal(verdict.own.layout) != normal(plan.choices[0].layout):
        return row | {"outcome": "ANOTHER LAYOUT", "why": verdict.own.name}
    ratio = verdict.own.step / plan.choices[0].step
    return row | {"outcome": "same" if abs(ratio - 1) <= SAME_SHARE else "ANOTHER PREDICTION", "ratio": round(ratio, 3)}


def main() -> int:
    os.environ.setdefault("MESHWISE_HOME", os.devnull)
    names = sys.argv[1:] or [one.name for one in programs().values() if one.kind == "train" and one.write is not None]
    sums: Counter[str] = Counter()
    for program in names:
        for model in MODELS:
            row = judged(program, model)
            sums[str(row["outcome"])] += 1
            print(json.dumps(row), flush=True)
    print(json.dumps(dict(sums)))
    return int(any(outcome.isupper() for outcome in sums))


if __name__ == "__main__":
    sys.exit(main())
