"""State-space models and hybrids: Mamba-2, and the Mamba-2 and attention hybrids Bamba and Granite 4."""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from meshwise.errors import UserError
from meshwise.models.architecture import Architecture, Metadata, TensorNames, rename
from meshwise.models.config import Config
from meshwise.models.families.blocks import Block, Body, Decoder, assemble, attention, experts, mlp
from meshwise.models.families.dense import llama
from meshwise.models.families.moe import expert_counts, expert_hyperparameters
from meshwise.models.op import Op, linear, norm, vector


def read(config: Config) -> Body:
    return READERS[config.model_type](config)


@dataclass(frozen=True)
class Mamba:
    """The sizes of one Mamba-2 mixer."""

    inner: int
    heads: int
    head_dim: int
    groups: int
    state: int
    kernel: int
    chunk: int
    bias: bool
    conv_bias: bool

    def check(self, config: Config) -> "Mamba":
        """Refuse sizes that contradict each other."""
        if self.heads * self.head_dim != self.inner:
            words = f"{self.heads} heads of {self.head_dim} do not make up the inner width {self.inner} (expand x hidden_size)"
            raise UserError(f"{config.where}: {words}")
        config.require_multiple(self.heads, self.groups, "the number of heads must be a multiple of the number of groups")
        return self


def mixer(hidden: int, s: Mamba) -> Block:
    """Return Mamba-2's block: an input projection, a short convolution, the state-space scan, a gated norm, an output projection.

    The scan is counted as the chunked matrix products that run (arXiv:2405.21060, section 6): C B' within a chunk, its product
    with X, the state after each chunk, and the contribution of the state before it.
    """
    conv = s.inner + 2 * s.groups * s.state

    def scan(name: str, m: int, n: int, k: int, state: int = 0) -> Op:
        return Op(name=f"ssm.{name}", part="ssm", kind="scan", m=m, n=n, k=k, shard="heads", state=state)

    return Block(
        "mamba",
        (
            linear("ssm.in", "ssm", s.inner + conv + s.heads, hidden, "column", bias=s.bias),
            Op(
                name="ssm.conv",
                part="ssm",
                kind="conv",
                n=conv,
                k=s.kernel,
                params=conv * (s.kernel + s.conv_bias),
                shard="column",
                state=conv * s.kernel,
            ),
            vector("ssm.dt_a_d", "ssm", 3 * s.heads, "heads"),
            scan("scores", s.groups, s.chunk, s.state),
            scan("within_chunk", s.heads, s.head_dim, s.chunk),
            scan("chunk_state", s.heads, s.head_dim, s.state, state=s.heads * s.head_dim * s.state),
            scan("from_state", s.heads, s.head_dim, s.state),
            norm("ssm.norm", s.inner),
            linear("ssm.out", "ssm", hidden, s.inner, "row", bias=s.bias),
        ),
    )


def mamba2(config: Config) -> Body:
    hidden = config.whole("hidden_size")
    s = Mamba(
        inner=config.whole("expand", default=2, most=64) * hidden,
        heads=config.whole("num_heads"),
        head_dim=config.whole("head_dim", default=64),
        groups=config.whole("n_groups", default=8),
        state=config.whole("state_size", default=128),
        kernel=config.whole("conv_kernel", default=4, most=4096),
        chunk=config.whole("chunk_size", default=256),
        bias=config.flag("use_bias", False),
        conv_bias=config.flag("use_conv_bias", True),
    ).check(config)
    d = Decoder(
        hidden=hidden,
        layers=config.layers("num_hidden_layers"),
        vocab=config.whole("vocab_size"),
        tied=config.flag("tie_word_embeddings", False),
        norms=1,
        position_kind="none",
    )
    return assemble(d, [mixer(hidden, s)] * d.layers, [None] * d.layers, extra=_hyperparameters(s))


def bamba(config: Config) -> Body:
    d = llama(config.with_defaults(num_key_value_heads=8))
    attending = config.indices("attn_layer_indices", d.layers) or frozenset()
    return _hybrid(config, d, [i in attending for i in range(d.layers)], mlp(d, d.ffn), ())


def granite_hybrid(config: Config) -> Body:
    """Read Granite 4: Mamba-2 or attention, then experts and a shared feed-forward that every token uses."""
    config = config.with_defaults(num_local_experts=8)
    rotary = config.values.get("position_embedding_type") == "rope"
    d = replace(llama(config), ffn_bias=False, position_kind="rotary" if rotary else "none")
    key = "layer_types" if config.values.get("layer_types") is not None else "layers_block_type"
    kinds = config.words(key, d.layers, ("mamba", "linear_attention", "attention", "full_attention"))
    shared = config.whole("shared_intermediate_size", default=1024)
    full = [kind.endswith("attention") and kind != "linear_attention" for kind in kinds or ("mamba",) * d.layers]
    if config.values["num_local_experts"] == 0:
        return _hybrid(config, d, full, mlp(d, shared), ())
    number, active = expert_counts(config, "num_local_experts")
    moe = experts(d, number, active, d.ffn, shared=shared)
    return _hybrid(config, d, full, moe, expert_hyperparameters(number, active, d.ffn, shared))


def _hybrid(config: Config, d: Decoder, full: list[bool], ffw: Block, extra: tuple[tuple[str, int], ...]) -> Body:
    """Assemble attention in the layers where `full` holds and Mamba-2 in the others, from the keys that hybrids share."""
    inner = config.whole("mamba_expand", default=2, most=64) * d.hidden
    heads = config.whole("mamba_n_heads", default=128)
    auto = config.values.get("mamba_d_head", "auto") == "auto"
    s = Mamba(
        inner=inner,
        heads=heads,
        head_dim=inner // heads if auto else config.whole("mamba_d_head"),
        groups=config.whole("mamba_n_groups", default=1),
        state=config.whole("mamba_d_state", default=256),
        kernel=config.whole("mamba_d_conv", default=4, most=4096),
        chunk=config.whole("mamba_chunk_size", default=256),
        bias=config.flag("mamba_proj_bias", False),
        conv_bias=config.flag("mamba_conv_bias", True),
    ).check(config)
    mamba, attend = mixer(d.hidden, s), attention(d)
    mixers = [attend if whole else mamba for whole in full]
    return assemble(d, mixers, [ffw] * d.layers, extra=(("attention layers", sum(full)), *extra, *_hyperparameters(s)))


def _hyperparameters(s: Mamba) -> tuple[tuple[str, int], ...]:
    return (("SSM inner width", s.inner), ("SSM heads", s.heads), ("SSM head size", s.head_dim), ("SSM state per head", s.state))


READERS: dict[str, Callable[[Config], Body]] = {"mamba2": mamba2, "bamba": bamba, "granitemoehybrid": granite_hybrid}
model_types = frozenset(READERS)
tensor_names: TensorNames = {
    "ssm.in": "ssm_in",
    "ssm.conv": "ssm_conv1d",
    "ssm.dt_a_d": ("ssm_dt.bias", "ssm_a", "ssm_d"),
    "ssm.norm": "ssm_norm",
    "ssm.out": "ssm_out",
}

_KEYS = {
    "ssm.conv_kernel": ("conv_kernel",),
    "ssm.state_size": ("state_size",),
    "ssm.time_step_rank": ("num_heads",),
    "ssm.group_count": ("n_groups",),
}


def _mamba2_keys(metadata: Metadata, tensors: AbstractSet[str]) -> dict[str, object]:
    keys = rename(metadata, _KEYS)
    inner, heads, hidden = (metadata.get(key) for key in ("ssm.inner_size", "ssm.time_step_rank", "embedding_length"))
    if isinstance(inner, int) and isinstance(heads, int) and isinstance(hidden, int) and heads > 0 and hidden > 0:
        keys |= {"head_dim": inner // heads, "expand": inner // hidden}
    return keys


gguf = (
    Architecture(name="mamba2", model_types=("mamba2",), config=_mamba2_keys),
    Architecture(name="granitehybrid", model_types=("granitemoehybrid", "bamba"), readable=False),
)
