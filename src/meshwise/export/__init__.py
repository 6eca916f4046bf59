"""The commands that start each engine as a plan says. One file per engine: `lines(question, way)`."""

from meshwise.cost.serve.layouts import ServeLayout
from meshwise.cost.serve.question import ServeQuestion
from meshwise.export import llamacpp, ollama, transformers, vllm

PROGRAMS = {"llama.cpp": llamacpp.lines, "ollama": ollama.lines, "vllm": vllm.lines, "transformers": transformers.lines}


def commands(q: ServeQuestion, layout: ServeLayout) -> dict[str, tuple[str, ...]]:
    """Shell lines by engine: the asked one first, and Ollama too where it can do what llama.cpp is told to."""
    found = {q.engine.name: tuple(PROGRAMS[q.engine.name](q, layout))}
    if q.engine.name == "llama.cpp" and ollama.can(q, layout):
        found["ollama"] = tuple(ollama.lines(q, layout))
    return found
