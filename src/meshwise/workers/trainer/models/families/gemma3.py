"""The text model of Gemma 3 (arXiv:2503.19786): windows in five of six layers with rotary positions of their own, norms per head."""

from meshwise.workers.trainer.contract.models.description import Description, Layer, Rotary
from meshwise.workers.trainer.contract.models.keys import first_of, head_dim_of, number_of, rotary_of, windows_of
from meshwise.workers.trainer.contract.models.registry import Config, Family
from meshwise.workers.trainer.models.families.gemma2 import HEAD_DIM, STORAGE, gemma, unsupported


def describe(config: Config) -> Description:
    size, every = head_dim_of(config, HEAD_DIM), first_of(config, "sliding_window_pattern", default=6)
    windows = windows_of(config, first_of(config, "num_hidden_layers"), 4096, lambda i: (i + 1) % every != 0)
    whole = rotary_of(config, size, theta=1e6, section="full_attention")
    # earlier files give the windows' positions by one key; the scaling is for the other layers
    local = Rotary(dim=size, theta=number_of(config, "rope_local_base_freq", 10000.0))
    if config.get("rope_parameters"):
        local = rotary_of(config, size, section="sliding_attention")
    layers = tuple(Layer(rotary=local if window else whole, window=window) for window in windows)
    return gemma(config, (0.0, 0.0), qk_norm="head", layers=layers)


FAMILY = Family(
    model_types=("gemma3_text",), describe=describe, storage=STORAGE, unsupported=unsupported,
    transformers_class="Gemma3ForCausalLM",
)  # fmt: skip
