"""Ollama: the environment of its server and a Modelfile (its docs/faq and docs/modelfile). It splits by layers only."""

import shlex
from collections.abc import Iterable, Sequence

from meshwise.cost.serve.layouts import ServeLayout
from meshwise.cost.serve.question import ServeQuestion
from meshwise.programs import forms
from meshwise.programs.kinds import INT, MODEL
from meshwise.programs.program import Key, Refusal, Setup, Written
from meshwise.programs.serve import setup
from meshwise.programs.serve.declared import serving
from meshwise.programs.serve.lengths import LENGTH
from meshwise.programs.serve.llamacpp import file_of, flash_of, gpu_layers
from meshwise.programs.source import Setting
from meshwise.runs.run import Run, Stated

RUNS_LAYOUTS_OF = "llama.cpp"  # Ollama is built on llama.cpp
VARIABLES = {"OLLAMA_NUM_PARALLEL": "users", "OLLAMA_KV_CACHE_TYPE": "kv", "OLLAMA_CONTEXT_LENGTH": "context"}
CACHE_TYPES = ("f16", "q8_0", "q4_0")


def can(q: ServeQuestion, layout: ServeLayout) -> bool:
    """Return whether Ollama can run this layout: no row splits, shares, experts on the host, RPC, replicas or draft models."""
    plain = layout.split == "layer" and not layout.shared and not layout.expert_layers
    return plain and layout.hosts == layout.replicas == 1 and q.work.kv in CACHE_TYPES and not q.load.draft


KEYS = (
    Key("model", "FROM", MODEL, ("positional",), write="always"), Key("context", "PARAMETER num_ctx", LENGTH, write="always"),
    Key("gpu_layers", "PARAMETER num_gpu", INT, write="always"),
)  # fmt: skip


def lines(q: ServeQuestion, layout: ServeLayout) -> list[str]:
    """Return `ollama serve`, and the line that creates and runs the model."""
    name = shlex.quote(_name(q))
    variables = " ".join(f"{key}={shlex.quote(value)}" for key, value in _environment(q, layout).items())
    return [
        f"{variables} ollama serve",
        f"{forms.printed(_modelfile(q, layout), 'Modelfile')} && ollama create {name} -f Modelfile && ollama run {name}",
    ]


def _name(q: ServeQuestion) -> str:
    return f"{q.model.name.rpartition('/')[2].removesuffix('.gguf')}-{q.work.context}".lower()


def _modelfile(q: ServeQuestion, layout: ServeLayout) -> list[str]:
    file = file_of(q)
    values = {"model": file if "/" in file else f"./{file}", "context": q.work.context, "gpu_layers": gpu_layers(q, layout)}
    return [f"{key} {forms.one_line(str(value))}" for key, value in PROGRAM.settings(values)]


def _environment(q: ServeQuestion, layout: ServeLayout) -> dict[str, str]:
    """Return the variables of the server, which it has instead of options."""
    own = sum(card.host == 0 for card in q.cards)
    variables = {"OLLAMA_FLASH_ATTENTION": str(int(flash_of(q)))}
    variables |= {"OLLAMA_KV_CACHE_TYPE": q.work.kv} if q.work.kv != "f16" else {}
    variables |= {"OLLAMA_NUM_PARALLEL": str(setup.values(q, layout)["copy_users"])}
    variables |= {"OLLAMA_SCHED_SPREAD": "1"} if len(layout.cards) > 1 else {}
    visible = {"AMD": "ROCR_VISIBLE_DEVICES"}.get(q.cards[0].chip.vendor, "CUDA_VISIBLE_DEVICES")
    return variables | ({visible: ",".join(map(str, layout.cards))} if len(layout.cards) < own else {})


def meaning(facts: Run) -> Run:
    """Return the facts that the server's variables mean."""
    said: list[Stated] = []
    for variable, fact in VARIABLES.items():
        text = facts.text(f"env:{variable}")
        if text and fact not in facts and (fact == "kv" or text.isdecimal()):
            said.append(facts.meaning(fact, text if fact == "kv" else int(text), f"env:{variable}"))
    return facts.adding(said)


def write(given: Setup) -> Written:
    """Return the Modelfile, and the server with its variables."""
    q, layout = given.plan.q, given.plan.layout
    name = shlex.quote(_name(q))
    note = f"Then: ollama create {name} -f Modelfile && ollama run {name}"
    text = forms.comment([*given.header, note]) + "\n".join(_modelfile(q, layout)) + "\n"
    return Written({"Modelfile": text}, ("ollama", "serve"), starter="once", environment=_environment(q, layout))


def refuse(given: Setup) -> Iterable[Refusal]:
    """Return what Ollama cannot do with a plan."""
    if given.plan.q.engine.name not in ("ollama", RUNS_LAYOUTS_OF) or not can(given.plan.q, given.plan.layout):
        why = "Ollama splits by layers over the cards of one host, with shares of its own"
        yield Refusal(f"{why}: plan again with --engine ollama", {})


def in_file(settings: Sequence[Setting]) -> int:
    """Return how surely settings are those of a Modelfile."""
    return 8 if any(setting.key == "FROM" for setting in settings) else 0


PROGRAM = serving(
    "ollama", "Ollama", "0.12", engine="ollama", splits=(), form="text", keys=KEYS, write=write, commands=("ollama",),
    refuse=refuse, meaning=meaning, in_file=in_file,
)  # fmt: skip
