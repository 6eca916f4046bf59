"""The cache: bytes per layer for a context, as the engines allocate them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.catalogue.engines import find_runtime
from meshwise.cost.serve.memory.cache import CacheRequest, cache_type, layer_caches
from meshwise.errors import UserError
from meshwise.models.find import find_model
from support.command import one_line
from support.every import check_every
from support.serve_tables import MIB, model

LLAMA_CPP, VLLM = find_runtime("llama.cpp"), find_runtime("vllm")


def kept(name: str, context: int, kind: str = "f16", runtime: str = "llama.cpp", sequences: int = 1) -> list[float]:
    """Return MiB of cache per layer."""
    held = CacheRequest(context=context, key=kind, value=kind, sequences=sequences)
    return [cache.bytes / MIB for cache in layer_caches(model(name), find_runtime(runtime), held)]


def test_bytes_of_an_8b_at_8192_tokens_by_cache_type() -> None:
    """1,024 MiB in f16 (xiongjiedai_memory_buffers); the others by bits per element: q8_0 34 bytes for 32."""

    def check(kind: str, mib: int) -> None:
        assert sum(kept("llama-3-8b", 8192, kind)) == mib

    check_every(check, [("f16", 1024), ("bf16", 1024), ("q8_0", 544), ("q5_1", 384), ("q5_0", 352), ("q4_1", 320), ("q4_0", 288)])


def test_fp8_halves_the_cache_in_vllm() -> None:
    assert sum(kept("llama-3-8b", 8192, "fp8", "vllm")) == 512


def test_llama_cpp_pads_a_sequence_to_256_tokens_and_vllm_to_16() -> None:
    assert kept("llama-3-8b", 8000) == kept("llama-3-8b", 8192)
    assert kept("llama-3-8b", 8000, runtime="vllm") < kept("llama-3-8b", 8000)
    assert kept("llama-3-8b", 8001, runtime="vllm") == kept("llama-3-8b", 8016, runtime="vllm")


def test_a_latent_is_kept_once() -> None:
    """DeepSeek-V3 keeps 70,272 bytes per token (arXiv:2505.09343, Table 1)."""
    assert sum(kept("deepseek-v3", 16384)) == 70_272 * 16384 / MIB


def test_a_window_bounds_the_layers_that_have_one() -> None:
    """Gemma 3 27B: 62 layers, every sixth sees everything; 16 key heads of 128; windows of 1,024 and batches of 512."""
    found = kept("gemma-3-27b", 32768)
    local, whole = 1536 * 2 * 16 * 128 * 2 / MIB, 32768 * 2 * 16 * 128 * 2 / MIB
    assert found == [whole if (i + 1) % 6 == 0 else local for i in range(62)]
    assert kept("gemma-3-27b", 1024) == [1024 * 2 * 16 * 128 * 2 / MIB] * 62


def test_llama_cpp_does_not_use_mistrals_window_and_vllm_does() -> None:
    """Mistral 7B v0.1 has a window of 4,096 in every layer (its config.json)."""
    name = "mistral-7b"
    assert find_model(name).decoder.windows[0] == 4096
    assert kept(name, 32768)[0] == kept("llama-3-8b", 32768)[0]
    assert kept(name, 32768, runtime="vllm")[0] == (4096 + 2048) * 2 * 8 * 128 * 2 / MIB


def test_a_recurrent_state_does_not_grow() -> None:
    """Mamba-2 2.7B: 80 heads of 64 with states of 128, and three columns of a convolution of 5,376, in float32."""
    short, long = kept("mamba2-2.7b", 256), kept("mamba2-2.7b", 65536)
    assert short == long
    assert short[0] == (80 * 64 * 128 + 3 * 5376) * 4 / MIB


def test_every_sequence_has_its_own_cache() -> None:
    assert sum(kept("llama-3-8b", 4096, sequences=8)) == 8 * sum(kept("llama-3-8b", 4096))


@pytest.mark.parametrize(
    ("kind", "runtime", "words"),
    [
        ("q8_1", LLAMA_CPP, "llama.cpp has no KV type 'q8_1'; did you mean 'q8_0'?"),
        ("fp8", LLAMA_CPP, "llama.cpp has no KV type 'fp8'"),
        ("q4_0", VLLM, "vLLM has no KV type 'q4_0'"),
    ],
)
def test_a_type_that_an_engine_lacks_is_refused(kind: str, runtime, words: str) -> None:
    with pytest.raises(UserError) as caught:
        cache_type(kind, runtime)
    assert words in one_line(caught.value)


def test_a_cache_whose_heads_are_not_multiples_of_a_block_cannot_be_quantised() -> None:
    """Phi-3 mini has heads of 96; OPT 2.7B of 80."""
    assert sum(kept("phi-3-mini", 256, "q8_0")) > 0
    with pytest.raises(UserError, match="a KV type of q8_0 needs heads of a multiple of 32 elements; they have 80"):
        kept("opt-2.7b", 256, "q8_0")


def test_an_empty_cache_is_refused() -> None:
    with pytest.raises(UserError, match="at least one token"):
        kept("llama-3-8b", 0)


@given(st.integers(1, 200_000), st.integers(1, 200_000))
def test_more_context_never_takes_fewer_bytes(a: int, b: int) -> None:
    short, long = sorted((a, b))
    for name in ("gemma-3-4b", "qwen3-next-80b-a3b"):
        assert all(x <= y for x, y in zip(kept(name, short), kept(name, long), strict=True))
