"""One operation of a model: FLOPs, keys and cache must agree with counting them one token at a time."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.models.op import Op, linear, norm, vector

ATTENTION = Op(name="attention", part="attention", kind="attention", n=128, k=128, m=32)
sequences = st.integers(1, 300)
windows = st.integers(0, 400)


def attention(window: int = 0, chunked: bool = False) -> Op:
    return replace(ATTENTION, window=window, chunked=chunked)


def seen_from(position: int, window: int, chunked: bool) -> int:
    """How many keys the token at `position` looks at, itself included."""
    back = position + 1
    if not window:
        return back
    return position % window + 1 if chunked else min(back, window)


@given(sequences, windows, st.booleans())
def test_keys_are_the_mean_over_all_positions(seq: int, window: int, chunked: bool) -> None:
    by_hand = sum(seen_from(position, window, chunked) for position in range(seq)) / seq
    assert attention(window, chunked).keys(seq) == pytest.approx(by_hand, rel=1e-12)


@pytest.mark.parametrize(
    ("window", "chunked", "keys"),
    [
        (0, False, 2.5),  # (1 + 2 + 3 + 4) / 4
        (2, False, 1.75),  # (1 + 2 + 2 + 2) / 4
        (3, True, 1.75),  # (1 + 2 + 3 + 1) / 4
        (9, False, 2.5),
        (9, True, 2.5),
    ],
)
def test_four_tokens_counted_by_hand(window: int, chunked: bool, keys: float) -> None:
    assert attention(window, chunked).keys(4) == keys


@given(sequences, windows, st.booleans())
def test_a_causal_mask_never_adds_work(seq: int, window: int, chunked: bool) -> None:
    op = attention(window, chunked)
    assert 1 <= op.keys(seq) <= op.keys(seq, causal=False) == seq
    assert op.flops(seq) <= op.flops(seq, causal=False)


@given(sequences, st.integers(1, 400))
def test_a_chunk_never_sees_more_than_a_window_of_its_size(seq: int, window: int) -> None:
    assert attention(window, chunked=True).keys(seq) <= attention(window).keys(seq) * (1 + 1e-12)


@given(sequences, st.integers(1, 400))
def test_a_longer_sequence_never_lowers_the_keys_of_a_token(seq: int, window: int) -> None:
    assert attention(window).keys(seq) <= attention(window).keys(seq + 1) <= window


def test_attention_multiplies_each_query_by_its_keys_and_each_weight_by_its_values() -> None:
    # Megatron-LM's count, arXiv:2104.04473 appendix: 4 s h per token and layer where nothing is masked; h = 32 heads x 128.
    assert ATTENTION.flops(2048, causal=False) == 4 * 2048 * 4096


def test_a_value_may_be_narrower_than_a_key() -> None:
    # DeepSeek-V3: 128 heads, keys of 128 + 64, values of 128; 2 x 128 x (192 + 128) per key
    op = replace(ATTENTION, m=128, k=192, n=128)
    assert op.flops(1000, causal=False) == 2 * 128 * (192 + 128) * 1000


@given(st.sampled_from(["matmul", "scan", "conv"]), st.integers(1, 10**5), st.integers(1, 10**5), st.integers(1, 200), sequences)
def test_a_matrix_product_is_two_flops_per_weight_at_any_length(kind: str, n: int, k: int, count: int, seq: int) -> None:
    op = Op(name="w", part="ffw", kind=kind, n=n, k=k, count=count)  # type: ignore[arg-type]
    assert op.flops(seq) == op.flops(seq, causal=False) == 2 * n * k * count


@given(st.sampled_from(["matmul", "attention"]), st.integers(2, 100), sequences)
def test_flops_grow_with_the_number_of_instances_and_rows(kind: str, times: int, seq: int) -> None:
    op = Op(name="w", part="ffw", kind=kind, n=64, k=32)  # type: ignore[arg-type]
    assert replace(op, count=times).flops(seq) == pytest.approx(times * op.flops(seq))
    assert replace(op, m=times).flops(seq) == pytest.approx(times * op.flops(seq))


def test_an_expert_works_on_its_share_of_the_tokens() -> None:
    # Mixtral: 2 of 8 experts per token, so all 8 together cost what 2 dense ones do.
    one = linear("up", "experts", n=14336, k=4096, shard="column")
    assert replace(one, m=2 / 8, count=8, expert=True).flops(1) == 2 * one.flops(1)


@pytest.mark.parametrize("kind", ["norm", "lookup", "vector"])
def test_only_matrix_products_have_flops(kind: str) -> None:
    assert Op(name="w", part="norms", kind=kind, n=4096, k=4096).flops(2048) == 0  # type: ignore[arg-type]


@given(st.integers(0, 5000), windows, st.integers(1, 9), st.integers(0, 99))
def test_the_cache_grows_with_the_context_up_to_the_window(context: int, window: int, count: int, state: int) -> None:
    op = replace(attention(window), cache=256, state=state, count=count)
    kept = min(context, window) if window else context
    assert op.cached(context) == count * (256 * kept + state)


def test_a_linear_layer_has_a_weight_per_input_and_output_and_a_bias_per_output() -> None:
    assert linear("q", "attention", n=3, k=5, shard="column").params == 15
    assert linear("q", "attention", n=3, k=5, shard="column", bias=True).params == 18


def test_a_norm_has_a_gain_and_maybe_a_bias() -> None:
    assert norm("n", 4096).params == 4096
    assert norm("n", 4096, bias=True).params == 8192
    assert norm("n", 128, copies=32).params == 4096


def test_a_vector_has_its_size() -> None:
    assert vector("a", "ssm", 24).params == 24


@given(st.integers(1, 300), st.integers(0, 40), st.integers(1, 9))
def test_keys_that_are_selected_or_shared_are_those_of_a_loop(seq: int, selected: int, every: int) -> None:
    """A key of several tokens is complete with the last of them; a token attends to at most `selected` complete keys."""
    op = Op(name="", part="attention", kind="attention", n=1, k=1, cache=1, selected=selected, every=every)
    seen = [min((i + 1) // every, selected or seq) for i in range(seq)]
    assert op.keys(seq) == pytest.approx(sum(seen) / seq)
    assert op.cached(seq) == seq // every
