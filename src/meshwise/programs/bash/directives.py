"""`#SBATCH` lines: options of a job, and the variables that Slurm sets from them."""

import re
from dataclasses import dataclass

from meshwise.programs.bash.budget import spend
from meshwise.programs.bash.pieces import Piece, Source, Value, said

LONG_OF_SHORT = {
    "N": "nodes", "n": "ntasks", "t": "time", "p": "partition", "J": "job-name", "o": "output", "e": "error", "G": "gpus",
    "c": "cpus-per-task",
    "A": "account", "C": "constraint", "q": "qos", "a": "array", "w": "nodelist", "x": "exclude", "d": "dependency", "D": "chdir",
}  # fmt: skip
JOB_VARIABLES = ("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_SUBMIT_DIR", "SLURM_SUBMIT_HOST")
"""Variables that every job has."""
OPTION = re.compile(r"--([a-z][a-z0-9-]*)(?:(=)|(?=\s|$))|-([a-zA-Z])=?")
VALUE = re.compile(r"'([^']*)'|\"([^\"]*)\"|(\S+)")


@dataclass(frozen=True, slots=True)
class Directive:
    """One option of a job: its long name and value; None for an option without a value."""

    name: str
    value: Value | None
    place: Value


def directives(source: Source) -> list[Directive]:
    """Return the options of the `#SBATCH` lines; as for Slurm, those after the first command do not count."""
    found: list[Directive] = []
    at = 0
    for line in source.text.splitlines(keepends=True):
        spend()
        body = line.strip()
        if body and not body.startswith("#"):
            break
        match = re.match(r"#SBATCH\s+", line)
        if match:
            rest = line[match.end() :]
            comment = re.search(r"\s#", rest)
            stop = at + match.end() + len(rest[: comment.start() if comment else len(rest)].rstrip())
            found += options(source, at + match.end(), stop)
        at += len(line)
    return found


def options(source: Source, at: int, end: int) -> list[Directive]:
    """Read options of sbatch or srun from a range of a source."""
    found: list[Directive] = []
    while at < end:
        spend()
        option = OPTION.match(source.text, at, end)
        if option is None:
            at += 1
            continue
        at, begin = option.end(), option.start()
        name = option.group(1) or LONG_OF_SHORT.get(option.group(3), option.group(3))
        blanks = re.compile(r"\s*").match(source.text, at, end)
        start = blanks.end() if blanks and not option.group(2) else at
        value = None
        match = VALUE.match(source.text, start, end)
        if (match and not (start > at or option.group(1))) or (match and not match.group().startswith("-")):
            group = next(i for i in (1, 2, 3) if match.group(i) is not None)
            value = Value(source.pieces(*match.span(group)))
            at = match.end()
        found.append(Directive(name, value, Value(source.pieces(begin, at))))
    return found


def variables(found: list[Directive]) -> dict[str, Value]:
    """Return the variables that Slurm sets from these options."""
    said_by = {one.name: one.value for one in found if one.value is not None}
    why = "set by Slurm when the job starts"
    names = {name: Value((Piece(f"${name}", unknown=why, exact=False, filled=True),)) for name in JOB_VARIABLES} if found else {}

    def put(value: Value | None, *targets: str) -> None:
        if value is not None and value.known and value.pieces:
            names.update(dict.fromkeys(targets, value))

    nodes = _number(said_by.get("nodes"), r"(\d{1,9})(?:-\d+)?$")
    per_node = _number(said_by.get("ntasks-per-node"), r"(\d{1,9})$")
    tasks = _number(said_by.get("ntasks"), r"(\d{1,9})$")
    put(nodes, "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
    put(per_node, "SLURM_NTASKS_PER_NODE")
    if tasks is None and nodes is not None and per_node is not None:
        tasks = said(str(int(nodes.text) * int(per_node.text)), per_node.place)
    put(tasks, "SLURM_NTASKS", "SLURM_NPROCS")
    put(_number(said_by.get("cpus-per-task"), r"(\d{1,9})$"), "SLURM_CPUS_PER_TASK")
    gpus = _number(said_by.get("gpus-per-node"), r"(?:.*:)?(\d+)$")
    put(gpus, "SLURM_GPUS_PER_NODE")
    put(gpus or _number(said_by.get("gres"), r"gpu:(?:[^:]*:)?(\d+)"), "SLURM_GPUS_ON_NODE")
    put(_number(said_by.get("gpus"), r"(?:.*:)?(\d+)$"), "SLURM_GPUS")
    put(said_by.get("job-name"), "SLURM_JOB_NAME")
    put(said_by.get("partition"), "SLURM_JOB_PARTITION")
    return names


def _number(value: Value | None, pattern: str) -> Value | None:
    match = re.match(pattern, value.text) if value is not None else None
    return value.cut(*match.span(1)) if value is not None and match else None
