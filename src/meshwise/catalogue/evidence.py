"""Measured runs that predictions were held against, from data/evidence*.csv: the range in which an answer is not extrapolated."""

import csv
from dataclasses import dataclass
from functools import lru_cache

from meshwise.catalogue import files

FILE, SERVED_FILE = "evidence.csv", "evidence_serving.csv"
AXES = ("tp", "pp", "cp", "ep", "mbs", "vpp")  # axes that must be near for a run to be evidence of a layout
NEAR_RATIO = 2.0  # values of an axis are near within this ratio


@dataclass(frozen=True)
class Measured:
    """One measured run, and the prediction of a fit that has not seen its table."""

    framework: str
    kind: str  # kind of chip: gpu, tpu, npu
    chip: str
    precision: str
    model: str
    params: float
    devices: int
    seq: int
    batch: int
    axes: dict[str, int]
    recompute: str
    finetune: str
    table: str
    run: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Predicted over measured seconds, less one."""
        return self.predicted / self.measured - 1

    def distances(self, axes: dict[str, int], seq: int) -> dict[str, float]:
        """Return how many times an axis, or the tokens of a sequence on one rank, is larger or smaller than in this run."""
        mine, other = {**self.axes, "seq": self.seq // self.axes["cp"]}, {**axes, "seq": seq // axes["cp"]}
        return {name: max(mine[name] / other[name], other[name] / mine[name]) for name in (*AXES, "seq")}


@files.cached
def runs() -> tuple[Measured, ...]:
    """Read all runs."""
    with (files.BUILT_IN / FILE).open(newline="") as text:
        return tuple(_measured(row) for row in csv.DictReader(text))


def _measured(row: dict[str, str]) -> Measured:
    return Measured(
        row["framework"], row["kind"], row["chip"], row["precision"], row["model"], float(row["params"]), int(row["devices"]),
        int(row["seq"]), int(row["batch"]), {axis: max(1, int(row[axis])) for axis in AXES}, row["recompute"], row["finetune"],
        row["table"], row["run"], float(row["measured"]), float(row["predicted"]),
    )  # fmt: skip


@dataclass(frozen=True)
class Bounds:
    """The range of measured layouts: the largest value of each axis, and the fewest tokens of a sequence on a context rank (cp > 1)."""

    largest: dict[str, int]
    shortest: int


@lru_cache
def bounds(frameworks: tuple[str, ...], kind: str) -> Bounds:
    """Return the range over runs of any of these programs on a kind of chip; over all runs where there are none of these."""
    own = [run for run in runs() if run.framework in frameworks and run.kind == kind] or runs()
    rings = [run.seq // run.axes["cp"] for run in own if run.axes["cp"] > 1]
    return Bounds({axis: max(run.axes[axis] for run in own) for axis in AXES}, min(rings, default=0))


@dataclass(frozen=True)
class Served:
    """One measured run of an engine, and its predicted speed."""

    engine: str
    chip: str
    model: str
    params: float
    experts: bool
    format: str
    devices: int
    users: int
    prompt: int
    table: str
    run: str
    left_out: bool
    """Whether the calibration of the prediction has not seen the model or the table."""
    measured: float
    """Output tokens per second of all requests."""
    predicted: float

    @property
    def error(self) -> float:
        """Predicted over measured tokens per second, less one."""
        return self.predicted / self.measured - 1


@files.cached
def served() -> tuple[Served, ...]:
    """Read all runs of engines."""
    with (files.BUILT_IN / SERVED_FILE).open(newline="") as text:
        return tuple(
            Served(
                row["engine"], row["chip"], row["model"], float(row["params"]), row["experts"] == "yes", row["format"],
                int(row["devices"]), int(row["users"]), int(row["prompt"]), row["table"], row["run"], row["left_out"] == "yes",
                float(row["measured"]), float(row["predicted"]),
            )
            for row in csv.DictReader(text)
        )  # fmt: skip
