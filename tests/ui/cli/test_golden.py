"""The answers of `plan` and `serve` that people read first, as files: tests/golden/{plan,serve}-{80,120}.txt.

When an answer is meant to change, write the files again and read the difference:

    MESHWISE_GOLDEN=write pytest tests/ui/cli/test_golden.py
    git diff tests/golden
"""

import os
from pathlib import Path

import pytest

from support.command import once

GOLDEN = Path(__file__).parents[2] / "golden"
BLOOM = "plan bloom-176b --on jean-zay:48 --batch 2048x2048 --framework megatron-deepspeed --tokens 366B"
QUESTIONS = {
    "plan": BLOOM,  # README's own
    "serve": "serve llama-3.3-70b:q4_k_m --on 4xrtx4060ti-16gb --context 16k",
}
MOST_LINES = 60
COMMANDS = ("reproduce: ", "  llama-server ", "  vllm", "  ollama ", "  CUDA_VISIBLE_DEVICES=")
"""How lines begin that a user copies, and that no terminal may break."""


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("verb", QUESTIONS)
def test_the_answer_is_the_one_people_know(verb: str, columns: int) -> None:
    done = once(*QUESTIONS[verb].split(), columns=columns)
    path = GOLDEN / f"{verb}-{columns}.txt"
    if os.environ.get("MESHWISE_GOLDEN") == "write":
        path.write_text(done.out, encoding="utf-8")
    assert (done.code, done.err) == (0, "")
    assert done.out == path.read_text(encoding="utf-8")
    assert len(done.out.splitlines()) <= MOST_LINES


SCREENS = {
    **QUESTIONS,
    "a small model": "plan llama-debug --on 8xh100-sxm --batch 64 --seq 512",
    "experts": "plan mixtral-8x7b --on 16x8xh100-sxm --batch 4M --tokens 10T",
    "tpus": "plan llama-3-70b --on tpu-v5p:16x20x28 --batch 4M --tokens 15T",
    "offload": "plan llama-3-70b --on 4x8xa100-40gb-sxm --batch 256 --framework fsdp",
    "many requests": "serve llama-3.3-70b --on 8xh100-sxm --users 32 --ttft 1s --per-user 15",
    "layers on the CPU": "serve mixtral-8x7b:q4_k_m --on rtx3060-12gb --context 4k --measured 5",
    "two hosts": "serve llama-3.3-70b:q4_k_m --on 2x(4xrtx3090)@10Gbps --users 4 --price $1/h",
}


@pytest.mark.parametrize("question", SCREENS.values(), ids=SCREENS)
def test_an_answer_fits_a_screen_of_80_columns(question: str) -> None:
    done = once(*question.split(), columns=80)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert len([line for line in lines if not line.startswith(COMMANDS[1:])]) <= MOST_LINES  # an engine may need many commands
    assert [line for line in lines if len(line) > 80 and not line.startswith(COMMANDS)] == []
    assert "…" not in done.out
