"""Slurm: a batch script with one task per node, which is requeued at its time limit and goes on from its last checkpoint."""

import re
from collections.abc import Iterable

from meshwise.programs import forms
from meshwise.programs.launch import script
from meshwise.programs.program import Job, Launcher
from meshwise.programs.source import Setting, Unknown
from meshwise.runs.run import Span, Stated, Value

FILE = "train.sbatch"
WARNING_SECONDS = 120  # seconds before the time limit at which Slurm warns the script, which then asks to be requeued
RENDEZVOUS = (
    "--rdzv-id=$SLURM_JOB_ID", "--rdzv-backend=c10d", "--rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT",
    "--local-addr=$SLURMD_NODENAME",
)  # fmt: skip
"""torchrun's options inside Slurm: nodes join by themselves, so that none needs a number."""


def write(job: Job) -> dict[str, str]:
    """Return the batch script."""
    return {FILE: "\n".join([*_directives(job), "", *_body(job)]) + "\n"}


def _directives(job: Job) -> list[str]:
    options = {
        "job-name": job.name, "nodes": job.nodes, "ntasks-per-node": 1,
        "gpus-per-node": 0 if script.is_cpu(job) else job.devices_per_node, "time": script.time_limit(job.hours),
        "output": "%x-%j.out", "open-mode": "append", "signal": f"B:USR1@{WARNING_SECONDS}",
    }  # fmt: skip
    lines = [f"#SBATCH --{name}={forms.one_line(str(value))}" for name, value in options.items() if value != 0]
    return ["#!/bin/bash", forms.comment(job.header).rstrip("\n"), *lines, "#SBATCH --exclusive", "#SBATCH --requeue"]


def _body(job: Job) -> list[str]:
    """Return the lines of the batch script: Slurm runs them on the first node, and srun starts the command on all."""
    text = ["set -euo pipefail", *script.exported(script.required(job))]
    text += ["export NNODES=$SLURM_NNODES"]
    text += ['MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)', "export MASTER_ADDR"]
    text += ["export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))"]
    text += [f"export {name}={forms.shell_word(value)}" for name, value in job.environment.items()]
    # since Slurm 22.05 srun no longer inherits the number of CPUs; a task without it would run on one
    text += ["export SRUN_CPUS_PER_TASK=$SLURM_CPUS_ON_NODE", ""]
    text += ["# Near the time limit the job is put back into the queue, and goes on from its last checkpoint.", "requeue() {"]
    text += ['  echo "the time limit is near: requeued"', '  scontrol requeue "$SLURM_JOB_ID"', "}", "trap requeue USR1", ""]
    text += [f"srun --kill-on-bad-exit=0 {line}" for line in script.preflight(job)]
    nodes = "--nodes=1 --ntasks=1 " if job.starter == "once" else ""
    # single quotes: SLURM_NODEID and SLURMD_NODENAME differ from node to node
    text += [f"srun {nodes}--kill-on-bad-exit=1 bash -c '"]
    text += ["  export NODE_RANK=$SLURM_NODEID"] if job.starter != "torchrun" else []
    others = [line.replace("'", "'\\''") for line in script.others(job)]
    text += [f"  {line}" for line in (*others, *_quoted(script.command(job, RENDEZVOUS)))]
    text[-1] += script.OTHER_HOSTS_ARGUMENTS if job.others else ""
    text += ["' &", "job=$!", 'until wait "$job"; do', "  code=$?", '  kill -0 "$job" 2> /dev/null || exit "$code"', "done"]
    return text


def _quoted(words: list[str]) -> list[str]:
    """Return a command for the inside of single quotes: words that need quotes have double ones."""
    shown = forms.shell_lines([word if _plain(word) else f'"{_escaped(word)}"' for word in words], raw=True)
    return ["exec " + line if number == 0 else line for number, line in enumerate(shown)]


def _plain(word: str) -> bool:
    return re.fullmatch(r"[\w@%+=:,./-]+", word) is not None


def _escaped(word: str) -> str:
    """Escape a word for double quotes inside single quotes; variables that the job sets are still expanded."""
    return forms.in_double_quotes(word).replace("'", "'\\''")


# Reading.


def facts_of_directives(settings: Iterable[Setting]) -> list[Stated]:
    """Return what `#SBATCH` lines say: nodes, devices per node, the kind of device, the time limit."""
    said = {setting.key: setting for setting in settings}
    facts: list[Stated] = []
    for key, fact, pattern in (
        ("--nodes", "nodes", r"(\d+)(?:-\d+)?$"),
        ("--gpus-per-node", "devices_per_node", r"(?:[\w.-]+:)?(\d+)$"),
        ("--gres", "devices_per_node", r"(?:.*,)?gpu:(?:[\w.-]+:)?(\d+)"),
    ):
        if key in said and fact not in {one.fact for one in facts}:
            facts += _counted(said[key], fact, pattern)
    if not any(one.fact == "devices_per_node" for one in facts):
        facts += _per_task(said)
    facts += _total(said, {one.fact: one.value for one in facts})
    if "--ntasks-per-node" in said and "devices_per_node" not in {one.fact for one in facts}:
        tasks = _counted(said["--ntasks-per-node"], "devices_per_node", r"(\d+)$")
        facts += [one for one in tasks if one.value != 1]  # one task per node starts the others itself
    for key in ("--gres", "--gpus-per-node", "--gpus"):
        match = re.match(r"(?:gpu:)?([A-Za-z][\w.-]*):\d+", str(said[key].value)) if key in said else None
        if match and match[1] != "gpu":
            facts.append(Stated("chip", match[1], "said", _part(said[key], match.span(1)), key))
            break
    if "--time" in said:
        hours = _hours(str(said["--time"].value))
        facts += [Stated("hours", hours, "said", said["--time"].span, "--time")] if hours else []
    return facts


def _counted(setting: Setting, fact: str, pattern: str) -> list[Stated]:
    if isinstance(setting.value, Unknown):
        return [Stated(fact, None, "unknown", setting.span, setting.key, f"{setting.value} is not known")]
    match = re.match(pattern, str(setting.value))
    return [Stated(fact, int(match[1][:9]), "said", _part(setting, match.span(1)), setting.key)] if match else []


def _per_task(said: dict[str, Setting]) -> list[Stated]:
    """Return the devices of a node from `--gpus-per-task` and the tasks of a node."""
    options = ("--gpus-per-task", "--ntasks-per-node", "--ntasks", "--nodes")
    numbers = {key: str(said[key].value) for key in options if key in said}
    if "--gpus-per-task" not in numbers or not all(text.isdecimal() and len(text) < 9 for text in numbers.values()):
        return []
    counts = {key: int(text) for key, text in numbers.items()}
    tasks = counts.get("--ntasks-per-node") or counts.get("--ntasks", 1) // max(1, counts.get("--nodes", 1))
    each = counts["--gpus-per-task"]
    setting = said["--gpus-per-task"]
    note = f"{each} of each of {tasks} tasks"
    return [Stated("devices_per_node", each * tasks, "derived", setting.span, setting.key, note)] if tasks else []


def _total(said: dict[str, Setting], known: dict[str, Value | None]) -> list[Stated]:
    """Return the devices of `--gpus`, which counts those of all nodes."""
    if "--gpus" not in said or "devices_per_node" in known:
        return []
    return _counted(said["--gpus"], "devices", r"(?:[\w.-]+:)?(\d+)$")


def _part(setting: Setting, part: tuple[int, int]) -> Span:
    span = setting.span
    if not span.writable or span.end - span.start != len(str(setting.value)):
        return Span(span.file, span.line)
    return Span(span.file, span.line, span.start + part[0], span.start + part[1])


def _hours(text: str) -> float:
    """Return the hours of a time limit: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS; 0 for none."""
    match = re.fullmatch(r"(?:(\d{1,4})-)?(\d{1,5})(?::(\d{1,2}))?(?::(\d{1,2}))?", text)
    if match is None:
        return 0.0
    days, first, second, third = (int(part) if part else 0 for part in match.groups())
    if match[1] is not None:
        return days * 24 + first + second / 60 + third / 3600
    if match[4] is not None:
        return first + second / 60 + third / 3600
    return first / 60 + second / 3600


LAUNCHER = Launcher(
    name="slurm", title="Slurm", version="22.05", write=write, directives=facts_of_directives, start=f"sbatch {FILE}",
    check=f"sbatch --test-only {FILE}",
)  # fmt: skip
