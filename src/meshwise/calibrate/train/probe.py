"""A probe as a chip and a calibration: the rows of `meshwise.workers.probe`, fitted with the formulas that will use the coefficients."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from meshwise.calibrate.least_squares import minimize
from meshwise.catalogue import files
from meshwise.catalogue.calibrations import Calibration, prior_of
from meshwise.catalogue.chips import PROBED_CHIP, Chip, Cluster, Link, Node, Source, known_chip
from meshwise.catalogue.frameworks import find_framework
from meshwise.cost.layout import Floats, Layouts
from meshwise.cost.train.compute import Device, attention, product
from meshwise.cost.train.layer import GRAPH_GAP_SHARE
from meshwise.cost.train.question import Question
from meshwise.cost.train.step import layer_and_head
from meshwise.cost.work import Train
from meshwise.errors import UserError
from meshwise.models.model import build
from meshwise.models.op import Op
from meshwise.runs.table import Text

Row = dict[str, Any]
KERNELS_PER_LAYER = 32
"""Kernels in one pass through a compiled layer: 770 to 855 in the 24 passes of a step of 125M (docs/reports/ttt-kernels.md)."""
LAUNCHES_PER_STEP = 400
"""Operations that a step launches outside its layers: the batch, the gradient norm, clipping, the optimizer, logging."""
MIN_BANDWIDTH_COPY_BYTES = {"gpu": 2**26, "cpu": 2**22}
"""Bytes from which a copy measures memory bandwidth rather than its launch."""
MIN_SECONDS = 1e-7  # seconds of a free operation, above zero because a fit takes logarithms


@dataclass(frozen=True)
class Machine:
    """A measured device, as the catalogue stores it."""

    chip: Chip
    calibration: Calibration
    errors: dict[str, float]  # median error of the fitted curves on the rows, by kind
    missing: tuple[str, ...]  # measurements that are missing, and why


def read(path: Path) -> list[Row]:
    """Read the rows of a probe; refuse any other file."""
    rows: list[Row] = []
    for number, line in enumerate(files.text_of(path).splitlines(), 1):
        value = files.json_of(line, where := f"{path.name}, line {number}")
        if not isinstance(value, dict) or "kind" not in value:
            raise UserError(f"{where}: not a row of a probe (it has no 'kind'); 'meshwise probe' writes such files")
        rows.append(cast(Row, value))
    if not rows or rows[0]["kind"] != "machine":
        raise UserError(f"{path.name}: expected the first line of a probe to describe the machine")
    return rows


def is_probe(path: Path) -> bool:
    """Return whether the first line of a file is a row of a probe."""
    return path.suffix == ".jsonl" and '"kind"' in next(iter(Text(path)), "")


def of_kind(rows: Sequence[Row], kind: str, what: str = "") -> list[Row]:
    """Return the rows of one kind; with `what`, of that variant of it only."""
    return [row for row in rows if row["kind"] == kind and (not what or row.get("what") == what)]


def machine(rows: Sequence[Row], key: str = PROBED_CHIP) -> Machine:
    """Fit the rows of a probe: return the chip and its calibration."""
    facts = rows[0]
    if not of_kind(rows, "gemm") or not of_kind(rows, "memory"):
        raise UserError("the probe has no matrix products or no memory bandwidth: run it again with more --seconds")
    chip = _chip(rows, facts, key)
    prior = prior_of(chip)
    fastest = max(row["flops"] / row["seconds"] for row in of_kind(rows, "gemm"))  # the fit of `matmul` starts from it
    copies = statistics.median(row["bytes"] / row["seconds"] for row in _streams(rows))
    reached = min(1.0, fastest / Device.of(chip, Calibration(), "bf16").peak)
    calibration = replace(prior, matmul=reached, memory=min(1.0, copies / chip.bandwidth), uneven=1.0)
    calibration, errors = _products(rows, chip, calibration)
    calibration = _grouped(rows, chip, calibration)
    calibration, more = _attention(rows, chip, calibration)
    calibration = _launches(rows, chip, calibration)
    calibration = _links(rows, chip, calibration)
    if facts["device"] == "cpu":
        calibration = replace(calibration, elementwise=_elementwise(rows, chip, calibration))
    measured = ["matmul", "memory", "flash"] + ["grouped"] * bool(of_kind(rows, "grouped"))
    measured += ["link", "link_latency"] if _group(rows, 1) else []
    fitted = replace(
        calibration, key="", chips=(key,), frameworks=(), architectures=(), measured=tuple(measured),
        fitted_on=f"meshwise probe of {facts['name']}, torch {facts['torch']}", date=str(facts["date"]),
        rows=float(sum(row["kind"] not in ("machine", "missing") for row in rows)), sources=(),
        context=float(facts.get("context") or calibration.context),
    )  # fmt: skip
    return Machine(chip, fitted, errors | more, tuple(f"{row['what']}: {row['why']}" for row in of_kind(rows, "missing")))


def _chip(rows: Sequence[Row], facts: Row, key: str) -> Chip:
    """Return the catalogue's facts of the device; the measured rates where it is not in the catalogue."""
    name = str(facts["name"])
    known = known_chip(name.removeprefix("NVIDIA ")) if facts["device"] == "cuda" else None
    devices = max(1, int(facts["ranks"]) // max(1, int(facts["nodes"])))
    link, host = _bandwidth(_group(rows, 1), gloo=facts["device"] == "cpu"), _host(rows)
    if known is not None:
        return replace(known, key=key, name=f"{key}: {known.name}", aliases=(), link=known.link or link, host=known.host or host)
    dtype = str(of_kind(rows, "gemm")[0]["dtype"])
    return Chip(
        key=key, name=f"{key}: {name}", vendor="measured", kind="gpu" if facts["device"] == "cuda" else "cpu",
        architecture="measured", year=int(str(facts["date"])[:4]),
        memory=float(facts["memory"]) / (devices if facts["device"] == "cpu" else 1),
        bandwidth=max(row["bytes"] / row["low"] for row in _streams(rows)),
        flops={cast(Any, dtype): max(row["flops"] / row["low"] for row in of_kind(rows, "gemm"))}, sms=int(facts["sms"]),
        link=link, host=host, per_node=max(8, devices),
        sources=(Source(title=f"meshwise probe, {facts['date']}, torch {facts['torch']}", url="probes/here.jsonl"),),
    )  # fmt: skip


def _streams(rows: Sequence[Row]) -> list[Row]:
    """Return the copies that are large enough; the largest one of a very short probe."""
    kind = "gpu" if rows[0]["device"] == "cuda" else "cpu"
    copies = of_kind(rows, "memory")
    return [row for row in copies if row["size"] >= MIN_BANDWIDTH_COPY_BYTES[kind]] or [max(copies, key=lambda row: row["size"])]


MAX_LAUNCH_MICROSECONDS = 20.0  # most microseconds that launching one kernel may add to its timing


def _products(rows: Sequence[Row], chip: Chip, start: Calibration) -> tuple[Calibration, dict[str, float]]:
    """Fit `matmul`, `tile` and `depth` to all shapes that use the matrix units, and reduce `matmul` by part of the loss of a hot chip.
    The launch time in each timing is fitted with them and discarded: without it, short products would imply a depth that long ones do not
    have."""
    aligned = [row for row in of_kind(rows, "gemm") if row["n"] % 8 == 0 and row["k"] % 8 == 0]
    m, n, k, measured = (np.array([float(row[name]) for row in aligned]) for name in ("m", "n", "k", "seconds"))
    steady = 1 / np.array([1 + 5 * math.log(row["high"] / row["low"]) for row in aligned])  # timings that varied count less

    def calibration(x: Floats) -> Calibration:
        return replace(start, matmul=float(np.exp(x[0])), tile=float(x[1]), depth=float(np.exp(x[2])))

    def errors(x: Floats) -> Floats:
        return np.log((product(Device.of(chip, calibration(x), "bf16"), m, n, k) + 1e-6 * x[3]) / measured)

    first = np.array([math.log(start.matmul), start.tile, math.log(start.depth), 1.0])
    least, most = np.array([math.log(0.02), 0.0, 0.0, 0.0]), np.array([0.0, 0.8, math.log(4000), MAX_LAUNCH_MICROSECONDS])
    prior = np.array([0.3, 0.1, 1.0, 5.0])

    def residuals(x: Floats) -> Floats:
        plain = np.concatenate([errors(x) * steady / 0.05, (x - first) / prior])
        return np.sqrt(2 * (np.sqrt(1 + plain**2) - 1)) * np.sign(plain)  # large ones count linearly

    best, _ = minimize(residuals, first, least, most, prior)
    fitted = calibration(best)
    error = float(np.median(np.abs(np.expm1(errors(best)))))
    return replace(fitted, matmul=fitted.matmul * _hot(rows) ** HEAT_LOSS_SHARE), {"matrix products": error}


HEAT_LOSS_SHARE = 0.5
"""Share of a continuously running product's loss to heat and the power cap that products in a step lose, since other kernels use less
power. On an H200 a product by itself loses 15%; those of Llama 1B about 7%, of 125M nothing (docs/reports/loop.md)."""


def _hot(rows: Sequence[Row]) -> float:
    """Return the sustained rate of a product over that in short bursts, at most 1; 1 on a CPU, where other processes would distort it."""
    for row in of_kind(rows, "sustained") if rows[0]["device"] == "cuda" else []:
        for burst in of_kind(rows, "gemm"):
            if all(burst[name] == row[name] for name in ("m", "n", "k")):
                return min(1.0, burst["seconds"] / row["seconds"])
    return 1.0


def _grouped(rows: Sequence[Row], chip: Chip, calibration: Calibration) -> Calibration:
    """Fit `grouped`: seconds of separate products of the same shapes, by the formula, over measured seconds."""
    d, shares = Device.of(chip, calibration, "bf16"), list[float]()
    for row in of_kind(rows, "grouped"):
        m, n, k = (float(row[name]) for name in ("m", "n", "k"))
        shape = (m, n, k) if row["what"] == "forward" else (n, k, m)
        shares.append(float(np.ravel(product(d, *shape, float(row["experts"])))[0]) / row["seconds"])
    return replace(calibration, grouped=min(1.0, statistics.median(shares))) if shares else calibration


def _attention(rows: Sequence[Row], chip: Chip, calibration: Calibration) -> tuple[Calibration, dict[str, float]]:
    """Fit `flash`: computing time at the full rate over measured time, both without moving bytes."""
    fast, slow = (Device.of(chip, replace(calibration, flash=share), "bf16") for share in (1.0, 0.5))
    shares: list[float] = []
    for row in of_kind(rows, "attention"):
        width, direction = int(row["width"]), int(row["what"] == "backward")
        op = Op(name="attention", part="attention", kind="attention", n=width, k=width, m=row["heads"])
        batch, heads, cp = (np.array([float(each)]) for each in (row["batch"], row["heads"], 1))
        full, half = (float(attention(d, op, int(row["seq"]), batch, heads, cp, flash=True)[direction][0]) for d in (fast, slow))
        shares.append((half - full) / max(row["seconds"] - (2 * full - half), 0.1 * row["seconds"]))
    if not shares:
        return calibration, {}
    middle = statistics.median(shares)
    return replace(calibration, flash=min(1.0, middle)), {
        "attention": statistics.median(abs(share / middle - 1) for share in shares)
    }


def _launches(rows: Sequence[Row], chip: Chip, calibration: Calibration) -> Calibration:
    """Fit CPU launch overhead to a block too small to take any other time. A GPU computes while the CPU launches ahead, and loses only the
    gaps between kernels; on a CPU launching and computing add up."""
    starts, small = of_kind(rows, "launch", "eager"), of_kind(rows, "block", "both")
    if starts:
        calibration = replace(calibration, step=LAUNCHES_PER_STEP * starts[0]["seconds"])
    block = next((row["seconds"] / 2 for row in small if row["small"]), None)
    if block is None:
        return calibration
    if chip.kind == "cpu":
        return replace(calibration, layer_launch=MIN_SECONDS, layer_gap=block, stage_launch=block)
    graph = of_kind(rows, "launch", "graph")
    gap = KERNELS_PER_LAYER * graph[0]["seconds"] / GRAPH_GAP_SHARE if graph else calibration.layer_gap
    return replace(calibration, layer_launch=block, layer_gap=gap, stage_launch=block)


def _elementwise(rows: Sequence[Row], chip: Chip, calibration: Calibration) -> float:
    """Fit `elementwise`: the time of large blocks without their products, over the formula's time for moving bytes."""
    shares: list[float] = []
    for row in of_kind(rows, "block", "both"):
        if row["small"]:
            continue
        parts = block_parts(row, chip, calibration)
        left = row["seconds"] - (sum(parts.values()) - parts["elementwise"])
        shares.append(left / parts["elementwise"])
    return min(20.0, max(0.1, statistics.median(shares))) if shares else 1.0


def block_parts(row: Row, chip: Chip, calibration: Calibration) -> dict[str, float]:
    """Return the cost model's seconds by part for one of the probe's blocks."""
    config = {
        "model_type": "llama",
        "hidden_size": int(row["hidden"]),
        "num_hidden_layers": 1,
        "num_attention_heads": int(row["heads"]),
        "intermediate_size": int(row["ffn"]),
        "vocab_size": 256,
    }
    sequences = max(1, int(row["tokens"]) // int(row["seq"]))
    cluster = Cluster("probe", ((1, Node(((1, chip),), None)),))
    work = Train(batch=sequences, seq=int(row["seq"]), framework=find_framework("meshwise"))
    ones = {name: np.ones(1, dtype=np.int64) for name in ("dp_replicate", "dp_shard", "tp", "pp", "cp", "ep", "vpp")}
    none = {name: np.zeros(1, dtype=np.int64) for name in ("zero", "recompute", "sp", "schedule", "offload")}
    layout = Layouts.of(**ones, **none, mbs=np.array([sequences]))
    layer, _ = layer_and_head(Question.of(build(config, "a block", "meshwise probe"), cluster, work, calibration), layout)
    return {name: float(np.ravel(value)[0]) for name, value in layer.items()}


def _group(rows: Sequence[Row], nodes: int) -> list[Row]:
    """Return the collectives inside a node (1), or between nodes (2)."""
    return [
        row
        for row in of_kind(rows, "wire")
        if row["what"] not in ("point-to-point", "all-to-all") and min(2, row["nodes"]) == nodes
    ]


def _moved(row: Row, gloo: bool) -> tuple[float, float]:
    """Return bytes that a rank passes on in a ring, and its steps: twice as many in an all-reduce, gloo's way to reduce-scatter too."""
    times = 2 if row["what"] == "all-reduce" or (gloo and row["what"] == "reduce-scatter") else 1
    size = int(row["group"])
    return times * (size - 1) / size * row["size"], times * (size - 1)


def _latency(rows: Sequence[Row], steps: Callable[[Row], float]) -> float:
    """Return the median seconds per step of the smallest collectives."""
    small = min(row["size"] for row in rows)
    return statistics.median(row["seconds"] / steps(row) for row in rows if row["size"] == small)


def _bandwidth(rows: Sequence[Row], gloo: bool) -> Link | None:
    """Return the median bandwidth that a ring of ranks reached with large arrays."""
    if not rows:
        return None
    large = sorted({row["size"] for row in rows})[-2:]
    rates = [_moved(row, gloo)[0] / row["seconds"] for row in rows if row["size"] in large]
    return Link(name="measured", bandwidth=statistics.median(rates))


def _links(rows: Sequence[Row], chip: Chip, calibration: Calibration) -> Calibration:
    """Fit the bandwidth and latency of the link inside a node, and the latency of the network between nodes."""
    near, far, gloo = _group(rows, 1), _group(rows, 2), chip.kind == "cpu"
    link = _bandwidth(near, gloo)
    if link is not None and chip.link is not None:
        calibration = replace(calibration, link=min(1.0, link.bandwidth / chip.link.bandwidth))
        calibration = replace(calibration, link_latency=_latency(near, lambda row: _moved(row, gloo)[1]))
    if far and gloo:
        calibration = replace(calibration, network_latency=_latency(far, lambda row: _moved(row, gloo)[1]))
    elif far:
        depth = {"all-reduce": 2}
        calibration = replace(
            calibration, network_latency=_latency(far, lambda row: depth.get(row["what"], 1) * math.ceil(math.log2(row["group"])))
        )
    return calibration


def _host(rows: Sequence[Row]) -> Link | None:
    """Return the fastest link to host memory that was measured."""
    copies = of_kind(rows, "host")
    return Link(name="measured", bandwidth=max(row["bytes"] / row["seconds"] for row in copies)) if copies else None
