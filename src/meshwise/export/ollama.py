"""Ollama: the environment of its server and a Modelfile (its docs/faq and docs/modelfile). It splits by layers only."""

import shlex

from meshwise.cost.serve.layouts import ServeLayout
from meshwise.cost.serve.question import ServeQuestion
from meshwise.export.llamacpp import file_of, flash_of, gpu_layers

RUNS_LAYOUTS_OF = "llama.cpp"
"""Ollama is built on llama.cpp."""
CACHE_TYPES = ("f16", "q8_0", "q4_0")


def can(q: ServeQuestion, layout: ServeLayout) -> bool:
    """Return whether Ollama can run this layout: it has no flags for row splits, shares, experts on the host, RPC or replicas."""
    plain = (
        layout.split == "layer" and not layout.shared and not layout.expert_layers and layout.hosts == 1 and layout.replicas == 1
    )
    return plain and q.work.kv in CACHE_TYPES


def lines(q: ServeQuestion, layout: ServeLayout) -> list[str]:
    """Return `ollama serve`, and the line that creates and runs the model."""
    name = f"{q.model.name.rpartition('/')[2].removesuffix('.gguf')}-{q.work.context}".lower()
    file = file_of(q)
    from_file = file if "/" in file else f"./{file}"
    layers = gpu_layers(q, layout)
    modelfile = f"FROM {from_file}\\nPARAMETER num_ctx {q.work.context}\\nPARAMETER num_gpu {layers}\\n"
    own = sum(card.host == 0 for card in q.cards)
    environment = ["OLLAMA_FLASH_ATTENTION=" + str(int(flash_of(q)))]
    environment += [f"OLLAMA_KV_CACHE_TYPE={q.work.kv}"] if q.work.kv != "f16" else []
    environment += [f"OLLAMA_NUM_PARALLEL={q.work.users}"]
    environment += ["OLLAMA_SCHED_SPREAD=1"] if len(layout.cards) > 1 else []
    visible = {"AMD": "ROCR_VISIBLE_DEVICES"}.get(q.cards[0].chip.vendor, "CUDA_VISIBLE_DEVICES")
    environment += [f"{visible}={','.join(map(str, layout.cards))}"] if len(layout.cards) < own else []
    return [
        f"{' '.join(environment)} ollama serve",
        f"printf {shlex.quote(modelfile)} > Modelfile && ollama create {name} -f Modelfile && ollama run {name}",
    ]
