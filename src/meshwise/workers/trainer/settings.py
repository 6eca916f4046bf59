"""Settings: everything a worker needs to know, as one JSON file, and the rules that a layout keeps to. No torch here."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

SCHEDULES = ("1f1b", "interleaved", "zero-bubble", "zbv")
SPLIT_BACKWARD = ("zero-bubble", "zbv")
RECOMPUTE = ("none", "selective", "full")
PRECISIONS = ("bf16", "fp32")
DEVICES = ("cpu", "cuda")
ON_NAN = ("stop", "skip")
MODEL_TYPES = ("llama", "bloom", "gpt2", "ttt")
TTT_LAYERS = ("linear", "mlp")
BYTES = 256
"""Tokens of the embedded text: one per byte."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How the model is cut, in the words of meshwise's layouts."""

    dp_replicate: int = 1
    dp_shard: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    mbs: int = 1
    vpp: int = 1
    zero: int = 3
    """3 gives gathered weights back after the forward pass, 2 keeps them until the backward pass is done."""
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
        """Parts of the model on one device: a V takes two."""
        return 2 if self.schedule == "zbv" else self.vpp


@dataclass(frozen=True)
class TokenFile:
    """Tokens of 2 or 4 bytes without a sign, least byte first, one after another."""

    path: str
    offset: int
    """Bytes before the first token."""
    count: int
    width: int

    def windows(self, seq: int) -> int:
        """Samples of `seq` tokens, each with the token that follows; what is left over at the end is not read."""
        return max(0, self.count - 1) // seq


@dataclass(frozen=True, kw_only=True)
class Settings:
    name: str
    model: dict[str, Any]
    """The keys of HF's config.json."""
    layout: Layout
    batch: int
    seq: int
    given: str = ""
    """By what the model was named: a preset, a file or a folder."""
    steps: int = 20
    lr: float = 3e-3
    warmup: int = 5
    clip: float = 1.0
    precision: str = "bf16"
    device: str = "cpu"
    seed: int = 0
    compile: bool = False
    graph: bool = True
    """Replay a step as one CUDA graph, on one device."""
    out: str = "run"
    data: tuple[TokenFile, ...] = ()
    """What is read; nothing reads the embedded text, a token per byte."""
    text: str = ""
    """The same in words."""
    fingerprint: str = ""
    """Of what is read, where it must be known again: beside checkpoints."""
    tokenizer: bool = False
    """Whether it was read with the tokenizer.json of the run's folder."""
    weights: str = ""
    """HF safetensors to start from, a file or a folder; none starts from random weights."""
    save: bool = False
    """Write the weights as HF safetensors at the end."""
    checkpoint_every: int = 0
    """Steps between checkpoints, under checkpoints/ of the run's folder; 0 writes none. The newest there is gone on from."""
    keep: int = 3
    """Checkpoints that are kept."""
    timeout: float = 600.0
    """Seconds without progress after which a run ends and says who is behind."""
    on_nan: str = "stop"
    """stop, or skip: leave out a step whose loss or gradient is no number."""
    tensorboard: bool = False
    """Write curves for TensorBoard under tensorboard/ of the run's folder."""
    profile_from: int = 0
    profile_steps: int = 0
    """Steps from `profile_from` on that torch's profiler traces on rank 0; 0 is none."""
    memory_snapshot: bool = False
    """Keep the history of GPU memory, and write it at the end or where it runs out."""
    facts: dict[str, float | str] = field(default_factory=dict[str, float | str])
    """What the planner knows: flops_per_token, params, peak (FLOP/s of a device), capacity (its bytes), gpu (its name)."""

    @property
    def split(self) -> bool:
        """Whether weights are 16 bits with the rest of a float32 beside them; where ranks add gradients, they are float32."""
        return self.precision == "bf16" and self.device == "cuda" and self.layout.devices == 1

    @property
    def graphed(self) -> bool:
        """Whether a step is captured and replayed: where one device does all of it, and nothing is looked at on the way."""
        return self.graph and self.device == "cuda" and self.layout.devices == 1

    @property
    def microbatches(self) -> int:
        return self.batch // (self.layout.dp * self.layout.mbs)

    def write(self, path: Path) -> None:
        """Whole at any time: launchers of several hosts may write the same file."""
        begun = path.with_name(f"{path.name}.{os.getpid()}")
        begun.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
        begun.replace(path)

    @staticmethod
    def read(path: Path) -> "Settings":
        values = json.loads(path.read_text(encoding="utf-8"))
        files = tuple(TokenFile(**one) for one in values.get("data", ()))
        return Settings(**(values | {"layout": Layout(**values["layout"]), "data": files}))


@dataclass(frozen=True)
class Sizes:
    """What both the rules and the models read from a config.json."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    tied: bool
    positions: int = 0
    """Learned ones, which a sequence cannot pass; 0 where positions are computed."""

    @staticmethod
    def of(config: Mapping[str, Any]) -> "Sizes":
        def first(*keys: str, default: int = 0) -> int:
            return next((int(config[key]) for key in keys if config.get(key) is not None), default)

        old = config["model_type"] in ("bloom", "gpt2")  # keys and defaults from before Llama
        hidden, heads = first("hidden_size", "n_embed", "n_embd"), first("num_attention_heads", "n_head")
        return Sizes(
            hidden=hidden,
            layers=first("num_hidden_layers", "n_layer"),
            heads=heads,
            kv_heads=heads if old else first("num_key_value_heads", default=heads),
            ffn=first("n_inner", default=4 * hidden) if old else first("intermediate_size"),
            vocab=first("vocab_size"),
            tied=bool(config.get("tie_word_embeddings", old or config["model_type"] == "ttt")),
            positions=first("n_positions", default=1024) if config["model_type"] == "gpt2" else 0,
        )


def unbuildable(config: Mapping[str, Any]) -> str:
    """Why the trainer cannot build this model; nothing where it can."""
    kind = config.get("model_type")
    if kind is None:
        return f"it has no model_type: the trainer builds {', '.join(MODEL_TYPES)}"
    if kind not in MODEL_TYPES:
        return f"model_type {str(kind)!r}: the trainer builds {', '.join(MODEL_TYPES)}"
    if any(float(config.get(key) or 0) for key in ("attention_dropout", "hidden_dropout")):
        return "dropout: the trainer has none"
    if kind == "bloom" and config.get("apply_residual_connection_post_layernorm"):
        return "apply_residual_connection_post_layernorm: the trainer adds what comes before the norm"
    if kind == "ttt" and learner_of(config)[0] not in TTT_LAYERS:
        return f"ttt_layer_type {learner_of(config)[0]!r}: the trainer has {' and '.join(TTT_LAYERS)}"
    if kind == "ttt" and any(config.get(key) for key in ("use_gate", "share_qk", "pre_conv")):
        return "the trainer has TTT-Linear and TTT-MLP without gate, shared queries and convolution"
    if kind == "gpt2":
        return _unbuildable_gpt2(config)
    if kind != "bloom" and config.get("hidden_act", "silu") != "silu":
        return f"hidden_act {config['hidden_act']!r}: the trainer has silu"
    sizes, rope = Sizes.of(config), rope_of(config)
    size = int(config.get("head_dim") or sizes.hidden // max(1, sizes.heads))
    if kind != "bloom" and size % 2:
        return f"heads of {size}: rotary positions turn pairs, so their size must be even"
    if rope.get("rope_type", rope.get("type", "default")) not in ("default", "llama3"):
        return f"rope_type {rope.get('rope_type', rope.get('type'))!r}: the trainer has default and llama3"
    return ""


def _unbuildable_gpt2(config: Mapping[str, Any]) -> str:
    if config.get("activation_function", "gelu_new") not in ("gelu_new", "gelu_pytorch_tanh"):
        return f"activation_function {config['activation_function']!r}: the trainer has gelu_new"
    odd = [key for key in ("scale_attn_by_inverse_layer_idx", "add_cross_attention") if config.get(key)]
    odd += [] if config.get("scale_attn_weights", True) else ["scale_attn_weights false"]
    return f"{odd[0]}: the trainer has plain causal attention" if odd else ""


def dropout_of(config: Mapping[str, Any]) -> float:
    """What a config of GPT-2 asks for, as all published ones do, and the trainer leaves out."""
    return max(float(config.get(key) or 0) for key in ("attn_pdrop", "embd_pdrop", "resid_pdrop"))


def learner_of(config: Mapping[str, Any]) -> tuple[str, int]:
    """Of a TTT model, the kind of learner and the tokens of its mini-batch, by default those of the paper's code."""
    return str(config.get("ttt_layer_type", "linear")), int(config.get("mini_batch_size", 16))


def rope_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The table of rotary positions, under the key of transformers 5 or of those before it."""
    return {"rope_theta": config.get("rope_theta", 10000.0)} | dict(
        config.get("rope_parameters") or config.get("rope_scaling") or {}
    )


def broken(settings: Settings) -> list[str]:
    """The rules that a layout breaks for this model and batch, each with its numbers."""
    if min(_counts(settings)) < 1:
        return ["there is at least one of every axis, micro-batch, sequence and step"]
    a, m = settings.layout, Sizes.of(settings.model)
    stages, each = a.pp * a.chunks, a.dp * a.mbs
    ttt = settings.model["model_type"] == "ttt"
    rules = {
        f"tp ({a.tp}) must divide the heads ({m.heads})": m.heads % a.tp == 0,
        f"tp ({a.tp}) must divide the KV heads ({m.kv_heads})": m.kv_heads % a.tp == 0,
        f"tp ({a.tp}) must divide the FFW width ({m.ffn})": m.ffn % a.tp == 0,
        f"tp ({a.tp}) must divide the vocabulary ({m.vocab})": m.vocab % a.tp == 0,
        f"tp x cp ({a.tp} x {a.cp}) must divide the sequence ({settings.seq})": settings.seq % (a.tp * a.cp) == 0,
        f"dp x micro-batch ({a.dp} x {a.mbs}) must divide the batch ({settings.batch})": settings.batch % each == 0,
        f"pp x chunks ({a.pp} x {a.chunks}) must be at most the layers ({m.layers})": stages <= m.layers,
        f"vpp ({a.vpp}) above 1 goes with the interleaved or zero-bubble schedule and pp above 1": a.vpp == 1
        or (a.pp > 1 and a.schedule in ("interleaved", "zero-bubble")),
        f"schedule {a.schedule} needs pp above 1": a.pp > 1 or a.schedule == "1f1b",
        "schedule interleaved needs vpp above 1": a.schedule != "interleaved" or a.vpp > 1,
        f"pp ({a.pp}) must divide the micro-batches ({settings.batch // each})": a.pp == 1
        or (settings.batch // each) % a.pp == 0,
        f"the vocabulary ({m.vocab}) must hold the {BYTES} bytes of the embedded text": bool(settings.text) or m.vocab >= BYTES,
        f"the sequence ({settings.seq}) must be at most the learned positions ({m.positions})": not m.positions
        or settings.seq <= m.positions,
        f"tp ({a.tp}) must divide the learned positions ({m.positions})": m.positions % a.tp == 0,
        "TTT reads a sequence in order: it has neither tp nor cp, and no attention for selective recompute": not ttt
        or (a.tp == a.cp == 1 and a.recompute != "selective"),
        "a schedule with split backward passes needs recompute none and no compile": a.schedule not in SPLIT_BACKWARD
        or (a.recompute == "none" and not settings.compile),
    }
    return [rule for rule, kept in rules.items() if not kept]


def would_do(settings: Settings) -> str:
    """Other values of one axis, up to twice the one it has, with which a layout keeps every rule: 'tp 1, 2 or 4'. Nothing where no one axis
    is to blame."""
    for name in ("tp", "cp", "pp", "vpp", "dp_shard", "dp_replicate", "mbs"):
        given = getattr(settings.layout, name)
        others = [replace(settings, layout=replace(settings.layout, **{name: value})) for value in range(1, 2 * given + 1)]
        fine = [str(getattr(other.layout, name)) for other in others if given > 1 and not broken(other)][-4:]
        if fine:
            return f"{name.replace('_', '-')} {', '.join(fine[:-1])}{' or ' * (len(fine) > 1)}{fine[-1]}"
    return ""


def _counts(settings: Settings) -> list[int]:
    axes = [getattr(settings.layout, f.name) for f in fields(Layout) if f.name not in ("zero", "recompute", "schedule")]
    return [*axes, settings.batch, settings.seq, settings.steps]
