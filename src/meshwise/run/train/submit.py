"""Submit a run to Slurm: write the batch script of a plan, follow its log, and end with the measured row."""

import shlex
import shutil
import subprocess
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from meshwise.errors import DoesNotFit, UserError, quoted
from meshwise.plan.train.plan import read as read_plan
from meshwise.programs import setup
from meshwise.programs.program import Job, find_launcher
from meshwise.run.callbacks import Say
from meshwise.run.train.ask import TrainRun
from meshwise.workers import tool
from meshwise.workers.trainer.contract.rows import read_rows

POLL_SECONDS = 1.0  # seconds between looks at the log
WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED", "RESIZING")
LOOKS_UNTIL_GONE = 5
"""Looks at the queue without an answer after which a job counts as ended: Slurm forgets jobs, and a controller may be restarted."""


@dataclass(frozen=True)
class Submitted:
    """A run that Slurm ran: its job, its folder and the row it measured."""

    job: str
    folder: Path
    row: dict[str, Any]

    @property
    def text(self) -> str:
        """The row in one line."""
        predicted = self.row.get("predicted_sec_per_iter")
        beside = f", {float(predicted):.4g} predicted" if predicted else ""
        return f"job {self.job}: {float(self.row['sec_per_iter']):.4g} s/step{beside}; {self.folder / 'measurement.jsonl'} has the row"

    def rows(self) -> list[dict[str, Any]]:
        return [self.row]

    def to_json(self) -> dict[str, Any]:
        return self.row


def submit(run: TrainRun, say: Say) -> Submitted:
    """Submit a plan with sbatch, pass on its log, and return its row. DoesNotFit where the job fails; after Ctrl-C it goes on."""
    if shutil.which("sbatch") is None:
        raise UserError("--with slurm: there is no sbatch on this machine; without --with the run starts here")
    folder = run.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "train.sbatch"
    script.write_text(batch_script(run), encoding="utf-8")
    before = len(read_rows(folder / "measurement.jsonl"))
    job = sbatch(script)
    say(f"submitted job {job}: {script}")
    try:
        state = follow(job, folder / f"slurm-{job}.out", say)
    except KeyboardInterrupt:
        say(f"job {job} goes on; its log is {folder / f'slurm-{job}.out'}; end it with: scancel {job}")
        raise
    rows = read_rows(folder / "measurement.jsonl")
    if len(rows) <= before:
        raise DoesNotFit(f"job {job} ended as {state} and measured no step; its log is {folder / f'slurm-{job}.out'}")
    done = Submitted(job, folder, rows[-1])
    say(done.text)
    return done


def batch_script(run: TrainRun) -> str:
    """Return the script that runs the same command on every node of the plan."""
    plan_file = Path(run.what).absolute()
    if not plan_file.is_file() or plan_file.suffix != ".json":
        raise UserError(f"--with slurm: {quoted(run.what)} is no plan.json, which says the nodes and devices to ask for")
    facts = setup.of_plan(read_plan(plan_file))
    command = replace(run, launcher="", what=str(plan_file), out=str(run.folder.absolute())).command()
    job = Job(
        name=plan_file.stem, nodes=facts.whole("nodes"), devices_per_node=facts.whole("devices_per_node"),
        command=tuple(shlex.split(command)), starter="node", header=facts.header, chip=facts.text("chip"),
    )  # fmt: skip
    (text,) = find_launcher("slurm").write(job).values()
    return text.replace("#SBATCH --output=%x-%j.out", f"#SBATCH --output={run.folder.absolute()}/slurm-%j.out")


def sbatch(script: Path) -> str:
    """Submit a script; return the number of its job."""
    done = subprocess.run(["sbatch", "--parsable", str(script)], capture_output=True, errors="replace", check=False)
    if done.returncode:
        raise UserError(f"--with slurm: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'sbatch failed'}")
    return done.stdout.strip().partition(";")[0]


def follow(job: str, log: Path, say: Say) -> str:
    """Pass on the lines of a log until its job ends; return the job's last state."""
    position, state, gone, reported = 0, "", 0, ""
    while True:
        now = job_state(job)
        gone = 0 if now else gone + 1
        ended = gone >= LOOKS_UNTIL_GONE or now not in ("", "RUNNING", "COMPLETING", *WAITING)
        if now in WAITING and now != reported:
            say(f"job {job} waits in the queue ({now.lower()})")
        state, reported = now or state, now or reported
        position = _pass_on(log, position, say, last=ended)
        if ended:
            return state
        time.sleep(POLL_SECONDS)


def job_state(job: str) -> str:
    """Return the state of a job; '' where Slurm does not know it (any more)."""
    try:
        return tool.output("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").split("\n")[0].strip()
    except tool.ToolError:
        return ""


def _pass_on(log: Path, position: int, say: Say, *, last: bool) -> int:
    """Say the whole lines of a log after a position; return the position after them."""
    if not log.is_file():
        return position
    with log.open("rb") as file:
        file.seek(position)
        text = file.read()
    whole = text if last else text[: text.rfind(b"\n") + 1]
    for line in whole.decode("utf-8", errors="replace").splitlines():
        say(line)
    return position + len(whole)
