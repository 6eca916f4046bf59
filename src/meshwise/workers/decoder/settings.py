"""What is to be measured, as a file that a worker reads. No torch here: the program that starts the worker needs none."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Point:
    """So many users, who each send a prompt of so many tokens and want so many back."""

    prompt: int
    output: int
    users: int


@dataclass(frozen=True, kw_only=True)
class Job:
    name: str
    model: dict[str, Any]
    """Keys of HF's config.json."""
    points: tuple[Point, ...]
    weights: str = ""
    """A folder of HF safetensors; empty: random ones."""
    device: str = "cuda"
    precision: str = "bf16"
    way: str = ""
    """'static': HF's own layers and static cache, even where the lean ones would do. 'library': no products by kernels of ours."""
    tp: int = 1
    """Devices that share each layer, one process for each."""
    repeats: int = 3
    seed: int = 0
    seconds: float = 0.0
    """No point is begun after so many; 0: no end."""
    facts: dict[str, float | str] = field(default_factory=dict[str, "float | str"])
    """What the rows of results say beside what was measured: parameters in billions, bits per weight."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, path: Path) -> "Job":
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        points = tuple(Point(**point) for point in values.pop("points"))
        return cls(points=points, **values)
