"""Workers of a preflight: on this node, or as a job of Slurm or Kubernetes that starts `meshwise preflight` on every node."""

import json
import os
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

from meshwise.catalogue import files, here
from meshwise.errors import DoesNotFit, UserError
from meshwise.programs.forms import one_line
from meshwise.programs.program import Job, find_launcher
from meshwise.run.callbacks import Progress, Say
from meshwise.run.children import end_tree, interrupt_on_stop, with_parent
from meshwise.run.preflight import tools
from meshwise.run.preflight.ask import PreflightAsk
from meshwise.run.preflight.tools import NodeFacts
from meshwise.run.serve.process import free_port
from meshwise.run.train import submit
from meshwise.run.train.hosts import Hosts, network
from meshwise.workers.secret import SECRET

GRACE_SECONDS, POLL_SECONDS = 2.0, 0.1
HOSTS = "hosts.txt"  # file of the nodes of a job, in the order of their ranks
HANG_SECONDS = 300.0
"""Seconds beyond the planned time after which workers are assumed to hang: they wait a minute for each other, and for a message."""


def devices(ask: PreflightAsk) -> tuple[str, int]:
    """Return the device, and how many of a node take part."""
    gpus = len(here.gpus() or here.radeons())
    device = ask.device or ("cuda" if gpus else "cpu")
    if device == "cuda" and (ask.ranks or 1) > gpus:
        raise UserError(f"--device cuda --ranks {ask.ranks or 1}: nvidia-smi and rocm-smi list {gpus} GPUs here")
    return device, ask.ranks or (gpus if device == "cuda" else 1)


def measure(ask: PreflightAsk, hosts: Hosts, facts: NodeFacts, progress: Progress) -> None:
    """Run the workers of this node until they end; they write their rows to the folder. DoesNotFit where one fails."""
    device, count = devices(ask)
    folder = Path(ask.out)
    file = folder / f"facts-{hosts.rank}.json"
    files.write(file, json.dumps({"seen": asdict(facts)}) + "\n")
    if hosts.rank == 0 and (listed := os.environ.get("SLURM_JOB_NODELIST")):
        files.write(folder / HOSTS, tools.output("scontrol", "show", "hostnames", listed))
    address, _, port = (hosts.rendezvous or f"127.0.0.1:{free_port()}").rpartition(":")
    shared = {
        "WORLD_SIZE": str(hosts.nodes * count), "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": address.strip("[]"), "MASTER_PORT": port,
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count) if device == "cpu" else 8)),
        **network(hosts, os.environ), "TORCH_CPP_LOG_LEVEL": "FATAL",
        SECRET: os.environ.get(SECRET) or ("" if hosts.rendezvous else secrets.token_hex()),
    }  # fmt: skip
    command = [sys.executable, "-m", "meshwise.workers.probe.health", str(folder), f"{ask.seconds:g}", device, str(file)]
    with interrupt_on_stop(), ExitStack() as stack:
        workers: list[subprocess.Popen[str]] = []
        for local in range(count):
            own = {"RANK": str(hosts.rank * count + local), "LOCAL_RANK": str(local)}
            errors = stack.enter_context((folder / f"rank-{own['RANK']}.log").open("w", encoding="utf-8"))
            worker = subprocess.Popen(
                command, stdout=subprocess.PIPE if local == 0 else subprocess.DEVNULL, stderr=errors, text=True,
                env=dict(os.environ) | shared | own, start_new_session=True, preexec_fn=with_parent(),
            )  # fmt: skip
            workers.append(stack.enter_context(worker))
            stack.callback(end_tree, worker, GRACE_SECONDS)
        _wait(workers, ask.seconds, progress)
    bad = next((number for number, worker in enumerate(workers) if worker.returncode), None)
    if bad is not None and not (folder / "rows.jsonl").is_file() and hosts.rank == 0:
        log = folder / f"rank-{hosts.rank * count + bad}.log"
        raise DoesNotFit(
            f"no row was measured: {(log.read_text(encoding='utf-8').strip().splitlines() or ['a worker ended'])[-1][:300]}"
        )


def _wait(workers: "Sequence[subprocess.Popen[str]]", seconds: float, progress: Progress) -> None:
    """Pass on the progress of the first worker, and wait for all; those that hang are ended with the block."""
    until = time.monotonic() + seconds + HANG_SECONDS
    assert workers[0].stdout is not None
    os.set_blocking(workers[0].stdout.fileno(), False)
    while time.monotonic() < until:
        for line in workers[0].stdout:
            done, _, what = line.strip().partition("%  ")
            if what and done.isdecimal():
                progress(what, int(done), 100)
        if all(worker.poll() is not None for worker in workers):
            return
        time.sleep(POLL_SECONDS)


def job(ask: PreflightAsk, nodes: int, per_node: int, chip: str) -> Job:
    """Return the job that runs the same preflight on every node."""
    folder = str(Path(ask.out).absolute()) if ask.launcher == "slurm" else ask.out
    own = replace(ask, launcher="", nodes=None, partition="", out=folder, ranks=ask.ranks or (per_node or None))
    return Job(
        name="preflight", nodes=nodes, devices_per_node=max(1, per_node), command=tuple(shlex.split(own.command())), starter="node",
        header=("Written by 'meshwise preflight': measures every node, then the links between them.",), chip=chip or "cpu", hours=0.5,
    )  # fmt: skip


def write(ask: PreflightAsk, nodes: int, per_node: int, chip: str) -> Path:
    """Write the batch script or manifest to the folder."""
    launcher = find_launcher("slurm" if ask.launcher == "slurm" else "jobset")
    (text,) = launcher.write(job(ask, nodes, per_node, chip)).values()
    folder = Path(ask.out).absolute()
    if ask.launcher == "slurm":
        more = f"#SBATCH --partition={one_line(ask.partition)}\n" if ask.partition else ""
        text = text.replace("#SBATCH --output=%x-%j.out\n", f"#SBATCH --output={one_line(str(folder))}/slurm-%j.out\n{more}")
        text = text.replace("--kill-on-bad-exit=1", "--kill-on-bad-exit=0").replace("#SBATCH --requeue\n", "")
    path = folder / ("preflight.sbatch" if ask.launcher == "slurm" else "preflight.yaml")
    files.write(path, text)
    return path


def submit_job(script: Path, say: Say) -> None:
    """Submit the script to Slurm, and pass on its log until it ends. Its exit code is that of the verdict, so it is not looked at."""
    number = submit.sbatch(script)
    say(f"submitted job {number}: {script}")
    try:
        submit.follow(number, script.parent / f"slurm-{number}.out", say)
    except KeyboardInterrupt:
        subprocess.run(["scancel", number], capture_output=True, check=False)
        raise
