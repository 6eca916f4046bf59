"""Names as people write them: ids of other publishers, repository folders and GGUF files are presets, with the format that they state."""

import pytest

from meshwise.errors import UserError
from meshwise.models.find import find_model, find_preset, from_words
from meshwise.models.formats import split_model_name
from meshwise.models.names import gguf_type
from support.every import check_every

NAMES = [
    ("Qwen/Qwen3-4B-Instruct-2507", "qwen3-4b", None),
    ("qwen/qwen3-4b-instruct-2507", "qwen3-4b", None),
    ("GLM-4.6", "glm-4.6", None),
    ("unsloth/GLM-4.6-GGUF", "glm-4.6", None),
    ("GLM-4.6-UD-Q4_K_XL-00001-of-00005.gguf", "glm-4.6", "Q4_K_M"),
    ("models/Qwen3-30B-A3B-Instruct-2507-UD-IQ2_XXS.gguf", "qwen3-30b-a3b", "IQ2_XXS"),
    ("gpt-oss-120b-mxfp4.gguf", "gpt-oss-120b", "MXFP4_MOE"),
    ("Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf", "llama-3.1-8b", "Q4_K_M"),
    ("bartowski/Meta-Llama-3.1-8B-Instruct-GGUF", "llama-3.1-8b", None),
    ("Qwen/Qwen3-8B-AWQ", "qwen3-8b", "awq"),
    ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "qwen2.5-7b", "gptq"),
    ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "llama-3.3-70b", "fp8"),
    ("nvidia/DeepSeek-V3.1-NVFP4", "deepseek-v3", "nvfp4"),
    ("mlx-community/Qwen3-8B-4bit", "qwen3-8b", None),
    ("moonshotai/Kimi-K2-Instruct-0905", "kimi-k2", None),
    ("llama3.3:70b", "llama-3.3-70b", None),
    ("qwen3:30b-a3b", "qwen3-30b-a3b", None),
    ("qwen3-coder:30b", "qwen3-30b-a3b", None),
    ("deepseek-r1:7b", "qwen2.5-7b", None),
    ("deepseek-r1:671b-q4_K_M", "deepseek-r1", "Q4_K_M"),
]


def test_a_name_with_more_words_is_a_preset_in_the_format_that_it_states() -> None:
    def check(name: str, preset: str, fmt: str | None) -> None:
        model, found = split_model_name(name)
        assert (find_model(model).name, found and found.name) == (preset, fmt)

    check_every(check, NAMES)


def test_a_name_that_is_not_a_presets_own_is_noted() -> None:
    assert find_model("unsloth/GLM-4.6-GGUF").notes == ("unsloth/GLM-4.6-GGUF is taken as the preset glm-4.6",)
    assert find_model("zai-org/GLM-4.6").notes == find_model("glm-4.6").notes == ()
    (note,) = find_model("GLM-4.6-Q8_0.gguf").notes
    assert note == "GLM-4.6-Q8_0.gguf is taken as the preset glm-4.6 (the file itself is not here)"


@pytest.mark.parametrize(
    "name", ["org/Llama-3-8B-but-longer", "GLM-4.6V-Flash", "nothing.gguf", "8b", "q4_k_m", "x", "", "-", "instruct"]
)
def test_words_that_change_a_model_are_not_dropped(name: str) -> None:
    assert from_words(name) is None


def test_a_suggestion_is_near_in_meaning() -> None:
    with pytest.raises(UserError, match=r"did you mean 'glm-4\.5-air'"):
        find_model("glm-4.5-airr")
    assert find_preset("glm-4.5-airr") is None


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("q4_k_m", ("Q4_K_M", False)),
        ("UD-Q4_K_XL", ("Q4_K_M", True)),
        ("Q8_K_XL", ("Q8_0", True)),
        ("iq4_xs", ("IQ4_XS", False)),
        ("mxfp4", ("MXFP4_MOE", False)),
        ("q9_k", None),
        ("quick", None),
        ("", None),
    ],
)
def test_a_word_of_a_file_name_is_a_file_type_or_none(word: str, found: tuple[str, bool] | None) -> None:
    assert gguf_type(word) == found
