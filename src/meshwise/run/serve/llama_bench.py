"""llama-bench, llama.cpp's own timer: prompts, and generation after a prompt, for one request and without a server."""

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, cast

from meshwise.errors import UserError
from meshwise.run.bench.speeds import Measured, Setting, steady_run
from meshwise.run.serve.process import Program, failure, run_to_end

NAME = "llama-bench"
SHARED_FLAGS = ("-m", "-ngl", "--rpc", "-sm", "-ctk", "-ctv", "-fa", "--n-cpu-moe", "-t")
LIST_SEPARATORS = {"-ts": "/", "-dev": "/", "-ot": ";"}
"""Flags whose lists have another separator than llama-server's: a comma separates values that are tried one after another."""


def flags(server: Sequence[str]) -> list[str]:
    """Translate the flags of llama-server that place a model on devices."""
    translated: list[str] = []
    for flag, value in pairwise(server):
        if flag in SHARED_FLAGS:
            translated += [flag, value]
        elif flag in LIST_SEPARATORS:
            translated += [flag, value.replace(",", LIST_SEPARATORS[flag])]
    return translated


def runs(settings: Sequence[Setting]) -> list[list[str]]:
    """Return the arguments of each start: one for all prompts, and one per output length, after each of the prompts."""
    if any(setting.users > 1 for setting in settings):
        raise UserError("llama-bench times one request at a time; drop --llama-bench to measure several")
    prompts = ",".join(str(p) for p in dict.fromkeys(setting.prompt for setting in settings))
    outputs = dict.fromkeys(setting.output for setting in settings)
    return [["-p", prompts, "-n", "0"], *(["-p", "0", "-n", str(n), "-d", prompts] for n in outputs)]


def timed(command: Sequence[str], settings: Sequence[Setting], repeats: int, done: Callable[[], None]) -> list[Measured]:
    """Measure every setting with `command`, llama-bench with the flags of the layout, which warms up itself; `done`: after each test."""
    rows = [row for words in runs(settings) for row in _rows([*command, *words, "-r", str(repeats), "-o", "jsonl"], done)]
    prompts = {row["n_prompt"]: row["samples_ts"] for row in rows if not row["n_gen"]}
    steps = {(row.get("n_depth", 0), row["n_gen"]): row["samples_ts"] for row in rows if row["n_gen"]}
    return [_measured(setting, prompts[setting.prompt], steps[setting.prompt, setting.output]) for setting in settings]


def _measured(setting: Setting, prompts: Sequence[float], steps: Sequence[float]) -> Measured:
    made = [steady_run(setting, prompt=setting.prompt / p, steps=setting.output / s) for p, s in zip(prompts, steps, strict=True)]
    return Measured(setting=setting, runs=tuple(made), notes=("llama-bench, without a server",))


def _rows(command: Sequence[str], done: Callable[[], None]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []

    def read(line: str) -> None:
        text = line.partition(": ")[2]
        if text.startswith("{"):
            rows.append(cast(dict[str, Any], json.loads(text)))
            done()

    running = run_to_end(Program(name=NAME, command=tuple(command)), read)
    if running.process.returncode or not rows:
        raise failure(running)
    return rows
