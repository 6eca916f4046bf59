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

LAYOUT = "Layout"
TRAINING = "Training"
FINETUNE = "Fine-tuning"
DATA = "Data"
FAILURES = "Failures"
MACHINES = "Several machines (detected under Slurm, Kubernetes and torchrun)"
MONITORING = "Monitoring"

DEFAULT = "llama-debug"
"""Model of a run that names none."""
STEPS, SHORT = 40, 8
"""Steps of a run, and of each short run of --sweep and --report."""
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
    what: str = asked(default="", converter=TEXT, kw_only=False, complete="models", shown=DEFAULT,
        help="To train: a plan.json of 'meshwise plan', or a model as for plan. To serve: a plan.json of 'meshwise serve', or a .gguf.")
    batch: str | int = asked(default=0, converter=_BATCH,
                             help="Sequences per step (8), sequences x length (8x2048) or tokens (4M).", shown="the plan's, 8")
    seq: int = asked(default=0, converter=LENGTH, help="Sequence length.", shown="the plan's, 64")
    steps: int = asked(default=0, converter=whole(1, 10**9), help="Steps to train.",
                       shown=f"{STEPS}; {SHORT} in each run of a sweep")
    device: str = asked(default="", converter=choice(*DEVICES), help="Device.", shown="cuda if there is a GPU")
    on: str = asked(default="", converter=TEXT, help="This machine as a cluster, to predict with: 1x8xh200.",
                    shown="the plan's, or detected", complete="clusters")
    checkpoint_every: int = asked(default=0, converter=whole(0, 10**9),
        help="Steps between checkpoints. A run resumes from the newest one in its folder, in any layout.")
    save: bool = asked(default=False, converter=FLAG, help="Write the weights as HF safetensors at the end.")
    sweep: str | None = asked(default=None, converter=_SWEEP,
                              help="Measure combinations of axes, batch, seq and compile: 'mbs=1,2 tp=1,2'.")
    out: str = asked(default="run", converter=TEXT, help="Folder of the run.")
    dry_run: bool = asked(default=False, converter=FLAG,
                          help="Print the command, and the shards or memory per device; start nothing.")

    dp_replicate: int | None = asked(default=None, converter=_AXIS, help=BY_NAME["dp_replicate"].help, group=LAYOUT)
    dp_shard: int | None = asked(default=None, converter=_AXIS, help=BY_NAME["dp_shard"].help, group=LAYOUT)
    tp: int | None = asked(default=None, converter=_AXIS, help=BY_NAME["tp"].help, group=LAYOUT)
    pp: int | None = asked(default=None, converter=_AXIS, help=BY_NAME["pp"].help, group=LAYOUT)
    cp: int | None = asked(default=None, converter=_AXIS, help=BY_NAME["cp"].help, group=LAYOUT)
    ep: int | None = asked(default=None, converter=_AXIS, help=BY_NAME["ep"].help, group=LAYOUT)
    mbs: int | None = asked(default=None, converter=_AXIS, help=BY_NAME["mbs"].help, group=LAYOUT)
    vpp: int | None = asked(default=None, converter=_AXIS, help=BY_NAME["vpp"].help, group=LAYOUT)
    zero: int | None = asked(default=None, converter=optional(whole(2, 3)), shown="3", group=LAYOUT,
                             help=f"{BY_NAME['zero'].help} 2 keeps gathered weights until the backward pass.")
    schedule: str = asked(default="", converter=choice(*SCHEDULES), help=BY_NAME["schedule"].help, shown="1f1b", group=LAYOUT)
    recompute: str = asked(default="", converter=choice(*RECOMPUTE), help=BY_NAME["recompute"].help, shown="none", group=LAYOUT)

    lr: float | None = asked(default=None, converter=optional(number(0, 1e6)), help="Peak learning rate.",
                             shown="by model size: 3e-4 at 7B", group=TRAINING)
    warmup: int | None = asked(default=None, converter=optional(whole(0, 10**9)), help="Steps of the linear warm-up.",
                               shown="by model size and steps", group=TRAINING)
    lr_schedule: str = asked(default="cosine", converter=choice(*LR_SCHEDULES), group=TRAINING,
        help="After the warm-up: a cosine down to a tenth, constant until a last fifth that falls to zero (wsd), or linear to zero.")
    clip: float = asked(default=1.0, converter=number(1e-9, 1e9), help="Largest norm of the gradient.", group=TRAINING)
    weight_decay: float = asked(default=0.1, converter=number(0, 1e3),
                                help="Weight decay of matrices; norms and biases have none.", group=TRAINING)
    seed: int = asked(default=0, converter=whole(0, 10**10), help="Seed of the weights and of the data order.", group=TRAINING)
    precision: str = asked(default="", converter=choice(*PRECISIONS), help="Precision of matrix products.",
                           shown="bf16 on GPUs, fp32 on CPUs", group=TRAINING)
    moments: str = asked(default="", converter=choice(*MOMENTS), shown="fp32", group=TRAINING,
                         help="Format of AdamW's two moments; bf16 takes 4 bytes less per parameter, on one GPU.")
    compile: bool | None = asked(default=None, converter=optional(FLAG), help="Compile blocks with torch.compile.",
                                 shown="on GPUs", group=TRAINING)
    graph: bool = asked(default=True, converter=FLAG, help="Replay a step on one GPU as a CUDA graph.", shown="yes",
                        group=TRAINING)
    weights: str = asked(default="", converter=TEXT, help="HF safetensors to start from, a file or a folder.", shown="random",
                         group=TRAINING)

    finetune: str = asked(default="", converter=_FINETUNE, shown="every weight is trained", group=FINETUNE,
                          help="lora:16, dora:16, qlora:16, each with targets such as :q_proj,v_proj; freeze:LAYERS; or full.")
    lora_alpha: float | None = asked(default=None, converter=optional(number(1e-6, 1e6)),
                                     help="Adapters are scaled by alpha / rank.", shown="twice the rank", group=FINETUNE)
    lora_dropout: float = asked(default=0.0, converter=number(0, 0.99),
                                help="Dropout of the adapters' inputs; their products are then not joined.", group=FINETUNE)
    adapter: str = asked(default="", converter=TEXT, help="Folder with an adapter in PEFT's format to start from.",
                         shown="a new one", group=FINETUNE)
    merge: bool = asked(default=False, converter=FLAG, help="Write the weights with the adapters added to them at the end.",
                        group=FINETUNE)

    data: str = asked(default="", converter=TEXT, shown="embedded text", group=DATA,
        help="Text or conversations (.txt, .jsonl, .parquet) or token files (.tokens, .bin): a file, a folder or a quoted pattern.")
    train_on: str = asked(default="", converter=choice("", "answers", "all"), help="Tokens of conversations that have a loss.",
                          shown="answers", group=DATA)
    tokenizer: str = asked(default="", converter=TEXT,
                           help="bytes, HF's tokenizer.json or its folder, or bpe:N to learn N tokens.",
                           shown="bytes; with --finetune, the one beside the weights", group=DATA)
    text_key: str = asked(default="", converter=TEXT, help="Key or column of the text in .jsonl and .parquet.", shown="text",
                          group=DATA)

    pack: bool = asked(default=False, converter=FLAG,
        help="Keep documents apart: no token attends across the end of its document. Conversations then share sequences.", group=DATA)
    eval_data: str = asked(default="", converter=TEXT, help="Text or token files of the validation loss, read like --data.",
                           group=DATA)
    eval_every: int = asked(default=0, converter=whole(0, 10**9), help="Steps between validation losses.",
                            shown="after the last step", group=DATA)

    keep: int = asked(default=3, converter=whole(1), help="Checkpoints to keep.", group=FAILURES)
    max_restarts: int | None = asked(default=None, converter=optional(whole(0)), help="Restarts after a lost rank.",
                                     shown="3 with checkpoints, else 0", group=FAILURES)
    timeout: float = asked(default="10min", converter=TIME,
                           help="End the run after this long without progress, and name the slowest rank.", group=FAILURES)
    on_nan: str = asked(default="stop", converter=choice(*ON_NAN),
                        help="When loss or gradient is NaN or infinite: stop, or skip the step.", group=FAILURES)

    launcher: str = asked(default="", converter=choice("", "slurm"), flag="--with", group=MACHINES, shown="start here",
                          help="slurm: submit the plan with sbatch, follow its log, and end with the measured row.")
    nodes: str | int = asked(default="", converter=_NODES, flag="--nodes,--nnodes", group=MACHINES,
        help="Number of machines; MIN:MAX goes on with fewer when some are lost, in a layout planned for them.")
    node_rank: int | None = asked(default=None, converter=optional(whole(0)), help="Rank of this machine, from 0.",
                                  group=MACHINES)
    rendezvous: str = asked(default="", converter=TEXT, flag="--rendezvous,--rdzv-endpoint", help="HOST:PORT of node 0.",
                            group=MACHINES)

    report: bool = asked(default=False, converter=FLAG, help="Report every rank, and short runs at several sequence lengths.",
                         group=MONITORING)
    report_lengths: str = asked(default="", converter=TEXT, help="Sequence lengths of --report.", shown="128,512,1024,2048",
                                group=MONITORING)
    tensorboard: bool = asked(default=False, converter=FLAG, help="Write curves for TensorBoard.", group=MONITORING)
    track: str = asked(default="", converter=_TRACK, help="Send curves to wandb or trackio, if installed; both: wandb,trackio.",
                       group=MONITORING)
    metrics_file: str = asked(default="", converter=TEXT, help="File with the latest values for Prometheus' textfile collector.",
                              group=MONITORING)
    profile: str = asked(default="", converter=_PROFILE, help="Trace these steps of rank 0 with torch's profiler.",
                         group=MONITORING)
    memory_snapshot: bool = asked(default=False, converter=FLAG, help="Record the history of GPU memory.", group=MONITORING)
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
    model: str = asked(default="", converter=TEXT, help="The trained model, as for run.", complete="models", kw_only=False)
    weights: str = asked(default="", converter=TEXT,
                         help="HF safetensors, a file or a folder, such as weights/ of a run with --save.")
    prompt: str = asked(default="", converter=TEXT, help="Text to continue.")
    tokenizer: str = asked(default="", converter=TEXT, help="bytes, or HF's tokenizer.json or its folder.",
                           shown="next to the weights, or bytes")
    tokens: int = asked(default=64, converter=whole(), help="Tokens to generate.")
    temperature: float = asked(default=0.0, converter=number(0, 1e6),
                               help="0 takes the most likely token, 1 samples by probability.", shown="0")
    seed: int = asked(default=0, converter=whole(0, 10**10), help="Seed of the samples.")
    device: str = asked(default="", converter=choice(*DEVICES), help="Device.", shown="cuda if there is a GPU")
    text: str = asked(default="", converter=TEXT, flag="--eval", help="Compute the loss of this text file instead.")
    seq: int = asked(default=2048, converter=LENGTH, help="With --eval: tokens per piece.")
    # fmt: on
