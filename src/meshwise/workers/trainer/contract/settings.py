"""The settings of a run, as one JSON file that every worker reads, and the rules a layout must satisfy. No torch."""

import json
import os
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from meshwise.workers.trainer.contract.finetune.method import FULL, FinetuneMethod
from meshwise.workers.trainer.contract.models.registry import family_of, sizes_of

SCHEDULES = ("1f1b", "interleaved", "zero-bubble", "zbv")
SPLIT_BACKWARD = ("zero-bubble", "zbv")
RECOMPUTE = ("none", "selective", "full")
PRECISIONS = ("bf16", "fp8", "fp8-row", "fp32")
"""fp8, fp8-row: matrix products of the layers in 8 bits with one scale per tensor or per row, and everything else as with bf16."""
MOMENTS = ("fp32", "bf16")
FP8_SIZE_MULTIPLE = 16  # sizes of 8-bit products are multiples of this
DEVICES = ("cpu", "cuda")
ON_NAN = ("stop", "skip")
LR_SCHEDULES = ("cosine", "wsd", "linear")
TRACKERS = ("wandb", "trackio")
HIDDEN_TOKEN_BIT = 1 << 31
"""This bit of a token of 4 bytes says that no loss is computed for it: it belongs to a prompt, or fills a sequence up."""
BYTE_VOCABULARY = 256  # vocabulary of the embedded text: one token per byte


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How the model is split over devices; the axes have the planner's names."""

    dp_replicate: int = 1
    dp_shard: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1  # ranks, out of dp_shard x cp x tp, over which the experts of a layer are spread
    mbs: int = 1
    vpp: int = 1
    zero: int = 3  # 3 frees gathered weights after the forward pass; 2 keeps them until the backward pass is done
    recompute: str = "none"
    schedule: str = "1f1b"

    @property
    def dp(self) -> int:
        return self.dp_replicate * self.dp_shard

    @property
    def devices(self) -> int:
        return self.dp * self.tp * self.pp * self.cp

    @property
    def chunks(self) -> int:
        """Parts of the model on one device; the V schedule has two."""
        return 2 if self.schedule == "zbv" else self.vpp


@dataclass(frozen=True)
class TokenFile:
    """A file of unsigned little-endian tokens of 2 or 4 bytes."""

    path: str
    offset: int  # bytes before the first token
    count: int
    width: int

    def windows(self, seq: int) -> int:
        """Return the number of samples of `seq` tokens plus the token that follows; a shorter remainder is not read."""
        return max(0, self.count - 1) // seq


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a run that its workers read."""

    name: str
    model: dict[str, Any]  # the keys of HF's config.json
    layout: Layout
    batch: int
    seq: int
    given: str = ""  # the model as the user gave it: a preset, a file or a folder
    steps: int = 20
    lr: float = 3e-3
    warmup: int = 5
    lr_schedule: str = "cosine"
    clip: float = 1.0  # largest norm of the gradient; larger ones are scaled down to it
    weight_decay: float = 0.1  # weight decay of matrices; norms and biases have none
    precision: str = "bf16"
    moments: str = "fp32"  # format of AdamW's two moments; bf16 needs split weights
    device: str = "cpu"
    seed: int = 0
    compile: bool = False
    graph: bool = True  # replay each step as one CUDA graph, if the run has one device
    out: str = "run"
    data: tuple[TokenFile, ...] = ()  # token files to read; empty: the embedded text, one token per byte
    text: str = ""  # description of the data; empty for the embedded text
    fingerprint: str = ""  # fingerprint of the data, set if checkpoints must recognize it
    base: str = ""
    """Fingerprint of frozen weights, which checkpoints do not hold, set if these must recognize them; empty: random weights."""
    answers: bool = False  # whether some tokens of the data are hidden from the loss, which is the mean over all others of a step
    pack: bool = False  # whether tokens see only their own document
    document_end: int = -1  # the token that ends a document; -1: unknown
    eval_data: tuple[TokenFile, ...] = ()  # token files of the validation loss; empty: there is none
    eval_text: str = ""  # description of the validation data
    eval_every: int = 0  # steps between validation losses; 0: only after the last
    tokenizer: bool = False  # whether the data was tokenized with tokenizer.json in the run's folder
    finetune: FinetuneMethod = FULL  # fine-tuning method: which weights train, and which are frozen
    weights: str = ""  # HF safetensors to start from, a file or a folder; empty: random weights
    save: bool = False  # write the weights as HF safetensors at the end
    checkpoint_every: int = 0
    """Steps between checkpoints in checkpoints/ of the run's folder; 0 writes none. A run resumes from the newest one."""
    keep: int = 3  # number of checkpoints to keep
    timeout: float = 600.0  # seconds without progress after which a run ends and names the stragglers
    on_nan: str = "stop"  # stop, or skip: do not apply a step whose loss or gradient is not finite
    tensorboard: bool = False  # write TensorBoard curves to tensorboard/ of the run's folder
    track: tuple[str, ...] = ()  # dashboards that get the curves: wandb, trackio
    metrics_file: str = ""  # file that holds the latest values in Prometheus' text format; empty: none
    profile_from: int = 0
    profile_steps: int = 0  # number of steps from `profile_from` on that torch's profiler traces on rank 0; 0: none
    memory_snapshot: bool = False  # record the history of GPU memory, and write it at the end or when memory runs out
    facts: dict[str, float | str] = field(default_factory=dict[str, float | str])
    """Facts from the planner: flops_per_token, params, peak (FLOP/s of a device), capacity (its bytes), gpu (its name)."""

    @property
    def half(self) -> bool:
        """Whether activations are in 16 bits."""
        return self.precision != "fp32"

    @property
    def eight(self) -> str:
        """tensor or row, which has one scale, if the layers' products are in 8 bits."""
        return {"fp8": "tensor", "fp8-row": "row"}.get(self.precision, "")

    @property
    def split_weights(self) -> bool:
        """Whether a float32 weight is stored as bfloat16 plus the 16 remaining bits; with several ranks weights are float32."""
        return self.half and self.device == "cuda" and self.layout.devices == 1

    @property
    def cuda_graph(self) -> bool:
        """Whether a step is captured and replayed: only on one GPU, where no step waits for the host."""
        waits = self.precision == "fp32" and sizes_of(self.model).experts > 0  # torch has grouped products of 16 bits alone
        return self.graph and self.device == "cuda" and self.layout.devices == 1 and not waits

    @property
    def microbatches(self) -> int:
        return self.batch // (self.layout.dp * self.layout.mbs)

    def write(self, path: Path) -> None:
        """Write the file atomically: launchers on several hosts may write the same one."""
        partial = path.with_name(f"{path.name}.{os.getpid()}")
        partial.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
        partial.replace(path)

    @staticmethod
    def read(path: Path) -> "Settings":
        values = json.loads(path.read_text(encoding="utf-8"))
        files = {key: tuple(TokenFile(**file) for file in values.get(key, ())) for key in ("data", "eval_data")}
        parts = {
            "layout": Layout(**values["layout"]),
            "track": tuple(values.get("track", ())),
            "finetune": FinetuneMethod.of(values.get("finetune", {})),
        }
        return Settings(**(values | parts | files))


def broken_rules(settings: Settings) -> list[str]:
    """List the rules that this layout breaks for its model and batch, each with its numbers."""
    if min(_counts(settings)) < 1:
        return ["every axis, the micro-batch, batch, sequence and steps must be at least 1"]
    a, m, finetune = settings.layout, sizes_of(settings.model), settings.finetune
    stages, each = a.pp * a.chunks, a.dp * a.mbs
    recurrent = family_of(settings.model).recurrent
    rules = {
        f"tp ({a.tp}) must divide the heads ({m.heads})": m.heads % a.tp == 0,
        f"tp ({a.tp}) must divide the KV heads ({m.kv_heads})": m.kv_heads % a.tp == 0,
        f"tp ({a.tp}) must divide the FFW width ({m.ffn})": m.ffn % a.tp == 0,
        f"tp ({a.tp}) must divide the vocabulary ({m.vocab})": m.vocab % a.tp == 0,
        f"tp x cp ({a.tp} x {a.cp}){' x 2' * (a.cp > 1)} must divide the sequence ({settings.seq})": settings.seq
        % (a.tp * a.cp * (1 + (a.cp > 1)))
        == 0,
        f"separate documents (pack) need cp 1 and pp 1 (cp is {a.cp}, pp {a.pp}) and a model with softmax attention": not settings.pack
        or (a.cp == a.pp == 1 and not recurrent),
        f"dp x micro-batch ({a.dp} x {a.mbs}) must divide the batch ({settings.batch})": settings.batch % each == 0,
        f"pp x chunks ({a.pp} x {a.chunks}) must be at most the layers ({m.layers})": stages <= m.layers,
        f"vpp ({a.vpp}) above 1 needs the interleaved or zero-bubble schedule and pp above 1": a.vpp == 1
        or (a.pp > 1 and a.schedule in ("interleaved", "zero-bubble")),
        f"schedule {a.schedule} needs pp above 1": a.pp > 1 or a.schedule == "1f1b",
        "schedule interleaved needs vpp above 1": a.schedule != "interleaved" or a.vpp > 1,
        f"pp ({a.pp}) must divide the micro-batches ({settings.batch // each})": a.pp == 1
        or (settings.batch // each) % a.pp == 0,
        f"the vocabulary ({m.vocab}) must hold the {BYTE_VOCABULARY} bytes of the embedded text": bool(settings.text)
        or m.vocab >= BYTE_VOCABULARY,
        f"the sequence ({settings.seq}) must be at most the learned positions ({m.positions})": not m.positions
        or settings.seq <= m.positions,
        f"tp ({a.tp}) must divide the learned positions ({m.positions})": m.positions % a.tp == 0,
        f"{settings.precision} needs tp 1 (tp is {a.tp}) and a model with softmax attention": not settings.eight
        or (a.tp == 1 and not recurrent),
        f"{settings.precision} needs micro-batch x sequence / cp ({a.mbs} x {settings.seq} / {a.cp}), hidden size ({m.hidden}) and FFW "
        f"width ({m.ffn}) to be multiples of {FP8_SIZE_MULTIPLE}": not settings.eight
        or not any(size % FP8_SIZE_MULTIPLE for size in (a.mbs * settings.seq // a.cp, m.hidden, m.ffn)),
        f"moments in bf16 need precision bf16 or fp8 and one GPU (given: {settings.precision} on {a.devices} x {settings.device}); "
        "use moments in fp32": settings.moments == "fp32" or settings.split_weights,
        f"{finetune.method} trains in bf16 or fp32, not in {settings.precision}": not finetune.freezes or not settings.eight,
        f"{finetune.method} has weights without gradients, which schedule {a.schedule} cannot split": not finetune.freezes
        or a.schedule not in SPLIT_BACKWARD,
        f"qlora has whole 4-bit weights on every rank: it needs tp 1 (tp is {a.tp})": not finetune.quantized or a.tp == 1,
        f"dropout of adapters needs tp 1 (tp is {a.tp})": not finetune.dropout or a.tp == 1,
        f"freeze:{finetune.frozen_layers} needs pp 1 (pp is {a.pp}): a stage without gradients has no backward pass": finetune.method
        != "freeze"
        or a.pp == 1,
        f"ep ({a.ep}) must divide the experts ({m.experts})": m.experts % a.ep == 0 if m.experts else True,
        f"ep ({a.ep}) above 1 needs a model with experts": a.ep == 1 or m.experts > 0,
        f"ep ({a.ep}) must divide dp_shard x cp x tp ({a.dp_shard} x {a.cp} x {a.tp})": (a.dp_shard * a.cp * a.tp) % a.ep == 0,
        f"{settings.model['model_type']} layers process tokens in order: tp and cp must be 1 and recompute none or full": not recurrent
        or (a.tp == a.cp == 1 and a.recompute != "selective"),
        f"schedule {a.schedule} splits the backward pass: it needs recompute none and no compile": a.schedule
        not in SPLIT_BACKWARD
        or (a.recompute == "none" and not settings.compile),
    }
    return [rule for rule, kept in rules.items() if not kept]


def valid_choices(settings: Settings) -> str:
    """Suggest values of one axis, up to twice the given one, that satisfy every rule ('tp 1, 2 or 4'); '' if none helps alone."""
    for name in ("tp", "cp", "ep", "pp", "vpp", "dp_shard", "dp_replicate", "mbs"):
        given = getattr(settings.layout, name)
        others = [replace(settings, layout=replace(settings.layout, **{name: value})) for value in range(1, 2 * given + 1)]
        fine = [str(getattr(other.layout, name)) for other in others if given > 1 and not broken_rules(other)][-4:]
        if fine:
            return f"{name.replace('_', '-')} {', '.join(fine[:-1])}{' or ' * (len(fine) > 1)}{fine[-1]}"
    return ""


def _counts(settings: Settings) -> list[int]:
    axes = [getattr(settings.layout, f.name) for f in fields(Layout) if f.name not in ("zero", "recompute", "schedule")]
    return [*axes, settings.batch, settings.seq, settings.steps]
