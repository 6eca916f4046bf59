"""The lines that download an open model and start it: those of `engines.commands`, with the names under which its weights are published."""

import shlex

from meshwise.catalogue.releases import Offer
from meshwise.cost.serve.layouts import ServeLayout
from meshwise.cost.serve.question import ServeQuestion
from meshwise.errors import UserError
from meshwise.models import find
from meshwise.programs.engines import commands
from meshwise.programs.serve.llamacpp import file_of

EMBEDDING = {"llama.cpp": ["--embedding", "--pooling", "last"], "vllm": ["--runner", "pooling"]}
"""Options with which a server returns embeddings."""
WITHOUT_TAG = ("MXFP4_MOE",)  # formats of repositories with a single file, which need no tag


def start(q: ServeQuestion, layout: ServeLayout, offer: Offer) -> tuple[str, ...]:
    """Return the lines that download the weights and start the engine with a layout; none for an engine that no lines are known for."""
    if q.engine.name == "ollama" and offer.weights.ollama:
        return (f"OLLAMA_CONTEXT_LENGTH={q.work.context} ollama serve", shlex.join(["ollama", "run", offer.weights.ollama]))
    try:
        lines = commands(q, layout)[q.engine.name]
    except UserError:
        return ()
    made = tuple(_named(q, offer, line) for line in lines)
    more = EMBEDDING.get(q.engine.name, []) if "embedding" in offer.uses else []
    return (*made[:-1], f"{made[-1]} {shlex.join(more)}" if more else made[-1])


def _named(q: ServeQuestion, offer: Offer, line: str) -> str:
    """Return a line with the published name of the weights instead of the file or folder that it assumes."""
    words = shlex.split(line, comments=False)
    if q.engine.gguf and not q.model.tensors and offer.weights.gguf and "-m" in words:
        at = words.index("-m")
        tag = "" if q.weights.format in WITHOUT_TAG else f":{q.weights.format}"
        if words[at + 1] == file_of(q):
            words[at : at + 2] = ["-hf", f"{offer.weights.gguf}{tag}"]
    awq = q.weights.format == "awq" and offer.weights.awq
    known = {q.model.hub_id or find.hub_id(q.model.name), *([f"path/to/{q.model.name}-awq"] if awq else [])}
    return shlex.join((offer.weights.awq if awq else offer.id) if word in known else word for word in words)
