"""vllm serve for published weights, and for checkpoints in another format."""

from meshwise.cost.serve.layouts import ServeLayout
from meshwise.programs.serve import vllm
from support.serve_questions import question


def test_vllm_reads_a_checkpoint_of_a_format_that_it_cannot_make() -> None:
    layout = ServeLayout(split="tensor", cards=(0, 1), tp=2)
    (made,) = vllm.lines(question("llama-3.3-70b:fp8", "8xh100-sxm"), layout)
    (own,) = vllm.lines(question("llama-3.3-70b:gptq", "8xh100-sxm"), layout)
    assert made.startswith("vllm serve meta-llama/Llama-3.3-70B-Instruct ")
    assert own.startswith("vllm serve path/to/llama-3.3-70b-gptq ")
