"""A training step simulated in time: the operations of every stage, as a trace for Perfetto and Chrome."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from meshwise.catalogue import files
from meshwise.cost.layout import Floats, Layouts
from meshwise.cost.parts import TRAIN_PARTS
from meshwise.cost.train.pipeline import PassTimes
from meshwise.cost.train.question import Question
from meshwise.cost.train.schedule import BACKWARD, FORWARD, Simulation, simulate
from meshwise.cost.train.stages import layers_before
from meshwise.cost.train.step import collectives, layer_and_head, pass_times, stage_launch
from meshwise.errors import UserError
from meshwise.plan.train.choice import Choice

INNER_PARTS: Final = ("p2p", "recompute", "matmul", "attention", "elementwise", "launch", "cp", "ep", "tp")
"""Parts of one operation of a stage, in the order in which the trace shows them."""
COMPUTED: Final = ("recompute", "matmul", "attention", "elementwise", "launch")
PARTS_AFTER_BACKWARD: Final = ("dp", "offload", "optimizer", "fixed")  # parts that follow the last backward pass
STREAMS: Final = {
    "compute": "compute", "tp": "tensor-parallel", "cp": "context-parallel", "ep": "expert-parallel", "p2p": "point-to-point",
    "dp": "data-parallel", "offload": "offload",
}  # fmt: skip
"""Trace track of each part; parts not listed belong to the compute stream."""
PASSES: Final = ("forward", "backward", "weight gradients")
MAX_DETAILED_OPERATIONS: Final = 6000  # show the parts of each operation as separate slices up to this many operations
MAX_SECANT_STEPS: Final = 20  # iterations of the secant method, at most


@dataclass(frozen=True)
class Timeline:
    """The operations of one step with their start and end, the parts inside them, and the parts after the pipeline."""

    choice: Choice
    schedule: str
    run: Simulation
    inside: Floats  # seconds by part (of INNER_PARTS), pass, stage and chunk
    after: dict[str, float]

    def save(self, path: str | Path) -> int:
        """Write the step as a trace for ui.perfetto.dev (.json, or .json.gz to compress it); return its number of events."""
        events = trace(self)
        files.write(Path(path), as_file(events, Path(path).name))
        return len(events["traceEvents"])

    @property
    def stages(self) -> int:
        return self.inside.shape[2]

    @property
    def chunks(self) -> int:
        return self.inside.shape[3]

    @property
    def microbatches(self) -> int:
        return int(self.run.microbatch.max()) + 1

    @property
    def pipeline(self) -> float:
        """Seconds until the last backward pass has ended."""
        return self.run.makespan


def simulate_step(q: Question, choice: Choice) -> Timeline:
    """Simulate the predicted step of a layout. The cost model adds the loss between micro-batches (p2p, and the CPU's part of launch) once
    per micro-batch, but not while the pipeline fills. Here every operation takes a share of it, scaled so that the step is as long as
    predicted."""
    layouts = Layouts.from_row(choice.layout)
    schedule, microbatches = str(choice.layout["schedule"]), _microbatches(q, choice, layouts)
    inside, lost = _inside(q, layouts), _between(q, choice, layouts, microbatches)
    after = {part: choice.time[part] for part in PARTS_AFTER_BACKWARD}
    target = choice.step - sum(after.values())
    inside = inside + _share(schedule, inside, lost, microbatches, target) * lost
    run = simulate(schedule, inside.sum(axis=0), microbatches)
    scale = target / run.makespan  # 1, unless chip or calibration data has changed since the plan was made
    return Timeline(choice, schedule, replace(run, start=run.start * scale, end=run.end * scale), inside * scale, after)


def _share(schedule: str, inside: Floats, lost: Floats, microbatches: int, target: float) -> float:
    """Return the share of `lost` that makes the pipeline `target` seconds long. Its length is convex in the share, so secants
    converge from below."""

    def length(share: float) -> float:
        return simulate(schedule, (inside + share * lost).sum(axis=0), microbatches).makespan

    most, share, least = length(1.0), 0.0, length(0.0)
    if not least < target < most:
        return float(target >= most)
    for _ in range(MAX_SECANT_STEPS):
        share += (1 - share) * (target - least) / (most - least)
        least = length(share)
        if least >= target * (1 - 1e-7):
            break
    return share


def _microbatches(q: Question, choice: Choice, layouts: Layouts) -> int:
    """Return the number of micro-batches. UserError where an edited plan.json has a layout that no schedule can run."""
    pp, vpp = int(layouts.pp[0]), int(layouts.vpp[0])
    number, over = divmod(int(q.work.batch), int(layouts.dp[0] * layouts.mbs[0]))
    if over or not number:
        raise UserError(
            f"a batch of {q.work.batch} is not a whole number of micro-batches of {layouts.dp[0]} x {layouts.mbs[0]} sequences"
        )
    if (vpp > 1) != (choice.layout["schedule"] == "interleaved") or (vpp > 1 and number % pp):
        raise UserError(
            f"schedule {choice.layout['schedule']} cannot run {number} micro-batches through {pp} stages of {vpp} model chunks"
        )
    return number


def _inside(q: Question, layouts: Layouts) -> Floats:
    """Return seconds of a micro-batch by part, pass, stage and chunk."""
    a = layouts.as_floats()
    pp, vpp = int(layouts.pp[0]), int(layouts.vpp[0])
    layers = np.diff(layers_before(q, a, np.arange(pp + 1.0))) / vpp
    waits = ("recompute", *collectives(q.work.framework))
    layer, head = (_by_pass(parts, waits, pass_times(q, a, parts)) for parts in layer_and_head(q, layouts))
    seconds = layer[:, :, None, None] * layers[:, None] * np.ones(vpp)
    seconds[:, :, -1, -1] += head
    return seconds


def _by_pass(parts: dict[str, Floats], waits: tuple[str, ...], times: PassTimes) -> Floats:
    """Divide the seconds of each part between forward, backward and weight-gradient passes, which `waits` have no share of."""
    seconds = {part: float(parts[part][0]) if part in parts else 0.0 for part in INNER_PARTS}
    local = sum(value for part, value in seconds.items() if part not in waits)
    computed = sum(seconds.values()) - seconds["recompute"]
    forward_share = float(times.forward[0]) / computed if computed else 0.0
    weight_share = float(times.weight[0]) / local if local else 0.0
    rows: list[tuple[float, float, float]] = []
    for part, value in seconds.items():
        forward = 0.0 if part == "recompute" else forward_share * value
        weight = 0.0 if part in waits else weight_share * value
        rows.append((forward, value - forward - weight, weight))
    return np.array(rows)


def _between(q: Question, choice: Choice, layouts: Layouts, microbatches: int) -> Floats:
    """Return the seconds that a stage loses per micro-batch outside its layers, half in each direction."""
    pp, vpp = int(layouts.pp[0]), int(layouts.vpp[0])
    lost = np.zeros((len(INNER_PARTS), 3, pp, vpp))
    for part, seconds in (("p2p", choice.time["p2p"] / microbatches), ("launch", float(stage_launch(q, layouts)[0]))):
        lost[INNER_PARTS.index(part), [FORWARD, BACKWARD]] = seconds / 2 / vpp
    return lost


def trace(timeline: Timeline) -> dict[str, Any]:
    """Return the timeline in the Trace Event Format: a process per stage, a thread per stream, a complete event per slice, in
    microseconds."""
    return {
        "traceEvents": [*_names(timeline), *_slices(timeline)],
        "displayTimeUnit": "ms",
        "metadata": {
            "layout": timeline.choice.layout,
            "seconds": timeline.choice.step,
            "parts": {part: timeline.choice.time[part] for part in TRAIN_PARTS},
        },
    }


def as_file(events: dict[str, Any], name: str) -> bytes:
    """Return compact JSON, gzipped if the file name ends in .gz."""
    text = json.dumps(events, separators=(",", ":")).encode()
    return gzip.compress(text, mtime=0) if name.endswith(".gz") else text


def _names(timeline: Timeline) -> Iterator[dict[str, Any]]:
    """Yield the names and order of the tracks that have slices."""
    inside, after = timeline.inside.sum(axis=(1, 3)), {part for part, seconds in timeline.after.items() if seconds > 0}
    for stage in range(timeline.stages):
        used = (
            {"compute"}
            | after
            | {part for part, seconds in zip(INNER_PARTS, inside[:, stage].tolist(), strict=True) if seconds > 0}
        )
        yield _metadata("process_name", stage, 0, name=f"stage {stage}")
        yield _metadata("process_sort_index", stage, 0, sort_index=stage)
        for thread, (part, stream) in enumerate(STREAMS.items()):
            if part in used:
                yield _metadata("thread_name", stage, thread, name=stream)
                yield _metadata("thread_sort_index", stage, thread, sort_index=thread)


def _metadata(name: str, stage: int, thread: int, /, **args: object) -> dict[str, Any]:
    """Return a metadata event, which names or orders a track."""
    return {"ph": "M", "name": name, "pid": stage, "tid": thread, "args": args}


def _slices(timeline: Timeline) -> Iterator[dict[str, Any]]:
    """Yield the slices of every operation: computation on the compute stream, each kind of wait on its own stream."""
    run, threads = timeline.run, list(STREAMS)
    pieces = timeline.inside[:, run.kind, run.stage, run.chunk]
    edges: list[list[float]] = np.round(
        1e6 * (run.start + np.concatenate([np.zeros((1, len(run.start))), np.cumsum(pieces, axis=0)])), 3
    ).T.tolist()
    first, last = INNER_PARTS.index(COMPUTED[0]), INNER_PARTS.index(COMPUTED[-1]) + 1
    detailed = len(edges) <= MAX_DETAILED_OPERATIONS
    waits = [(i, part) for i, part in enumerate(INNER_PARTS) if part not in COMPUTED]
    for (stage, what, chunk, microbatch), at in zip(run.rows(), edges, strict=True):
        args = {"microbatch": microbatch, "chunk": chunk}
        yield _slice(f"{'FBW'[what]}{microbatch}", PASSES[what], stage, 0, at[first], at[last], args)
        if detailed:
            for i, part in enumerate(COMPUTED, first):
                if at[i + 1] > at[i]:
                    yield _slice(part, PASSES[what], stage, 0, at[i], at[i + 1], args)
        for i, part in waits:
            if at[i + 1] > at[i]:
                yield _slice(part, PASSES[what], stage, threads.index(part), at[i], at[i + 1], args)
    for stage in range(timeline.stages):
        for part, start, end in after(timeline):
            thread = threads.index(part) if part in threads else 0
            yield _slice(part, "step", stage, thread, round(1e6 * start, 3), round(1e6 * end, 3), {})


def after(timeline: Timeline) -> Iterator[tuple[str, float, float]]:
    """Yield the parts after the last backward pass with their start and end."""
    now = timeline.pipeline
    for part, seconds in timeline.after.items():
        if seconds > 0:
            yield part, now, now + seconds
        now += seconds


def _slice(name: str, category: str, stage: int, thread: int, start: float, end: float, args: dict[str, int]) -> dict[str, Any]:
    event = {"ph": "X", "name": name, "cat": category, "pid": stage, "tid": thread, "ts": start, "dur": round(end - start, 3)}
    return {**event, "args": args}
