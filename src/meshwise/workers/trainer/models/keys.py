"""Reads the keys of config.json that most families share, in the spelling of transformers 5 and of earlier files. No torch."""

from collections.abc import Callable, Mapping
from typing import Any

from meshwise.workers.trainer.models.description import ACTIVATIONS, SCALINGS, Description, Layer, Rotary

Values = Mapping[str, Any]


def first_of(config: Values, *keys: str, default: int = 0) -> int:
    """Return the value of the first of these keys that the config sets, as an integer."""
    return next((int(config[key]) for key in keys if config.get(key) is not None), default)


def number_of(config: Values, key: str, default: float) -> float:
    value = config.get(key)
    return default if value is None else float(value)


def head_dim_of(config: Values, default: int = 0) -> int:
    heads = first_of(config, "num_attention_heads")
    return first_of(config, "head_dim", default=default or first_of(config, "hidden_size") // max(1, heads))


def activation_of(config: Values, *keys: str, default: str = "silu") -> str:
    """Return our name of the activation function; an unknown one stays as it is, and `unsupported` refuses it."""
    given = next((str(config[key]) for key in keys if config.get(key) is not None), default)
    return ACTIVATIONS.get(given, given)


def rotary_of(
    config: Values, head_dim: int, *, fraction: float = 1.0, interleaved: bool = False, theta: float = 10000.0, section: str = ""
) -> Rotary:
    """Return the rotary positions; `section` names those of one kind of layer, where the file has several. The rest are defaults."""
    values = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    values = dict(values.get(section) or values)
    lengths = {key: config[key] for key in ("max_position_embeddings", "original_max_position_embeddings") if config.get(key)}
    share = next(
        (float(each[key]) for each in (values, config) for key in ("partial_rotary_factor", "rotary_pct") if each.get(key)),
        fraction,
    )
    base = next(
        (float(each[key]) for each in (values, config) for key in ("rope_theta", "rotary_emb_base") if each.get(key)), theta
    )
    return Rotary(dim=int(head_dim * share), theta=base, interleaved=interleaved, scaling=lengths | values)


def windows_of(config: Values, layers: int, default: int, sliding: Callable[[int], bool]) -> list[int]:
    """Return the window of each layer, 0 for none: by layer_types if the file has it, else by the family's rule."""
    window = first_of(config, "sliding_window", default=default)
    if "sliding_window" in config and config["sliding_window"] is None:
        window = 0
    kinds: list[str] = list(config.get("layer_types") or [])
    slides = [kinds[i] == "sliding_attention" if i < len(kinds) else sliding(i) for i in range(layers)]
    return [window if slides[i] else 0 for i in range(layers)]


def llama_like(config: Values, *, head_dim: int = 0, tied: bool = False, kv_heads: int = 0, **more: Any) -> Description:
    """Return a description by Llama's keys: norms before, gated feed-forward, rotary positions in every layer. `more` sets other fields."""
    heads, size = first_of(config, "num_attention_heads"), head_dim_of(config, head_dim)
    count = first_of(config, "num_hidden_layers")
    fields: dict[str, Any] = {
        "hidden": first_of(config, "hidden_size"),
        "heads": heads,
        "kv_heads": first_of(config, "num_key_value_heads", default=kv_heads or heads),
        "head_dim": size,
        "ffn": first_of(config, "intermediate_size"),
        "vocab": first_of(config, "vocab_size"),
        "tied": bool(config.get("tie_word_embeddings", tied)),
        "eps": number_of(config, "rms_norm_eps", 1e-6),
        "activation": activation_of(config, "hidden_act"),
    }
    if "layers" not in more:
        fields["layers"] = (Layer(rotary=rotary_of(config, size)),) * count
    return Description(**(fields | more))


def windowed(rotary: Rotary, windows: list[int]) -> tuple[Layer, ...]:
    """Return layers with the same rotary positions and these windows."""
    return tuple(Layer(rotary=rotary, window=window) for window in windows)


def unsupported(d: Description) -> str:
    """Return why a description cannot be built; empty if it can."""
    if d.activation not in ACTIVATIONS.values():
        return f"the activation function {d.activation!r} is not supported; the trainer has silu, gelu and gelu_pytorch_tanh"
    experts = d.experts
    if experts and experts.chosen > experts.count:
        return (
            f"the router chooses {experts.chosen} experts per token, but a layer has {experts.count}; lower num_experts_per_tok"
        )
    if experts and (experts.count % experts.groups or experts.kept_groups > experts.groups):
        return f"{experts.count} experts do not form {experts.groups} equal groups, of which a token keeps {experts.kept_groups}"
    for rotary in (layer.rotary for layer in d.layers if layer.rotary):
        if d.head_dim % 2 or rotary.dim % 2:
            return f"heads of {d.head_dim} features: rotary positions rotate pairs, so the head size must be even"
        if rotary.kind not in SCALINGS:
            return f"rope_type {rotary.kind!r} is not supported; the trainer has {', '.join(SCALINGS)}"
        missing = [key for key in SCALINGS[rotary.kind] if rotary.scaling.get(key) is None]
        if missing:
            return f"rope_type {rotary.kind} needs {missing[0]}, which the config lacks"
    return ""
