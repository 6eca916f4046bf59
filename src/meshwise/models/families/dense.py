"""Dense decoders: attention and one feed-forward in every layer. One short function per variant of config.json."""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import replace

from meshwise.models.architecture import Architecture, Metadata
from meshwise.models.config import Config
from meshwise.models.families.blocks import Body, Decoder, assemble, attentions, mlp


def read(config: Config) -> Body:
    d = READERS[config.model_type](config)
    return assemble(d, attentions(d), [mlp(d, d.ffn)] * d.layers)


def llama_like(config: Config, *, kv_heads: int | None = None, head_dim: int | None = None, heads: int | None = None) -> Decoder:
    """Read the sizes under Llama's key names, with the defaults that published files of other families rely on."""
    n_heads = config.whole("num_attention_heads", default=heads)
    hidden = config.whole("hidden_size")
    kv = config.whole("num_key_value_heads", default=kv_heads or n_heads)
    config.require_multiple(n_heads, kv, "num_attention_heads must be a multiple of num_key_value_heads")
    if head_dim is None and config.values.get("head_dim") is None:
        config.require_multiple(hidden, n_heads, "hidden_size must be a multiple of num_attention_heads")
    return Decoder(
        hidden=hidden,
        layers=config.layers("num_hidden_layers"),
        vocab=config.whole("vocab_size"),
        context=config.whole("max_position_embeddings", default=2048),
        heads=n_heads,
        kv_heads=kv,
        head_dim=config.whole("head_dim", default=head_dim or hidden // n_heads),
        ffn=config.whole("intermediate_size"),
        tied=config.flag("tie_word_embeddings", False),
    )


def windows(config: Config, layers: int, sliding: Callable[[int], bool]) -> tuple[int, ...]:
    """Return the window of each layer: from layer_types if the file has it, else by the family's rule."""
    window = config.whole("sliding_window", default=0, least=0)
    kinds = config.words("layer_types", layers, ("sliding_attention", "full_attention"))
    if kinds is not None:
        return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
    return tuple(window if sliding(i) else 0 for i in range(layers))


def alternating(config: Config, layers: int, window: int) -> tuple[int, ...]:
    """Return windows in every other layer, starting with the first; `window` is the default size."""
    return windows(config.with_defaults(sliding_window=window), layers, lambda i: i % 2 == 0)


def llama(config: Config) -> Decoder:
    bias = config.flag("attention_bias", False)
    return replace(llama_like(config), qkv_bias=bias, out_bias=bias, ffn_bias=config.flag("mlp_bias", False))


def smollm3(config: Config) -> Decoder:
    return llama(config.with_defaults(num_key_value_heads=4, tie_word_embeddings=True))


def mistral(config: Config) -> Decoder:
    d = llama_like(config, kv_heads=8)
    return replace(d, windows=windows(config.with_defaults(sliding_window=4096), d.layers, lambda i: True))


def phi3(config: Config) -> Decoder:
    d = llama_like(config)
    return replace(d, windows=windows(config, d.layers, lambda i: True))


def qwen2(config: Config) -> Decoder:
    d = llama_like(config, kv_heads=32)
    return replace(d, qkv_bias=True, windows=qwen_windows(config, d.layers))


def qwen3(config: Config, *, kv_heads: int = 32) -> Decoder:
    d = llama_like(config, kv_heads=kv_heads, head_dim=128)
    bias = config.flag("attention_bias", False)
    return replace(d, qkv_bias=bias, out_bias=bias, qk_norm="head", windows=qwen_windows(config, d.layers))


def qwen_windows(config: Config, layers: int) -> tuple[int, ...]:
    """Return Qwen's windows. Every file states one, but it applies only from max_window_layers on, and only with use_sliding_window."""
    if not config.flag("use_sliding_window", False):
        return ()
    full = config.whole("max_window_layers", default=28, least=0)
    return windows(config, layers, lambda i: i >= full)


def gemma(config: Config) -> Decoder:
    d = llama_like(config, kv_heads=16, head_dim=256)
    bias = config.flag("attention_bias", False)
    return replace(d, qkv_bias=bias, out_bias=bias, tied=config.flag("tie_word_embeddings", True))


def gemma2(config: Config) -> Decoder:
    d = replace(llama_like(config, kv_heads=4, head_dim=256), tied=config.flag("tie_word_embeddings", True))
    bias = config.flag("attention_bias", False)
    return replace(d, qkv_bias=bias, out_bias=bias, norms=4, windows=alternating(config, d.layers, 4096))


def gemma3(config: Config) -> Decoder:
    # Published multimodal files omit some of these and rely on the library's defaults.
    config = config.with_defaults(vocab_size=262208, max_position_embeddings=131072, sliding_window=4096)
    d = llama_like(config, heads=8, kv_heads=4, head_dim=256)
    bias = config.flag("attention_bias", False)
    every = config.whole("sliding_window_pattern", default=6)
    return replace(
        d,
        tied=config.flag("tie_word_embeddings", True),
        qkv_bias=bias,
        out_bias=bias,
        norms=4,
        qk_norm="head",
        windows=windows(config, d.layers, lambda i: (i + 1) % every != 0),
    )


def olmo2(config: Config) -> Decoder:
    bias = config.flag("attention_bias", False)
    return replace(llama_like(config), qkv_bias=bias, out_bias=bias, qk_norm="all")


def glm4(config: Config) -> Decoder:
    return replace(llama_like(config, kv_heads=2, head_dim=128), qkv_bias=config.flag("attention_bias", True), norms=4)


def starcoder2(config: Config) -> Decoder:
    d = llama_like(config, kv_heads=2)
    bias = config.flag("use_bias", True)
    return replace(
        d,
        gated=False,
        qkv_bias=bias,
        out_bias=bias,
        ffn_bias=bias,
        norm_bias=True,
        tied=config.flag("tie_word_embeddings", True),
        windows=windows(config, d.layers, lambda i: True),
    )


def classic(config: Config, hidden: int, heads: int, layers: int, *, ffn: int, kv_heads: int = 0, context: int = 0) -> Decoder:
    """Return a decoder of GPT-2's generation: LayerNorm with a bias, biases everywhere, no gate, the head tied to the embedding."""
    config.require_multiple(hidden, heads, "the hidden size must be a multiple of the number of heads")
    return Decoder(
        hidden=hidden,
        layers=layers,
        vocab=config.whole("vocab_size"),
        context=context,
        heads=heads,
        kv_heads=kv_heads or heads,
        head_dim=hidden // heads,
        ffn=ffn,
        tied=config.flag("tie_word_embeddings", True),
        gated=False,
        qkv_bias=True,
        out_bias=True,
        ffn_bias=True,
        norm_bias=True,
    )


def gpt2(config: Config) -> Decoder:
    hidden = config.whole("n_embd", "hidden_size")
    positions = config.whole("n_positions", "n_ctx", default=1024)
    heads, layers = config.whole("n_head"), config.layers("n_layer")
    d = classic(config, hidden, heads, layers, ffn=config.whole("n_inner", default=4 * hidden), context=positions)
    return replace(d, positions=positions, position_kind="learned")


def gpt_neox(config: Config) -> Decoder:
    hidden, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    d = classic(
        config,
        hidden,
        heads,
        config.layers("num_hidden_layers"),
        ffn=config.whole("intermediate_size"),
        context=config.whole("max_position_embeddings", default=2048),
    )
    bias = config.flag("attention_bias", True)
    return replace(d, qkv_bias=bias, out_bias=bias, tied=config.flag("tie_word_embeddings", False))


def opt(config: Config) -> Decoder:
    hidden, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    context = config.whole("max_position_embeddings", default=2048)
    d = classic(config, hidden, heads, config.layers("num_hidden_layers"), ffn=config.whole("ffn_dim"), context=context)
    bias = config.flag("enable_bias", True)
    removed = config.flag("_remove_final_layer_norm", False)
    return replace(
        d,
        position_kind="learned",
        positions=context + 2,  # the table has two more rows for padding, as in fairseq
        embedded=config.whole("word_embed_proj_dim", default=hidden),
        qkv_bias=bias,
        out_bias=bias,
        ffn_bias=bias,
        affine=config.flag("layer_norm_elementwise_affine", True),
        final_norm=config.flag("do_layer_norm_before", True) and not removed,
    )


def falcon(config: Config) -> Decoder:
    hidden = config.whole("hidden_size", "n_embed")
    heads = config.whole("num_attention_heads", "n_head")
    new = config.flag("new_decoder_architecture", False)
    shared = 1 if config.flag("multi_query", True) else heads
    kv_heads = config.whole("num_kv_heads", "n_head_kv", default=heads) if new else shared
    ffn = config.whole("ffn_hidden_size", default=4 * hidden)
    context = config.whole("max_position_embeddings", default=2048)
    d = classic(config, hidden, heads, config.layers("num_hidden_layers", "n_layer"), ffn=ffn, kv_heads=kv_heads, context=context)
    bias, parallel = config.flag("bias", False), config.flag("parallel_attn", True)
    # Attention and feed-forward may share one norm if they run in parallel.
    norms = config.whole("num_ln_in_parallel_attn", default=2 if new else 1, most=2) if parallel else 2
    kind = "alibi" if config.flag("alibi", False) else "rotary"
    return replace(d, qkv_bias=bias, out_bias=bias, ffn_bias=bias, norms=norms, position_kind=kind)


def bloom(config: Config) -> Decoder:
    hidden = config.whole("hidden_size", "n_embed")
    heads = config.whole("n_head", "num_attention_heads")
    layers = config.layers("n_layer", "num_hidden_layers")
    context = config.whole("seq_length", default=2048)  # ALiBi has no limit; this is the training length
    d = classic(config, hidden, heads, layers, ffn=4 * hidden, context=context)
    return replace(d, embedding_norm=True, position_kind="alibi")


def mpt(config: Config) -> Decoder:
    hidden, heads = config.whole("d_model", "hidden_size"), config.whole("n_heads", "num_attention_heads")
    ffn = config.whole("expansion_ratio", default=4, most=64) * hidden
    layers, context = config.layers("n_layers", "num_hidden_layers"), config.whole("max_seq_len", default=2048)
    d = classic(config, hidden, heads, layers, ffn=ffn, context=context)
    return replace(d, qkv_bias=False, out_bias=False, ffn_bias=False, norm_bias=False, position_kind="alibi")


READERS: dict[str, Callable[[Config], Decoder]] = {
    "llama": llama,
    "mistral": mistral,
    "ministral": mistral,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "gemma": gemma,
    "gemma2": gemma2,
    "gemma3_text": gemma3,
    "phi3": phi3,
    "gpt2": gpt2,
    "gpt_neox": gpt_neox,
    "opt": opt,
    "falcon": falcon,
    "bloom": bloom,
    "olmo2": olmo2,
    "starcoder2": starcoder2,
    "mpt": mpt,
    "granite": llama,
    "glm4": glm4,
    "smollm3": smollm3,
}
model_types = frozenset(READERS)


def _falcon_keys(metadata: Metadata, tensors: AbstractSet[str]) -> dict[str, object]:
    new = "blk.0.attn_norm_2.weight" in tensors
    return {"new_decoder_architecture": new, "multi_query": metadata.get("attention.head_count_kv") == 1}


_GEMMA_NORMS = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
gguf = (
    Architecture(name="llama", model_types=("llama", "mistral", "ministral"), writable=True),
    Architecture(name="qwen2", model_types=("qwen2",), writable=True),
    Architecture(name="qwen3", model_types=("qwen3",), writable=True),
    Architecture(name="gemma", model_types=("gemma",), writable=True),
    Architecture(name="gemma2", model_types=("gemma2",), norms=_GEMMA_NORMS, writable=True),
    Architecture(name="gemma3", model_types=("gemma3_text",), norms=_GEMMA_NORMS, writable=True),
    Architecture(name="phi3", model_types=("phi3",), fused_qkv=True, fused_gate=True),
    Architecture(name="gpt2", model_types=("gpt2",), fused_qkv=True),
    Architecture(name="gptneox", model_types=("gpt_neox",), fused_qkv=True),
    Architecture(name="falcon", model_types=("falcon",), fused_qkv=True, norms=("attn_norm", "attn_norm_2"), config=_falcon_keys),
    Architecture(name="bloom", model_types=("bloom",), fused_qkv=True),
    Architecture(name="olmo2", model_types=("olmo2",), norms=("post_attention_norm", "post_ffw_norm"), writable=True),
    Architecture(name="starcoder2", model_types=("starcoder2",), writable=True),
    Architecture(name="mpt", model_types=("mpt",), fused_qkv=True),
    Architecture(name="granite", model_types=("granite",)),
    Architecture(name="smollm3", model_types=("smollm3",)),
)
