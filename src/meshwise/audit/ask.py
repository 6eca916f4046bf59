"""AuditAsk: figures of a run in the words of the command line; `answer` checks them, or files, or both."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from meshwise import units
from meshwise.audit import report
from meshwise.catalogue.chips import known_chip
from meshwise.catalogue.clusters import find_cluster
from meshwise.errors import UserError
from meshwise.models import find
from meshwise.plan.fields import COUNT, LENGTH, SECONDS, SHARE, TEXT, Ask, asked, number, optional, quantity, question, whole
from meshwise.runs.run import Run, Stated, Value
from meshwise.runs.train.machine import part_of

LAUNCH_SUFFIXES = (".sh", ".bash", ".slurm", ".sbatch", ".yaml", ".yml", ".toml")
"""Names of launch files; JSON may be a log, such as the Trainer's state."""
LAUNCH_GROUPS = ("layout", "batch", "model", "machine")  # groups of fields that a launch file tells of the run in its log
LAUNCH_WORK = ("precision", "optimizer", "compile", "release", "attention", "loss", "overlap", "graphs", "gradients", "capacity")
"""Other fields that it tells."""


@question
class AuditAsk(Ask):
    """Figures of a run that its files leave out, in SI units; 0, None or '' where nothing is given."""

    verb: ClassVar[str] = "audit"

    model: str = asked(default="", converter=TEXT)
    params: float = asked(default=0.0, converter=COUNT)
    seq: int = asked(default=0, converter=LENGTH)
    batch: str = asked(default="", converter=TEXT)
    on: str = asked(default="", converter=TEXT)
    framework: str = asked(default="", converter=TEXT)
    vocab: float = asked(default=0.0, converter=COUNT)
    layers: int = asked(default=0, converter=whole())
    hidden: int = asked(default=0, converter=whole())
    dp: int = asked(default=0, converter=whole())
    tp: int = asked(default=0, converter=whole())
    pp: int = asked(default=0, converter=whole())
    mbs: int = asked(default=0, converter=whole())
    tokens_per_sec: float = asked(default=0.0, converter=COUNT)
    step: float = asked(default=0.0, converter=SECONDS)
    tflops: float = asked(default=0.0, converter=quantity("FLOP/s"))
    mfu: float = asked(default=0.0, converter=SHARE)
    memory: float = asked(default=0.0, converter=quantity("bytes"))
    loss0: float | None = asked(default=None, converter=optional(number(-1e9, 1e9)))

    def told(self) -> Run:
        """Return the run that these figures describe."""
        fields = {
            "params": self.params, "seq": self.seq, "tokens_per_second": self.tokens_per_sec, "seconds": self.step,
            "vocab": self.vocab, "memory": self.memory, "tflops": self.tflops, "mfu": self.mfu, "layers": self.layers,
            "hidden": self.hidden, "dp": self.dp, "tp": self.tp, "pp": self.pp, "mbs": self.mbs,
        }  # fmt: skip
        told: dict[str, Value] = {name: float(value) for name, value in fields.items() if value}
        told |= {name: text for name, text in (("model", self.model), ("framework", self.framework)) if text}
        if self.batch:
            each = self.batch.lower().replace(" per ", "/").replace("device", "gpu").removesuffix("/gpu")
            per_device = each != self.batch.lower()
            told["per_device_batch" if per_device else "batch"] = units.parse(each.strip(), "length")
        if self.on and known_chip(self.on):  # only a kind of chip; the files state how many
            told["chip"] = self.on
        elif self.on:
            cluster = find_cluster(self.on)
            told |= {"devices": float(cluster.devices), "devices_per_node": float(cluster.node.devices), "chip": cluster.chip.key}
            told["cluster"] = self.on
        if self.loss0 is not None and math.isfinite(self.loss0):
            told |= {"first_loss": self.loss0, "loss_step": 0.0}
        return Run.told("", told)


def answer(files: Sequence[Path], ask: AuditAsk, format: str = "", *, planned: bool = True) -> report.Audit:
    """Check files, with gaps filled by the figures of `ask` and by launch files beside them; without files, check these figures alone."""
    files, launch = split_launch_files(files)
    more = ask.told()
    if launch:
        more = more.merged(told_by_launch_files(launch))
    if ask.model:
        find.find_model(ask.model)  # so that an unknown name is refused at once
    if not files and not more.values:
        raise UserError(
            "nothing to audit: give files, or a run such as --params 124M --seq 128 --batch 16 --on 8xh100-sxm --step 7.5s"
        )
    readings = report.read_files(files, format, more) if files else [report.read_flags(more)]
    for _, reading in readings:
        reading.runs = [_on_its_nodes(run, more) for run in reading.runs]
    if launch:  # a log's format does not tell programs apart that print alike
        program = more.values["framework"]
        for _, reading in readings:
            reading.runs = [run.adding([program]) for run in reading.runs]
    if not any(reading.runs or reading.claims for _, reading in readings):
        summary = "; ".join(
            ", ".join((f"{name} as {reading.format}", *reading.skipped.lines()[:3])) for name, reading in readings
        )
        raise UserError(f"nothing that could be checked was found: {summary}")
    return report.audit(readings, planned=planned)


def _on_its_nodes(run: Run, more: Run) -> Run:
    """Return a run on the cluster that --on names, with as many of its nodes as the run has; on its chip alone where it has more."""
    named, devices = more.get("cluster"), run.whole("devices")
    if named is None or run.get("cluster") is not named:
        return run
    cluster = find_cluster(str(named.value))
    if not devices or devices == cluster.devices:
        return run
    if cluster.torus or devices > cluster.devices:
        return run.without("cluster")
    return run.adding([named._replace(value=part_of(str(named.value), devices))])


def split_launch_files(files: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the logs and reports, and the launch files beside them; a launch file alone is not an audit."""
    launch = [file for file in files if file.suffix.lower() in LAUNCH_SUFFIXES]
    logs = [file for file in files if file not in launch]
    if launch and not logs:
        raise UserError(
            f"{launch[0]}: a launch file without a log: give its log too, or check the file alone: meshwise check {launch[0]}"
        )
    return logs, launch


def told_by_launch_files(files: Sequence[Path]) -> Run:
    """Return the run that launch files describe, with the program that they start."""
    from meshwise.programs.program import predicted_by
    from meshwise.programs.read.files import read_files
    from meshwise.runs import derive
    from meshwise.runs.fields import BY_NAME

    reading = read_files(files)
    run = derive.complete(reading.facts, launched=True)
    kept = [one for one in run if one.value is not None and one.fact in BY_NAME and BY_NAME[one.fact].group in LAUNCH_GROUPS]
    framework = Stated("framework", predicted_by(reading.program, run))
    return Run.of([*kept, *(one for one in run if one.fact in LAUNCH_WORK and one.value is not None), framework])
