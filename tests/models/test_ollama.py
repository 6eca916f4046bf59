"""Ollama tags: the preset and the format that each means, by its words alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.errors import UserError
from meshwise.models.find import from_ollama, presets
from meshwise.models.ollama import Tag, fitting, parse
from support.command import one_line
from support.every import check_every

TAGS = [  # names and tags of ollama.com/library, as remembered
    ("llama3.3:70b", "llama-3.3-70b", ""),
    ("llama3.1:8b", "llama-3.1-8b", ""),
    ("llama3.1:405b-instruct-q8_0", "llama-3.1-405b", "q8_0"),
    ("llama3.2:1b-instruct-fp16", "llama-3.2-1b", "fp16"),
    ("llama3:8b", "llama-3-8b", ""),
    ("llama2:7b-chat-q4_0", "llama-2-7b", "q4_0"),
    ("llama4:scout", "llama-4-scout", ""),
    ("qwen2.5:7b-instruct-q4_K_M", "qwen2.5-7b", "q4_k_m"),
    ("qwen2.5:0.5b", "qwen2.5-0.5b", ""),
    ("qwen3:8b", "qwen3-8b", ""),
    ("qwen3:30b", "qwen3-30b-a3b", ""),  # its active parameters are not in the tag
    ("qwen3:30b-a3b-q4_K_M", "qwen3-30b-a3b", "q4_k_m"),
    ("qwen3-next:80b", "qwen3-next-80b-a3b", ""),
    ("mistral:7b", "mistral-7b", ""),
    ("mistral:7b-instruct-v0.3-q4_K_M", "mistral-7b-v0.3", "q4_k_m"),
    ("mistral-nemo:12b", "mistral-nemo-12b", ""),
    ("mixtral:8x7b", "mixtral-8x7b", ""),
    ("mixtral:8x22b-instruct-v0.1-q4_0", "mixtral-8x22b", "q4_0"),
    ("phi3:mini", "phi-3-mini", ""),
    ("phi3:14b", "phi-3-medium", ""),  # by its 13.96 billion parameters
    ("phi4:14b", "phi-4", ""),
    ("gemma3:27b-it-qat", "gemma-3-27b", "q4_0"),
    ("gemma:7b", "gemma-7b", ""),
    ("gpt-oss:20b", "gpt-oss-20b", ""),
    ("deepseek-r1:671b", "deepseek-r1", ""),
    ("deepseek-v2:16b", "deepseek-v2-lite", ""),
    ("granite4:small-h", "granite-4-h-small", ""),
    ("smollm2:135m", "smollm2-135m", ""),
    ("codellama:34b", "codellama-34b", ""),
    ("LLAMA3.3:70B", "llama-3.3-70b", ""),
]

NO_PRESET = [
    ("deepseek-r1:9b", "no preset has that name and size; did you mean 'deepseek-r1'"),
    ("gemma:9b", "no preset has that name and size"),  # Gemma 2; gemma-7b has 8.5 billion parameters
    ("qwen:7b", "no preset has that name and size"),  # Qwen 1.5
    ("zzyx4:9b", "no preset has that name and size (write PRESET"),
    ("llama4:16x17b", "did you mean 'llama-4-scout' or 'llama-4-maverick'?"),
    ("llama3.2:latest", "it states no size; did you mean 'llama-3.2-1b', 'llama-3.2-3b' or "),
    ("bloom:18b", "several presets have that name and size; did you mean 'bloom-18b-h14336-l10-a64' or"),
]


def test_tags_of_the_library_are_presets() -> None:
    def check(tag: str, preset: str, fmt: str) -> None:
        assert from_ollama(tag) == (preset, fmt)

    check_every(check, TAGS)


def test_a_tag_without_a_preset_is_refused_with_the_nearest() -> None:
    def check(tag: str, words: str) -> None:
        with pytest.raises(UserError) as caught:
            from_ollama(tag)
        assert words in one_line(caught.value)

    check_every(check, NO_PRESET)


@pytest.mark.parametrize(
    "text", ["llama-3.3-70b", "llama-3.3-70b:q4_k_m", "m:zzz", "org/model:7b", "C:\\models\\x", "a:b:c", ":7b", "llama3:", ""]
)
def test_other_text_is_not_a_tag(text: str) -> None:
    assert from_ollama(text) is None


def test_the_parts_of_a_tag() -> None:
    assert parse("Qwen2.5:7b-instruct-q4_K_M") == Tag("qwen2.5", ("7b", "instruct"), "q4_k_m")
    assert (Tag("m", ("7b",), "").parameters, Tag("m", ("135m",), "").parameters) == (7e9, 135e6)
    assert (Tag("m", ("8x7b",), "").parameters, Tag("m", ("8x7b",), "").sized, Tag("m", ("mini",), "").sized) == (0, True, False)


def test_a_size_is_compared_with_parameters_only_where_the_preset_states_none() -> None:
    tag = Tag("m", ("7b",), "")
    assert fitting(tag, ["m-7b", "m-8b", "m-chat"], lambda preset: 7.2e9) == ["m-7b"]
    assert fitting(tag, ["m-8b", "m-chat"], lambda preset: 7.2e9) == ["m-chat"]
    assert fitting(tag, ["m-8b", "m-chat"], lambda preset: 8e9) == []
    assert fitting(tag, ["m-2-7b", "mm-7b"], lambda preset: 7e9) == []  # another version, another name


@given(st.text(max_size=30) | st.from_regex(r"(llama|qwen|phi)[\d.]*:[\w.-]{0,20}", fullmatch=True))
def test_any_text_is_a_preset_or_no_tag_or_one_line_of_error(text: str) -> None:
    try:
        found = from_ollama(text)
    except UserError as error:
        one_line(error)
    else:
        assert found is None or found[0] in presets()
