"""Reads the keys of config.json that most families share, in the spelling of transformers 5 and of earlier files. No torch."""

from collections.abc import Callable, Mapping
from typing import Any, cast

from meshwise.workers.trainer.contract.models.description import ACTIVATIONS, SCALINGS, Description, Layer, Rotary

Values = Mapping[str, Any]
WHOLE_NUMBER_KEYS = frozenset(
    (
        "hidden_size", "n_embed", "n_embd", "num_hidden_layers", "n_layer", "num_attention_heads", "n_head",
        "num_key_value_heads", "intermediate_size", "n_inner", "vocab_size", "n_positions", "head_dim", "mini_batch_size",
        "sliding_window", "max_window_layers", "sliding_window_pattern", "no_rope_layer_interval", "num_local_experts",
        "num_experts", "num_experts_per_tok", "moe_intermediate_size", "decoder_sparse_step", "n_routed_experts",
        "n_shared_experts", "n_group", "topk_group", "first_k_dense_replace", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim",
        "qk_rope_head_dim", "v_head_dim", "max_position_embeddings", "original_max_position_embeddings",
    )
)  # fmt: skip
"""Keys that families read as whole numbers."""
NUMBER_KEYS = frozenset(
    (
        "attention_dropout", "hidden_dropout", "residual_dropout", "embedding_dropout", "attn_pdrop", "embd_pdrop",
        "resid_pdrop", "rope_theta", "rotary_emb_base", "rotary_pct", "partial_rotary_factor", "rope_local_base_freq",
        "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "initializer_range", "ttt_base_lr",
        "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping", "embedding_multiplier",
        "residual_multiplier", "attention_multiplier", "logits_scaling", "router_aux_loss_coef", "aux_loss_alpha",
        "routed_scaling_factor",
    )
)  # fmt: skip
"""Keys that families read as numbers."""
TABLES = ("rope_parameters", "rope_scaling")
LISTS = ("layer_types", "no_rope_layers", "mlp_only_layers")
MAX_WHOLE_NUMBER = 2**40
LAYER_KEYS = ("num_hidden_layers", "n_layer")
MAX_LAYERS = 100_000  # layers of a model: a description has an entry for each


def problem_of(key: str, value: object) -> str:
    """Return what is wrong with the type of a key's value; empty if nothing is."""
    if value is None:
        return ""
    if key in WHOLE_NUMBER_KEYS and not (type(value) is int and 0 <= value < MAX_WHOLE_NUMBER):
        return f"{key} is {_shown(value)}; expected a whole number"
    if key in LAYER_KEYS and cast(int, value) > MAX_LAYERS:
        return f"{key} is {_shown(value)}; expected at most {MAX_LAYERS:,} layers"
    if key in NUMBER_KEYS and not is_real(value):
        return f"{key} is {_shown(value)}; expected a number"
    if key in TABLES and not isinstance(value, dict):
        return "rope_parameters and rope_scaling must be tables"
    return f"{key} is not a list" if key in LISTS and not isinstance(value, list) else ""


def is_real(value: object) -> bool:
    """Return whether a value of a config.json is a number that float32 holds: neither NaN nor one of 400 digits."""
    return type(value) in (int, float) and 0 <= abs(cast(float, value)) < 1e30


def _shown(value: object) -> str:
    return repr(value if not isinstance(value, int) or abs(value) < MAX_WHOLE_NUMBER else "a huge number")[:60]


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
    own = values.get(section)
    values = cast(dict[str, Any], own) if own and isinstance(own, dict) else values
    lengths = {key: config[key] for key in ("max_position_embeddings", "original_max_position_embeddings") if config.get(key)}

    def stated(keys: tuple[str, str], default: float) -> float:
        return next((float(each[key]) for each in (values, config) for key in keys if each.get(key)), default)

    share, base = stated(("partial_rotary_factor", "rotary_pct"), fraction), stated(("rope_theta", "rotary_emb_base"), theta)
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
        "hidden": first_of(config, "hidden_size"), "heads": heads,
        "kv_heads": first_of(config, "num_key_value_heads", default=kv_heads or heads), "head_dim": size,
        "ffn": first_of(config, "intermediate_size"), "vocab": first_of(config, "vocab_size"),
        "tied": bool(config.get("tie_word_embeddings", tied)), "eps": number_of(config, "rms_norm_eps", 1e-6),
        "activation": activation_of(config, "hidden_act"),
    }  # fmt: skip
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
            return f"rope_type {rotary.kind[:60]!r} is not supported; the trainer has {', '.join(SCALINGS)}"
        if not is_real(rotary.theta) or rotary.theta <= 0:
            return "rope_theta of its rotary positions is missing or not a number above zero"
        wrong = next((key for key in SCALINGS[rotary.kind] if not _positive(rotary.scaling.get(key))), "")
        if wrong:
            return f"{wrong} of its rotary positions ({rotary.kind}) is missing or not a number above zero"
    return ""


def _positive(value: object) -> bool:
    """Return whether a value is a number above zero, or a list of such numbers."""
    values = cast("list[object]", value) if isinstance(value, list) else [value]
    return bool(values) and all(is_real(each) and cast(float, each) > 0 for each in values)
