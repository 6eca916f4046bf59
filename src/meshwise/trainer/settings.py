"""Settings: everything a worker needs to know, as one JSON file, and the rules that a layout keeps to. No torch here."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

SCHEDULES = ("1f1b", "interleaved", "zero-bubble", "zbv")
RECOMPUTE = ("none", "selective", "full")
PRECISIONS = ("bf16", "fp32")
DEVICES = ("cpu", "cuda")
MODEL_TYPES = ("llama", "bloom", "ttt")
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


@dataclass(frozen=True, kw_only=True)
class Settings:
    name: str
    model: dict[str, Any]
    """The keys of HF's config.json."""
    layout: Layout
    batch: int
    seq: int
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
    weights: str = ""
    """A folder of HF safetensors to start from; none starts from random weights."""
    save: bool = False
    """Write the weights as HF safetensors at the end."""
    checkpoint_every: int = 0
    """Steps between checkpoints, under checkpoints/ of the run's folder; 0 writes none. The newest there is gone on from."""
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
        path.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @staticmethod
    def read(path: Path) -> "Settings":
        values = json.loads(path.read_text(encoding="utf-8"))
        return Settings(**(values | {"layout": Layout(**values["layout"])}))


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

    @staticmethod
    def of(config: Mapping[str, Any]) -> "Sizes":
        def first(*keys: str, default: int = 0) -> int:
            return next((int(config[key]) for key in keys if config.get(key) is not None), default)

        bloom = config["model_type"] == "bloom"
        hidden, heads = first("hidden_size", "n_embed"), first("num_attention_heads", "n_head")
        return Sizes(
            hidden=hidden,
            layers=first("num_hidden_layers", "n_layer"),
            heads=heads,
            kv_heads=heads if bloom else first("num_key_value_heads", default=heads),
            ffn=4 * hidden if bloom else first("intermediate_size"),
            vocab=first("vocab_size"),
            tied=bool(config.get("tie_word_embeddings", bloom)),
        )


def unbuildable(config: Mapping[str, Any]) -> str:
    """Why the trainer cannot build this model; nothing where it can."""
    kind = config.get("model_type")
    if kind not in MODEL_TYPES:
        return f"model_type {str(kind)!r}: the trainer builds {', '.join(MODEL_TYPES)}"
    if any(float(config.get(key) or 0) for key in ("attention_dropout", "hidden_dropout")):
        return "dropout: the trainer has none"
    if kind == "bloom" and config.get("apply_residual_connection_post_layernorm"):
        return "apply_residual_connection_post_layernorm: the trainer adds what comes before the norm"
    if kind == "ttt" and (
        config.get("ttt_layer_type") != "linear" or any(config.get(key) for key in ("use_gate", "share_qk", "pre_conv"))
    ):
        return "the trainer has TTT-Linear alone, without gate, shared queries and convolution"
    if kind != "bloom" and config.get("hidden_act", "silu") != "silu":
        return f"hidden_act {config['hidden_act']!r}: the trainer has silu"
    rope = rope_of(config)
    if rope.get("rope_type", rope.get("type", "default")) not in ("default", "llama3"):
        return f"rope_type {rope.get('rope_type', rope.get('type'))!r}: the trainer has default and llama3"
    return ""


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
    tokens = int(settings.model.get("mini_batch_size") or 1)
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
        f"the vocabulary ({m.vocab}) must hold the {BYTES} bytes of the embedded text": m.vocab >= BYTES,
        "TTT reads a sequence in order: it has neither tp nor cp, and no attention for selective recompute": not ttt
        or (a.tp == a.cp == 1 and a.recompute != "selective"),
        f"the mini-batch of TTT ({tokens}) must divide the sequence ({settings.seq})": not ttt or settings.seq % tokens == 0,
        "a schedule with split backward passes needs recompute none and no compile": a.schedule not in ("zero-bubble", "zbv")
        or (a.recompute == "none" and not settings.compile),
    }
    return [rule for rule, kept in rules.items() if not kept]


def _counts(settings: Settings) -> list[int]:
    axes = [getattr(settings.layout, f.name) for f in fields(Layout) if f.name not in ("zero", "recompute", "schedule")]
    return [*axes, settings.batch, settings.seq, settings.steps]
