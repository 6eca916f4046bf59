"""The launch files beside a log: what they say about a run that the log leaves out."""

from collections.abc import Sequence
from pathlib import Path

from meshwise.errors import UserError
from meshwise.programs.read.files import read_files
from meshwise.runs import derive
from meshwise.runs.run import Run
from meshwise.runs.stated_model import preset_of

SUFFIXES = (".sh", ".bash", ".slurm", ".sbatch", ".yaml", ".yml", ".toml")
"""Names of launch files; JSON may be a log, such as the Trainer's state."""
NUMBERS = {
    "layers": "layers", "hidden": "hidden", "ffn": "ffn", "heads": "heads", "kv_heads": "kv_heads", "vocab": "vocab",
    "seq": "seq",
    "devices": "devices", "nodes": "nodes", "devices_per_node": "devices_per_node", "dp": "dp", "tp": "tp", "pp": "pp", "cp": "cp", "ep": "ep",
    "vpp": "vpp", "zero": "zero", "mbs": "mbs", "batch": "batch", "accumulation": "accumulation",
}  # fmt: skip
"""Fields of a run by fact."""


def split(files: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the logs and reports, and the launch files beside them; a launch file alone is not an audit."""
    launch = [file for file in files if file.suffix.lower() in SUFFIXES]
    logs = [file for file in files if file not in launch]
    if launch and not logs:
        raise UserError(
            f"{launch[0]}: a launch file without a log: give its log too, or check the file alone: meshwise check {launch[0]}"
        )
    return logs, launch


def figures(files: Sequence[Path]) -> tuple[dict[str, float], dict[str, str]]:
    """Return numbers and texts that launch files say, by the names of a run's fields."""
    reading = read_files(files)
    facts: Run = derive.complete(reading.facts)
    numbers = {name: float(facts.whole(fact)) for fact, name in NUMBERS.items() if facts.whole(fact)}
    texts = {name: str(value) for name in ("recompute", "precision") if (value := facts.value(name)) is not None}
    model = preset_of(str(facts.value("model") or ""))
    texts |= {"model": model} if model else {}
    return numbers, texts | {"framework": reading.program.framework}
