"""vllm serve for published weights, and for checkpoints in another format."""

import pytest

from meshwise.cost.serve.layouts import ServeLayout
from meshwise.programs.serve import vllm
from support.serve_questions import question


def test_vllm_reads_a_checkpoint_of_a_format_that_it_cannot_make() -> None:
    layout = ServeLayout(split="tensor", cards=(0, 1), tp=2)
    (made,) = vllm.lines(question("llama-3.3-70b:fp8", "8xh100-sxm"), layout)
    (own,) = vllm.lines(question("llama-3.3-70b:gptq", "8xh100-sxm"), layout)
    assert made.startswith("vllm serve meta-llama/Llama-3.3-70B-Instruct ")
    assert own.startswith("vllm serve path/to/llama-3.3-70b-gptq ")


@pytest.mark.parametrize(
    ("name", "served"),
    [
        ("Qwen/Qwen2.5-Coder-32B-Instruct", "Qwen/Qwen2.5-Coder-32B-Instruct"),
        ("qwen2.5-coder:32b", "Qwen/Qwen2.5-Coder-32B"),
        ("qwen3-coder:30b", "Qwen/Qwen3-Coder-30B-A3B-Instruct"),
        ("unsloth/Qwen3-30B-A3B-Instruct-2507-GGUF", "Qwen/Qwen3-30B-A3B-Instruct-2507"),
        ("qwen2.5-32b", "Qwen/Qwen2.5-32B"),
    ],
)
def test_the_model_that_was_asked_for_is_served_and_not_another_of_its_size(name: str, served: str) -> None:
    (line,) = vllm.lines(question(name, "1xh100-sxm", engine="vllm"), ServeLayout(split="tensor", cards=(0,), tp=1))
    assert line.startswith(f"vllm serve {served} ")
