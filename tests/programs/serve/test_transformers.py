"""transformers has no server: its command is a benchmark."""

from meshwise.cost.serve.layouts import ServeLayout
from meshwise.programs.serve import transformers
from support.serve_questions import question


def test_the_command_measures_the_question() -> None:
    q = question("llama-3-8b:bf16", "1xh200", engine="transformers", prompt=256, output=32, users=4)
    assert transformers.lines(q, ServeLayout(split="tensor", cards=(0,))) == [
        "meshwise bench llama-3-8b --engine transformers --prompt 256 --output 32 --users 4"
    ]
