"""The launch files beside a log: what they say about a run that the log leaves out."""

from collections.abc import Sequence
from pathlib import Path

from meshwise.errors import UserError
from meshwise.runs.run import Run, Stated

SUFFIXES = (".sh", ".bash", ".slurm", ".sbatch", ".yaml", ".yml", ".toml")
"""Names of launch files; JSON may be a log, such as the Trainer's state."""
GROUPS = ("layout", "batch", "model", "machine")
"""Groups of fields that a launch file tells of the run in its log."""


def split(files: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the logs and reports, and the launch files beside them; a launch file alone is not an audit."""
    launch = [file for file in files if file.suffix.lower() in SUFFIXES]
    logs = [file for file in files if file not in launch]
    if launch and not logs:
        raise UserError(
            f"{launch[0]}: a launch file without a log: give its log too, or check the file alone: meshwise check {launch[0]}"
        )
    return logs, launch


def told(files: Sequence[Path]) -> Run:
    """Return the run that launch files describe, with the program that they start."""
    from meshwise.programs.read.files import read_files
    from meshwise.runs import derive
    from meshwise.runs.fields import BY_NAME

    reading = read_files(files)
    run = derive.complete(reading.facts, launched=True)
    kept = [one for one in run if one.value is not None and one.fact in BY_NAME and BY_NAME[one.fact].group in GROUPS]
    framework = Stated("framework", str(run.value("predicted_by") or reading.program.framework))
    return Run.of([*kept, *(one for one in run if one.fact in ("precision", "optimizer") and one.value is not None), framework])
