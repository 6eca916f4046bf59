"""Shapes: a stack is evaluated like its models one by one, and no shape near a parameter count is missing."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwise.cost.layout import Layouts
from meshwise.cost.train.step import evaluate
from meshwise.errors import UserError
from meshwise.models.model import Model
from meshwise.plan.shapes.stack import (
    ASPECT,
    HEAD_SIZES,
    SIZE_TOLERANCE,
    WIDTH_STEP,
    Shapes,
    Stack,
    base_of,
    near,
    one_model,
    parse,
    shapes_of,
)
from support.command import one_line
from support.train_questions import CLUSTERS, FRAMEWORKS, block, found_model, question, rows

LIKE = ("bloom-176b", "llama-3-70b", "mistral-7b", "gpt2", "opt-13b", "qwen3-32b", "falcon-7b")


def shape(hidden: int, layers: int, heads: int, kv_heads: int, ffn: int) -> dict[str, int]:
    return {"hidden": hidden, "layers": layers, "heads": heads, "kv_heads": kv_heads, "ffn": ffn}


@st.composite
def shapes_like(draw: st.DrawFn, base: Model) -> dict[str, int]:
    heads = 8 * draw(st.integers(1, 8))
    size = 4 * draw(st.integers(8, 40))
    grouped = base.decoder.kv_heads != base.decoder.heads
    kv = next(n for n in (base.decoder.kv_heads, 8, 4, 1) if heads % n == 0) if grouped else heads
    return shape(heads * size, draw(st.integers(1, 12)), heads, kv, 64 * draw(st.integers(1, 200)))


# Counts.


@pytest.mark.parametrize(
    ("name", "text"), [("bloom-176b", "14336x70x112"), ("llama-3-70b", "8192x80x64x28672"), ("mistral-7b", "4096x32x32x14336")]
)
def test_the_shape_of_a_model_has_its_parameters_and_its_flops(name: str, text: str) -> None:
    """Models of the catalogue are checked against transformers in test_oracle."""
    model = found_model(name)
    base = base_of(model, 0)
    shapes = parse(base, (text,))
    assert one_model(base, shapes, 0).params == Stack(base, shapes).params[0] == model.params
    assert (
        one_model(base, shapes, 0).flops(1, 2048)
        == float(np.asarray(Stack(base, shapes).flops(1, 2048))[0])
        == model.flops(1, 2048)
    )
    assert one_model(base, shapes, 0).layers == model.layers


@pytest.mark.parametrize("like", LIKE)
@given(data=st.data())
@settings(max_examples=20)
def test_a_stack_counts_as_its_models_do(like: str, data: st.DataObject) -> None:
    base = base_of(found_model(like), data.draw(st.sampled_from((0, 1000, 250_880))))
    shapes = shapes_of(data.draw(st.lists(shapes_like(base), min_size=1, max_size=5)))
    stack = Stack(base, shapes)
    for i in range(len(shapes)):
        alone = one_model(base, shapes, i)
        assert stack.params[i] == alone.params
        assert np.asarray(stack.matmul_flops())[i] == alone.matmul_flops()
        assert np.asarray(stack.flops(1, 2048))[i] == alone.flops(1, 2048)
        assert alone.decoder.vocab == base.decoder.vocab


def test_another_vocabulary_changes_its_tables_alone() -> None:
    model = found_model("llama-3-70b")
    text = ("8192x80x64",)
    wide, narrow = (base_of(model, vocab) for vocab in (256_256, 128_256))
    found = Stack(wide, parse(wide, text)).params - Stack(narrow, parse(narrow, text)).params
    assert found.tolist() == [2 * 128_000 * 8192]  # untied: the embedding and the head


# Costs.


@pytest.mark.parametrize("framework", FRAMEWORKS)
@given(data=st.data())
@settings(max_examples=25)
def test_a_stack_costs_the_same_as_its_models_one_by_one(framework: str, data: st.DataObject) -> None:
    base = base_of(found_model(data.draw(st.sampled_from(LIKE))), 0)
    cluster, batch = data.draw(st.sampled_from(CLUSTERS)), data.draw(st.sampled_from((6, 48, 512)))
    shapes = shapes_of(data.draw(st.lists(shapes_like(base), min_size=1, max_size=4)))
    q = replace(question("llama-3-8b", cluster, framework, batch=batch), model=base)
    singles = [replace(q, model=one_model(base, shapes, i)) for i in range(len(shapes))]
    chosen = data.draw(st.lists(st.integers(0, len(shapes) - 1), min_size=1, max_size=6))
    layouts = [data.draw(rows(singles[i])) for i in chosen]
    together = evaluate(replace(q, model=Stack(base, shapes, np.array(chosen))), block(layouts))
    for row, (i, layout) in enumerate(zip(chosen, layouts, strict=True)):
        alone = evaluate(singles[i], block([layout]))
        for found, expected in ((together.time, alone.time), (together.memory, alone.memory)):
            assert {part: values[row] for part, values in found.items()} == pytest.approx(
                {part: values[0] for part, values in expected.items()}, rel=1e-12
            )


def test_rows_taken_from_a_stack_keep_their_shapes() -> None:
    base = base_of(found_model("bloom-560m"), 0)
    stack = Stack(base, shapes_of([shape(1024, 24, 16, 16, 4096), shape(2048, 24, 32, 32, 8192)]))
    assert stack.take(np.array([1, 1, 0])).params.tolist() == stack.params[[1, 1, 0]].tolist()
    assert stack.take(np.array([1])).take(np.array([0])).variant.tolist() == [1]


# Near a parameter count.


@given(st.sampled_from(("bloom-176b", "llama-3-70b", "gpt2")), st.floats(8.5, 12.5))
@settings(max_examples=30)
def test_shapes_near_a_count_meet_it_and_every_constraint(like: str, exponent: float) -> None:
    params = 10**exponent
    base = base_of(found_model(like), 32_000)
    found = near(base, params)
    d = base.decoder
    assert np.all(np.abs(Stack(base, found).params / params - 1) <= SIZE_TOLERANCE * (1 + 1e-12))
    assert np.all(found.hidden % WIDTH_STEP == 0)
    assert np.all(found.ffn % WIDTH_STEP == 0)
    assert np.all(found.hidden % found.heads == 0)
    assert np.all((found.hidden // found.heads >= HEAD_SIZES[0]) & (found.hidden // found.heads <= HEAD_SIZES[1]))
    assert np.all(found.hidden // found.heads % 8 == 0)
    assert np.all((found.hidden / found.layers >= ASPECT[0]) & (found.hidden / found.layers <= ASPECT[1]))
    assert np.all(found.kv_heads == (found.heads if d.kv_heads == d.heads else d.kv_heads))
    assert np.all(found.heads % found.kv_heads == 0)
    assert len(np.unique(np.stack([found.hidden, found.layers, found.heads, found.ffn]), axis=1).T) == len(found)


def test_no_shape_near_a_count_is_missing() -> None:
    """A loop over every width, number of layers and head size of a small model."""
    base, params = base_of(found_model("bloom-176b"), 32_000), 3e8
    found = near(base, params)
    have = set(zip(found.hidden.tolist(), found.layers.tolist(), found.heads.tolist(), found.ffn.tolist(), strict=True))
    expected: set[Any] = set()
    for hidden, size in itertools.product(range(WIDTH_STEP, 4096, WIDTH_STEP), range(HEAD_SIZES[0], HEAD_SIZES[1] + 1, 8)):
        if hidden % size:
            continue
        for ratio, layers in itertools.product((0.875, 0.9375, 1.0, 1.0625, 1.125), range(1, hidden // 64 + 1)):
            ffn = round(4 * hidden * ratio / WIDTH_STEP) * WIDTH_STEP
            # 4 h^2 of attention with its biases, 2 h f, two norms of a gain and a bias; the tied table and two more norms
            layer = 4 * hidden**2 + 4 * hidden + 2 * hidden * ffn + ffn + hidden + 4 * hidden
            total = layers * layer + 32_000 * hidden + 4 * hidden
            if abs(total / params - 1) <= SIZE_TOLERANCE and ASPECT[0] <= hidden / layers <= ASPECT[1]:
                expected.add((hidden, layers, hidden // size, ffn))
    assert have == expected
    assert len(have) > 50


def test_a_count_that_no_shape_meets_says_what_shapes_there_are() -> None:
    base = base_of(found_model("bloom-176b"), 250_880)
    with pytest.raises(UserError) as error:
        near(base, 2e7)  # the vocabulary alone has 32 M at the least width
    assert one_line(error.value) == (
        "no shape like bloom-176b has 2e+07 parameters: widths are multiples of 128, 64 to 256 per layer, and the vocabulary has 250,880"
    )


# Shapes that a user names.


def test_a_shape_by_name() -> None:
    base = base_of(found_model("bloom-176b"), 0)
    found = parse(base, ("14336x70x112", "13824 × 78 X 96 x 50000"))
    assert found.row(0) == shape(14336, 70, 112, 112, 4 * 14336)
    assert found.row(1) == shape(13824, 78, 96, 96, 50_000)
    llama = base_of(found_model("llama-3-70b"), 0)
    assert parse(llama, ("4096x32x32",)).row(0) == shape(4096, 32, 32, 8, 14336)  # 3.5 times, as 28672 is of 8192


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("14336x70", "is not a shape: expected hidden x layers x heads [x FFW width], such as 14336x70x112"),
        ("14336x70x112x5x6", "is not a shape"),
        ("", "is not a shape"),
        ("axbxc", "is not a shape"),
        ("-1x70x112", "is not a shape"),
        ("1e4x70x112", "is not a shape"),
        ("²x70x112", "is not a shape"),
        ("999999999x70x112", "is not a shape"),
        ("0x70x112", "must be from 1 to"),
        ("14336x0x112", "must be from 1 to"),
        ("14336x70x0", "must be from 1 to"),
        ("14336x70x112x0", "must be from 1 to"),
        ("14336x99999999x112", "must be from 1 to"),
        ("14336x70x100", "100 heads do not divide 14336"),
        ("112x70x14336", "must be from 1 to"),
    ],
)
def test_text_that_is_not_a_shape_is_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message.replace("[", r"\[")) as error:
        parse(base_of(found_model("bloom-176b"), 0), (text,))
    one_line(error.value)


def test_heads_that_do_not_share_the_kv_heads_are_refused() -> None:
    with pytest.raises(UserError, match="12 heads are not a multiple of the 8 KV heads of llama-3-70b"):
        parse(base_of(found_model("llama-3-70b"), 0), ("1536x12x12",))


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v3", "mamba2-130m", "gemma-2-2b", "gemma-3-1b", "ttt-linear-125m"])
def test_a_model_whose_layers_differ_or_are_not_dense_cannot_be_the_base(name: str) -> None:
    with pytest.raises(UserError, match="--like takes a dense model whose layers are all alike") as error:
        base_of(found_model(name), 0)
    assert one_line(error.value).endswith(f"not '{name}'")


def test_one_layout_for_every_shape_and_one_shape_for_every_layout() -> None:
    base = base_of(found_model("bloom-560m"), 0)
    q = replace(question("bloom-560m", "1x8xh100-sxm"), model=base)
    two = shapes_of([shape(1024, 24, 16, 16, 4096), shape(2048, 24, 16, 16, 8192)])
    both = evaluate(replace(q, model=Stack(base, two)), Layouts.of(dp_shard=np.array([8, 8]), zero=1)).step
    assert both[0] < both[1]
    same = evaluate(replace(q, model=Stack(base, two, np.array([0, 0]))), Layouts.of(dp_shard=np.array([8, 8]), zero=1)).step
    assert same[0] == same[1] == both[0]
    assert isinstance(two.take(np.array([0])), Shapes)
