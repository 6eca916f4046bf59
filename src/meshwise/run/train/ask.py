"""TrainRun and GenerateAsk: a training run, and text from its weights, in the words of the command line."""

import os
from pathlib import Path
from typing import Any, ClassVar

from meshwise import units
from meshwise.cost.axes import BY_NAME
from meshwise.cost.finetune import parse as parse_finetune
from meshwise.cost.work import parse_batch
from meshwise.errors import UserError, quoted
from meshwise.plan.fields import FLAG, LENGTH, TEXT, Ask, Kind, asked, choice, number, optional, question, whole
from meshwise.run.train.hosts import node_range
from meshwise.workers.trainer.contract.settings import (
    DEVICES,
    LR_SCHEDULES,
    MOMENTS,
    ON_NAN,
    PRECISIONS,
    RECOMPUTE,
    SCHEDULES,
    TRACKERS,
)

DEFAULT = "llama-debug"  # model of a run that names none
STEPS, SHORT = 40, 8  # steps of a run, and of each short run of --sweep and --report
AXES = ("dp_replicate", "dp_shard", "tp", "pp", "cp", "ep", "mbs", "vpp", "zero", "schedule", "recompute")
"""Fields that set an axis of the layout."""
_SINGLE = (
    "dry_run", "report", "save", "merge", "checkpoint_every", "tensorboard", "track", "eval_data", "profile", "memory_snapshot",
)  # fmt: skip
"""Options of one run, which a sweep of short runs does not take."""
_PASSED = (
    "clip", "weight_decay", "eval_every", "pack", "seed", "graph", "weights", "save", "checkpoint_every", "keep", "timeout",
    "tensorboard", "memory_snapshot", "out",
)  # fmt: skip
"""Options that the trainer takes as they are."""


def _batch(value: str | int) -> str | int:
    """Keep the batch as given: '4M' depends on the sequence length, which may come from a plan."""
    return value


def _time(value: str | float) -> float:
    minutes = isinstance(value, str) and value.endswith("m") and value[:-1].isdecimal()
    seconds = units.parse(f"{value}in" if minutes else value, "seconds")  # people type 10m
    if seconds < 1:
        raise UserError(f"{quoted(value)}: expected at least 1s")
    return seconds


def _profile(value: str) -> str:
    first, _, count = value.partition(":")
    if value and not (first.isdecimal() and count.isdecimal() and int(first[:9]) and int(count[:9])):
        raise UserError(f"{quoted(value)}: expected START:COUNT, such as 5:3 for steps 5, 6 and 7")
    return value


def _track(value: str) -> str:
    unknown = [name for name in filter(None, value.split(",")) if name not in TRACKERS]
    if unknown:
        raise UserError(f"{quoted(unknown[0])}: expected {' or '.join(TRACKERS)}, or both with a comma")
    return value


def _finetune(value: str) -> str:
    return parse_finetune(value).write() if value else ""


def _nodes(value: str | int) -> str:
    text = str(value)
    if text:
        node_range(text)
    return text


def _sweep(value: str | None) -> str | None:
    return value


_BATCH: "Kind[str | int, str | int]" = Kind(_batch, str, "BATCH")
TIME: Kind[str | float, float] = Kind(_time, lambda value: units.exactly(value, "seconds"), "TIME")
_PROFILE: Kind[str, str] = Kind(_profile, str, "START:COUNT")
_TRACK: Kind[str, str] = Kind(_track, str, "NAMES")
_FINETUNE: Kind[str, str] = Kind(_finetune, str, "METHOD[:RANK[:TARGETS]]")
_SWEEP: Kind[str | None, str | None] = Kind(_sweep, str, "AXIS=VALUES...")
_AXIS = optional(whole())
_NODES: "Kind[str | int, str | int]" = Kind(_nodes, str, "N|MIN:MAX")


@question
class TrainRun(Ask):
    """Train a model: `meshwise run`. None, '' and 0 leave a field to the plan, or to the default."""

    verb: ClassVar[str] = "run"

    # fmt: off
    what: str = asked(default="", converter=TEXT, kw_only=False)
    batch: str | int = asked(default=0, converter=_BATCH)
    seq: int = asked(default=0, converter=LENGTH)
    steps: int = asked(default=0, converter=whole(1, 10**9), shown=f"{STEPS}; {SHORT} in each run of a sweep")
    device: str = asked(default="", converter=choice(*DEVICES))
    on: str = asked(default="", converter=TEXT)
    checkpoint_every: int = asked(default=0, converter=whole(0, 10**9))
    save: bool = asked(default=False, converter=FLAG)
    sweep: str | None = asked(default=None, converter=_SWEEP)
    out: str = asked(default="run", converter=TEXT)
    dry_run: bool = asked(default=False, converter=FLAG)

    dp_replicate: int | None = asked(default=None, converter=_AXIS, help=BY_NAME["dp_replicate"].help)
    dp_shard: int | None = asked(default=None, converter=_AXIS, help=BY_NAME["dp_shard"].help)
    tp: int | None = asked(default=None, converter=_AXIS, help=BY_NAME["tp"].help)
    pp: int | None = asked(default=None, converter=_AXIS, help=BY_NAME["pp"].help)
    cp: int | None = asked(default=None, converter=_AXIS, help=BY_NAME["cp"].help)
    ep: int | None = asked(default=None, converter=_AXIS, help=BY_NAME["ep"].help)
    mbs: int | None = asked(default=None, converter=_AXIS, help=BY_NAME["mbs"].help)
    vpp: int | None = asked(default=None, converter=_AXIS, help=BY_NAME["vpp"].help)
    zero: int | None = asked(default=None, converter=optional(whole(2, 3)),
                             help=f"{BY_NAME['zero'].help} 2 keeps gathered weights until the backward pass.")
    schedule: str = asked(default="", converter=choice(*SCHEDULES), help=BY_NAME["schedule"].help)
    recompute: str = asked(default="", converter=choice(*RECOMPUTE), help=BY_NAME["recompute"].help)

    lr: float | None = asked(default=None, converter=optional(number(0, 1e6)))
    warmup: int | None = asked(default=None, converter=optional(whole(0, 10**9)))
    lr_schedule: str = asked(default="cosine", converter=choice(*LR_SCHEDULES))
    clip: float = asked(default=1.0, converter=number(1e-9, 1e9))
    weight_decay: float = asked(default=0.1, converter=number(0, 1e3))
    seed: int = asked(default=0, converter=whole(0, 10**10))
    precision: str = asked(default="", converter=choice(*PRECISIONS))
    moments: str = asked(default="", converter=choice(*MOMENTS))
    compile: bool | None = asked(default=None, converter=optional(FLAG))
    graph: bool = asked(default=True, converter=FLAG)
    weights: str = asked(default="", converter=TEXT)

    finetune: str = asked(default="", converter=_FINETUNE)
    lora_alpha: float | None = asked(default=None, converter=optional(number(1e-6, 1e6)))
    lora_dropout: float = asked(default=0.0, converter=number(0, 0.99))
    adapter: str = asked(default="", converter=TEXT)
    merge: bool = asked(default=False, converter=FLAG)

    data: str = asked(default="", converter=TEXT)
    train_on: str = asked(default="", converter=choice("", "answers", "all"))
    tokenizer: str = asked(default="", converter=TEXT)
    text_key: str = asked(default="", converter=TEXT)

    pack: bool = asked(default=False, converter=FLAG)
    eval_data: str = asked(default="", converter=TEXT)
    eval_every: int = asked(default=0, converter=whole(0, 10**9))

    keep: int = asked(default=3, converter=whole(1))
    max_restarts: int | None = asked(default=None, converter=optional(whole(0)))
    timeout: float = asked(default="10min", converter=TIME)
    on_nan: str = asked(default="stop", converter=choice(*ON_NAN))

    launcher: str = asked(default="", converter=choice("", "slurm"))
    nodes: str | int = asked(default="", converter=_NODES)
    node_rank: int | None = asked(default=None, converter=optional(whole(0)))
    preflight: bool = asked(default=False, converter=FLAG)
    rendezvous: str = asked(default="", converter=TEXT)

    report: bool = asked(default=False, converter=FLAG)
    report_lengths: str = asked(default="", converter=TEXT)
    tensorboard: bool = asked(default=False, converter=FLAG)
    track: str = asked(default="", converter=_TRACK)
    metrics_file: str = asked(default="", converter=TEXT)
    profile: str = asked(default="", converter=_PROFILE)
    memory_snapshot: bool = asked(default=False, converter=FLAG)
    # fmt: on

    def __post_init__(self) -> None:
        super().__post_init__()
        elastic = ":" in str(self.nodes)
        if elastic and (self.report or self.sweep is not None):
            raise UserError(
                f"--nodes {self.nodes} does not apply to --{'report' if self.report else 'sweep'}: give a single number"
            )
        if elastic and not self.checkpoint_every and not self.dry_run:
            raise UserError(f"--nodes {self.nodes} goes on from a checkpoint when a node is lost: it needs --checkpoint-every")
        if self.report_lengths and not self.report:
            raise UserError("--report-lengths requires --report")
        if self.eval_every and not self.eval_data:
            raise UserError("--eval-every requires --eval-data: a text that is not trained on")
        used = [name for name in _SINGLE if getattr(self, name)] if self.sweep is not None else []
        if used:
            raise UserError(f"--sweep measures short runs; drop --{used[0].replace('_', '-')}")

    @property
    def folder(self) -> Path:
        return Path(self.out)

    @property
    def axes(self) -> dict[str, int | str]:
        """The axes of the layout that were given."""
        values = {name: getattr(self, name) for name in AXES}
        return {name: value for name, value in values.items() if value not in (None, "")}

    def shape(self, batch: int, seq: int) -> tuple[int, int]:
        """Return sequences per step and their length; `batch` and `seq` are the values where the run leaves them open."""
        length = self.seq or seq
        if not self.batch:
            return batch, length
        try:
            return parse_batch(str(self.batch), length)
        except UserError as error:
            raise UserError(f"--batch: {error}") from None

    @property
    def options(self) -> dict[str, Any]:
        """Fields of the trainer's Settings that are passed on as they are."""
        first, _, count = self.profile.partition(":")
        given = {name: value for name in ("lr", "warmup", "compile") if (value := getattr(self, name)) is not None}
        profiled = {"profile_from": int(first) - 1, "profile_steps": int(count)} if self.profile else {}
        return {name: getattr(self, name) for name in _PASSED} | given | profiled | {
            "steps": self.steps or (STEPS if self.sweep is None else SHORT),
            "lr_schedule": self.lr_schedule or "cosine",
            "track": tuple(filter(None, self.track.split(","))),
            "metrics_file": os.path.abspath(self.metrics_file) if self.metrics_file else "",
            "on_nan": self.on_nan or "stop",
        }  # fmt: skip


@question
class GenerateAsk(Ask):
    """Generate text, or compute the loss of one: `meshwise generate`."""

    verb: ClassVar[str] = "generate"

    # fmt: off
    model: str = asked(default="", converter=TEXT, kw_only=False)
    weights: str = asked(default="", converter=TEXT)
    prompt: str = asked(default="", converter=TEXT)
    tokenizer: str = asked(default="", converter=TEXT)
    tokens: int = asked(default=64, converter=whole())
    temperature: float = asked(default=0.0, converter=number(0, 1e6))
    seed: int = asked(default=0, converter=whole(0, 10**10))
    device: str = asked(default="", converter=choice(*DEVICES))
    text: str = asked(default="", converter=TEXT)
    seq: int = asked(default=2048, converter=LENGTH)
    # fmt: on
