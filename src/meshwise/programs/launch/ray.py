"""Ray: a driver that reserves the devices of every node at once, and runs the command there."""

from meshwise.catalogue import files
from meshwise.programs.forms import comment
from meshwise.programs.launch import script
from meshwise.programs.program import Job, Launcher

FILE = "train_ray.py"
TEMPLATE = files.BUILT_IN / "programs" / "templates" / "ray.py.txt"


def write(job: Job) -> dict[str, str]:
    """Return the driver."""
    variables = script.variables('"$NNODES"', '"$NODE_RANK"', '"$MASTER_ADDR"', '"$MASTER_PORT"')
    lines = ["set -euo pipefail", *script.lines(job, variables)]
    per_node = {"CPU": job.devices_per_node} if script.is_cpu(job) else {"GPU": job.devices_per_node, "CPU": 1}
    text = TEMPLATE.read_text("utf-8").format(nodes=job.nodes, resources=per_node, script=_python_text("\n".join(lines)))
    return {FILE: comment([*job.header, f"Start: ray job submit --working-dir . -- python {FILE}"]) + text}


def _python_text(text: str) -> str:
    """Return a text as Python's source: as it is between three quotes where it can be."""
    plain = '"""' not in text and all(letter.isprintable() or letter == "\n" for letter in text)
    return f'r"""\n{text}\n"""' if plain else repr(f"\n{text}\n")


LAUNCHER = Launcher(
    name="ray", title="Ray", version="2.60", write=write, start=f"ray job submit --working-dir . -- python {FILE}",
    check=f"python -m py_compile {FILE}",
)  # fmt: skip
