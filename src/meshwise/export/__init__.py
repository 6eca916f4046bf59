"""The commands that start each engine as a plan says. One file per engine: `lines(question, way)`."""

from meshwise.cost.serve.question import ServeQuestion
from meshwise.cost.serve.ways import Way
from meshwise.export import llamacpp, ollama, transformers, vllm

PROGRAMS = {"llama.cpp": llamacpp.lines, "ollama": ollama.lines, "vllm": vllm.lines, "transformers": transformers.lines}


def commands(q: ServeQuestion, way: Way) -> dict[str, tuple[str, ...]]:
    """Shell lines by engine: the asked one first, and Ollama too where it can do what llama.cpp is told to."""
    found = {q.engine.name: tuple(PROGRAMS[q.engine.name](q, way))}
    if q.engine.name == "llama.cpp" and ollama.can(q, way):
        found["ollama"] = tuple(ollama.lines(q, way))
    return found
