"""Layouts that Ollama can run."""

from dataclasses import replace

from meshwise.cost.serve.layouts import ServeLayout
from meshwise.programs.serve import ollama
from support.serve_questions import question


def test_ollama_is_offered_only_for_layouts_that_it_can_run() -> None:
    q = question()
    plain = ServeLayout(split="layer", cards=(0, 1, 2, 3), shares=(1, 1, 1, 1))
    assert ollama.can(q, plain)
    for other in (
        replace(plain, split="row"),
        replace(plain, shared="evenly filled"),
        replace(plain, expert_layers=3),
        replace(plain, hosts=2),
        replace(plain, replicas=2),
    ):
        assert not ollama.can(q, other)
    assert not ollama.can(question(kv="q5_0"), plain)
