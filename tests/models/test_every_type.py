"""Every type of the installed transformers is counted as transformers builds it, or refused with a reason. One process, no weights."""

from typing import Any

import pytest

pytest.importorskip("transformers", reason="the oracle of every count, and not installed")

from meshwise.errors import UserError
from meshwise.models.families.description import Types, describe
from meshwise.models.model import Model, build
from support.every import check_every
from support.every_type import (
    CAUSAL,
    IMAGE_TEXT,
    LAYERS,
    by_layer,
    cached_elements,
    language_parameters,
    parameters,
    reference,
    small_nested,
    small_values,
)

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.slow]

TOKENS = 40
OTHERWISE = {
    "longcat_flash": "transformers also allocates the gate and up weights of the zero experts, which no checkpoint holds"
}
"""Types that are counted as they are published, and not as transformers allocates them."""
ELSEWHERE = {"zamba", "zamba2", "gpt_neox_japanese", "hrm_text", "xlm"}
"""Types whose shared weights or lists of modules transformers keeps under other layers than those that use them."""


def within(kind: str) -> bool:
    """Return whether a type has a language model within."""
    return "text" in describe(kind).words


def built(values: dict[str, Any], **how: Any) -> Any:
    """Return transformers' model, or None where it cannot build one: a missing library, or a default that contradicts itself."""
    try:
        return reference(values, **how)
    except Exception:
        return None


def ours_by_layer(model: Model) -> list[int]:
    per_block = {
        name: sum(op.params * op.count for op in ops) // times
        for name, ops in model.blocks.items()
        if (times := model.times[name])
    }
    return [sum(per_block[block] for block in layer) for layer in model.layers]


def test_every_causal_type_has_a_file_that_describes_or_refuses_it() -> None:
    def check(kind: str) -> None:
        assert kind in Types()

    check_every(check, ((kind,) for kind in (*CAUSAL, *IMAGE_TEXT)))


@pytest.mark.slow
def test_every_causal_type_has_the_parameters_that_transformers_builds() -> None:
    compared: list[str] = []

    def check(kind: str) -> None:
        values = small_values(kind)
        theirs = built(values)
        ours = build(values, kind, "")
        if theirs is not None:
            compared.append(kind)
            assert ours.params == parameters(theirs)
            if kind not in ELSEWHERE and len(by_layer(theirs)) == len(ours.layers):
                assert ours_by_layer(ours) == by_layer(theirs)

    left_out = {"git", "phi4_multimodal", *OTHERWISE}  # the first two have towers beside the language model
    kinds = [kind for kind in CAUSAL if kind not in left_out and not describe(kind).refusal and not within(kind)]
    check_every(check, ((kind,) for kind in kinds))
    assert len(compared) >= 155  # the others cannot be built from their own defaults


ONCE = {
    "cpmant": "transformers also caches the tokens of its prompt",
    "deepseek_v4": "transformers keeps keys and values apart, which are the same, and tokens that are not yet compressed",
    "minimax": "transformers keeps the state of its linear attention outside the layers of the cache",
}
"""Types whose cache is counted as an engine needs it, and not as transformers keeps it."""


@pytest.mark.slow
def test_every_causal_type_keeps_the_cache_that_transformers_fills() -> None:
    """After 40 tokens, in elements. Types that transformers cannot run without memory are left out."""
    checked: list[str] = []

    def check(kind: str) -> None:
        values = small_values(kind)
        try:
            kept = cached_elements(reference(values), TOKENS)
        except Exception:
            return
        if kept is not None:
            checked.append(kind)
            model = build(values, kind, "")
            # Between two steps transformers keeps one token less than the window, since the next token brings itself along.
            windowed = sum(op.count * op.cache for op in model.ops if 0 < op.window < TOKENS)
            assert model.kv_bytes(TOKENS, 1) + model.state_bytes(1) == kept + windowed

    check_every(check, ((kind,) for kind in CAUSAL if not describe(kind).refusal and not within(kind) and kind not in ONCE))
    assert len(checked) >= 110


def test_a_type_that_is_not_counted_is_refused_with_its_reason() -> None:
    def check(kind: str) -> None:
        with pytest.raises(UserError, match="is not counted: "):
            build({"model_type": kind}, kind, "")

    check_every(check, ((kind,) for kind in Types() if describe(kind).refusal))


def test_zero_experts_of_longcat_have_no_weights() -> None:
    values = small_values("longcat_flash")
    ours, theirs = build(values, "", ""), parameters(reference(values))
    zero = values["zero_expert_num"] * 2 * values["expert_ffn_hidden_size"] * values["hidden_size"]
    assert theirs - ours.params == zero * values["num_layers"]


@pytest.mark.slow
def test_every_image_text_type_has_the_language_model_that_transformers_builds() -> None:
    """Where its towers need a library that is not installed, the language model is built alone."""
    compared: list[str] = []

    def check(kind: str) -> None:
        values = small_nested(kind)
        whole = built(values, image_text=True)
        alone = built(values.get("text_config", {})) if whole is None else None
        if whole is not None or alone is not None:
            compared.append(kind)
            theirs = parameters(alone) if whole is None else language_parameters(whole)
            assert build(values, kind, "").params == theirs

    refused = {kind for kind in IMAGE_TEXT if describe(kind).refusal}
    assert refused == {"evolla", "florence2", "pi0", "t5gemma2", "udop", "vision-encoder-decoder"}
    check_every(check, ((kind,) for kind in IMAGE_TEXT if kind not in refused))
    assert len(compared) == len(IMAGE_TEXT) - len(refused)


TOWERS = [
    ("gemma3", "vision_tower."),
    ("llava", "vision_tower."),
    ("mistral3", "vision_tower."),
    ("qwen2_vl", "visual."),
    ("qwen2_5_vl", "visual."),
    ("qwen3_vl", "visual."),
    ("qwen3_vl_moe", "visual."),
    ("qwen3_5", "visual."),
    ("qwen3_5_moe", "visual."),
    ("paligemma", "vision_tower."),
    ("deepseek_vl", "vision_model."),
]


def test_a_tower_for_pictures_has_the_parameters_that_transformers_builds() -> None:
    def check(kind: str, part: str) -> None:
        values = small_nested(kind)
        theirs = sum(weight.numel() for name, weight in reference(values, image_text=True).named_parameters() if part in name)
        assert [(tower.name, tower.params) for tower in build(values, kind, "").towers] == [("vision_config", theirs)]

    check_every(check, TOWERS)


def variants(kind: str) -> list[tuple[str, dict[str, Any]]]:
    """Return configs that each differ from the small one in one key: a flag turned over, a number doubled."""
    values = small_values(kind)
    sizes = describe(kind).tables
    values |= {key: min(values[key], 4) for key in LAYERS if type(values.get(key)) is int and not lists_of_layers(values)}
    changed: list[tuple[str, dict[str, Any]]] = []
    for key in sorted({*sizes["sizes"], *sizes["defaults"]} & values.keys()):
        value = values[key]
        if isinstance(value, bool):
            changed.append((key, values | {key: not value}))
        elif isinstance(value, int) and value > 0 and key not in LAYERS:
            changed.append((key, values | {key: 2 * value}))
    return changed


def lists_of_layers(values: dict[str, Any]) -> bool:
    return any(isinstance(value, list) for value in values.values())


def counted_or_impossible(values: dict[str, Any]) -> Model | None:
    """Return the model; None for sizes that transformers allocates, but cannot run."""
    try:
        return build(values, "", "")
    except UserError as error:
        if "must be a multiple of" in str(error) or "'num_experts_per_tok' is" in str(error):
            return None
        raise


@pytest.mark.slow
def test_an_option_of_a_type_changes_its_parameters_as_it_does_in_transformers() -> None:
    def check(kind: str) -> None:
        for key, values in variants(kind):
            theirs = built(values)
            if theirs is None:
                continue
            ours = counted_or_impossible(values)
            if ours is None:
                continue
            assert ours.params == parameters(theirs), (key, values[key])

    left_out = {"git", "phi4_multimodal", *OTHERWISE}
    kinds = [kind for kind in CAUSAL if kind not in left_out and not describe(kind).refusal and not within(kind)]
    check_every(check, ((kind,) for kind in kinds))
