"""A serving question is looked up: the format of the weights."""

import pytest

from meshwise.plan.ask import ServeAsk
from meshwise.plan.serve.lookup import question


@pytest.mark.parametrize(
    ("model", "fmt"),
    [
        ("deepseek-v3", "fp8"),
        ("gpt-oss-120b", "mxfp4"),
        ("kimi-k2-thinking", "int4-g32"),
        ("llama-3.3-70b", "bf16"),
        ("deepseek-v3:bf16", "bf16"),
        ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "fp8"),
        ("Qwen/Qwen3-32B-AWQ", "awq"),
    ],
)
def test_without_a_format_weights_are_served_as_they_are_published(model: str, fmt: str) -> None:
    assert question(ServeAsk(model=model, on="8xh200-sxm", engine="vllm")).weights.format == fmt


def test_a_gguf_file_name_states_its_format() -> None:
    q = question(ServeAsk(model="GLM-4.6-UD-Q4_K_XL-00001-of-00005.gguf", on="8xh200-sxm"))
    assert (q.model.name, q.engine.name, q.weights.format) == ("glm-4.6", "llama.cpp", "Q4_K_M")


def test_an_engine_that_does_not_run_the_published_format_takes_its_own_default() -> None:
    assert question(ServeAsk(model="deepseek-v3", on="8xh200-sxm", engine="llama.cpp")).weights.format == "Q4_K_M"
