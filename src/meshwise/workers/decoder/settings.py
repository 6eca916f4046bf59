"""The points to measure, as a file that the worker reads. No torch: the program that starts the worker needs none."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Point:
    """`users` concurrent requests, each with a prompt of `prompt` tokens and `output` tokens to generate."""

    prompt: int
    output: int
    users: int


@dataclass(frozen=True, kw_only=True)
class Job:
    """A model and the points to measure."""

    name: str
    model: dict[str, Any]  # keys of HF's config.json
    points: tuple[Point, ...]
    weights: str = ""  # a folder of HF safetensors; empty: random weights
    device: str = "cuda"
    precision: str = "bf16"
    variant: str = ""
    """'static': HF's own layers and static cache even if the fused decoder supports the model. 'library': no matrix products of our own."""
    tp: int = 1  # tensor-parallel devices, one process each
    repeats: int = 3
    seed: int = 0
    seconds: float = 0.0  # time limit: no point starts after this many seconds; 0: no limit
    facts: dict[str, float | str] = field(default_factory=dict[str, "float | str"])
    """Columns of the result rows that are not measured: parameters in billions, bits per weight."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, path: Path) -> "Job":
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        points = tuple(Point(**point) for point in values.pop("points"))
        return cls(points=points, **values)
