"""A question about serving in the words of the command line, and everything that those words mean looked up."""

import math
from dataclasses import dataclass

from meshwise.catalogue import clusters
from meshwise.catalogue.engines import Engine, find_engine, find_runtime
from meshwise.cost.serve.cache import cache_type
from meshwise.cost.serve.placement import refuses_tp
from meshwise.cost.serve.question import ServeQuestion
from meshwise.cost.work import Serve
from meshwise.errors import UserError, nearest, quoted
from meshwise.models import find
from meshwise.models.formats import FORMATS, Format, Weights, as_gguf, split_model_name, weights
from meshwise.models.model import Model

USUAL_CONTEXT = 8192
MOST_CARDS = 4096
AXES = ("split", "cards", "tp", "pp", "replicas", "hosts")

Bounds = dict[str, int | str]


@dataclass(frozen=True, kw_only=True)
class ServeAsk:
    """A question in the words of the command line, enough to ask it again."""

    model: str
    """With its format, as in llama-3.3-70b:q4_k_m."""
    cluster: str
    engine: str = ""
    """None: what runs the format, or is usual on the chip."""
    prompt: int = 512
    output: int = 128
    users: int = 1
    context: int = 0
    """0: 8k, or what the model was trained for where that is less."""
    kv: str = "f16"
    ttft: float = 0.0
    per_user: float = 0.0
    fix: tuple[str, ...] = ()
    link: str = ""
    """Bandwidth between the cards of a host, instead of the chip's own."""
    measured: float = 0.0
    """Tokens per second that a user saw; 0 where they ask for none to be explained."""

    def question(self, known: Model | None = None) -> ServeQuestion:
        """Everything looked up, but for a model that was already."""
        name, fmt = split_model_name(self.model)
        found = clusters.find_cluster(self.cluster)
        found = _servable(clusters.with_link(found, self.link) if self.link else found)
        model = known or find.find_model(name)
        engine = engine_of(self.engine, fmt, bool(model.tensors), found)
        runtime = find_runtime(engine.runtime)
        context = self.context or max(self.prompt + self.output, min(USUAL_CONTEXT, model.decoder.context or USUAL_CONTEXT))
        work = Serve(
            prompt=self.prompt,
            output=self.output,
            users=self.users,
            context=context,
            kv=cache_type(self.kv, runtime),
        )
        asked = ServeQuestion(
            model=model,
            weights=weights_of(model, fmt, engine),
            cluster=found,
            engine=engine,
            runtime=runtime,
            work=work,
            ttft=self.ttft,
            per_user=self.per_user,
            bounds=_bounds(",".join(self.fix)),
        )
        _check(asked)
        return asked


def _servable(cluster: clusters.Cluster) -> clusters.Cluster:
    """Cards, Apple's machines and processors, as many as one table can hold."""
    other = {chip.name for _, node in cluster.nodes for _, chip in node.chips if chip.kind in ("tpu", "npu")}
    if other:
        raise UserError(
            f"no engine that is planned here serves on {', '.join(sorted(other))}; GPUs, Apple's chips and CPUs can be had"
        )
    if cluster.devices > MOST_CARDS:
        raise UserError(f"{cluster.name} has {cluster.devices:,} devices; serving is planned on at most {MOST_CARDS:,}")
    return cluster


def engine_of(name: str, fmt: Format | None, stored: bool, cluster: clusters.Cluster) -> Engine:
    """The engine that was named; else one that runs the format; else vLLM on what comes in a vendor's own system, llama.cpp elsewhere."""
    if name:
        return find_engine(name)
    if stored or (fmt and fmt.gguf):
        return find_engine("llama.cpp")
    served = all(chip.kind == "gpu" and chip.network for _, node in cluster.nodes for _, chip in node.chips)
    return find_engine("vllm" if served or (fmt and fmt.engines == ("vllm",)) else "llama.cpp")


def weights_of(model: Model, fmt: Format | None, engine: Engine) -> Weights:
    """In the format that was asked for, or the engine's usual one; a format that the engine does not run is refused."""
    if model.tensors:
        if not engine.gguf:
            raise UserError(
                f"{engine.name} does not read GGUF files; llama.cpp and ollama do, or name the model for {engine.name}: "
                f"{model.name}:{engine.common_formats[-1]}"
            )
        return weights(model, fmt)
    chosen = fmt or FORMATS[engine.default_format]
    if engine.formats and chosen.name not in engine.formats:
        raise UserError(f"{engine.name} is planned in {', '.join(engine.formats)}, not in {chosen.name}")
    if engine.gguf:
        return weights(model, as_gguf(chosen))
    if chosen.gguf:
        raise UserError(f"{engine.name} does not run {chosen.name}; {_like(chosen)} is the nearest format that it runs")
    return weights(model, chosen)


def _like(fmt: Format) -> str:
    """vLLM's format that is about as wide as a GGUF type."""
    digits = next((letter for letter in fmt.name if letter.isdecimal()), "4")
    return "bf16" if fmt.name in ("F32", "F16", "BF16") else "fp8" if int(digits) > 5 else "awq"


def _bounds(text: str) -> Bounds:
    """'split=row,cards=3' as what a way must have."""
    found: Bounds = {}
    for piece in filter(None, (word.strip() for word in text.split(","))):
        axis, equals, value = (word.strip() for word in piece.partition("="))
        if axis not in AXES or not equals:
            raise UserError(f"--fix {quoted(piece)}: expected {', '.join(AXES)} and a value{nearest(axis, AXES)}")
        if axis != "split" and not (value.isdecimal() and int(value[:6]) > 0 and len(value) < 6):
            raise UserError(f"--fix {quoted(piece)}: {axis} is a whole number, 1 or more")
        found[axis] = value if axis == "split" else int(value)
    return found


def _check(q: ServeQuestion) -> None:
    """What was fixed must be something that the engine can do on these cards."""
    split, tp = q.bounds.get("split"), q.bounds.get("tp", q.bounds.get("pp", 1))
    if split is not None and split not in q.engine.splits:
        raise UserError(f"{q.engine.name} cannot do a {split} split; it can do {', '.join(q.engine.splits)}")
    if tp != 1 and "tensor" not in q.engine.splits:
        raise UserError(f"{q.engine.name} has no tensor or pipeline parallelism; it can split by {', '.join(q.engine.splits)}")
    refusal = refuses_tp(q.model, int(q.bounds["tp"])) if "tp" in q.bounds else ""
    if refusal:
        raise UserError(f"{q.engine.name} on {q.model.name}: {refusal}")
    needed = math.prod(int(q.bounds.get(axis, 1)) for axis in ("tp", "pp", "replicas"))
    needed = max(needed, int(q.bounds.get("cards", 1)) * int(q.bounds.get("replicas", 1)))
    if needed > q.cluster.devices:
        raise UserError(f"what is fixed needs {needed} cards, and {q.cluster.name} has {q.cluster.devices}")
    if int(q.bounds.get("replicas", 1)) > 1 and not q.engine.copies:
        raise UserError(f"{q.engine.name} runs one copy of a model; llama.cpp and vllm run several")
    if int(q.bounds.get("replicas", 1)) > q.work.users:
        raise UserError(f"{q.bounds['replicas']} replicas need as many users; give --users {q.bounds['replicas']} or more")
    unfit = {card.chip.name for card in q.cards if card.chip.kind not in q.engine.kinds}
    if unfit:
        raise UserError(f"{q.engine.name} is planned on GPUs, not on {', '.join(sorted(unfit))}; --engine llama.cpp runs there")
