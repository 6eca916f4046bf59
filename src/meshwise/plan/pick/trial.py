"""One model on a machine: the engine and the weight format in which it fits, is fast enough and loses least, with its memory and speed."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from meshwise.catalogue.chips import Chip, Cluster
from meshwise.catalogue.engines import Engine, find_engine
from meshwise.catalogue.releases import Offer
from meshwise.cost.serve.question import ServeQuestion
from meshwise.errors import UserError
from meshwise.models.formats import SAME_IN_GGUF, split_model_name
from meshwise.models.model import Model
from meshwise.plan.ask import ServeAsk
from meshwise.plan.pick.ask import PickAsk
from meshwise.plan.serve import lookup
from meshwise.plan.serve.choice import interval, on_cards
from meshwise.plan.serve.search import SPARE_BYTES, Option, largest_context, search

TIERS = (("bf16", "fp8", "Q8_0", "mlx-8bit"), ("Q6_K",), ("Q5_K_M",), ("Q4_K_M", "awq", "mlx-4bit"))
"""Weight formats by what they lose, the least first: what is published of 8 bits is no loss, or one in the third digit. Formats of less
than four bits lose so much that the scores of a model say little about them; they are not offered."""
PROMPT, OUTPUT = 512, 128
TOWER_BYTES = 1.5 * 2.0**30
"""Kept free for the vision tower and its buffers, which are loaded beside the language model: towers have 0.4 to 0.7 billion parameters."""
SYSTEM_SHARE, SYSTEM_BYTES, MOST_SYSTEM = 0.1, 2 * 2.0**30, 0.25
"""Share of a memory, and bytes at least, that stay with the operating system where it uses the same: on a CPU, an APU, a DGX Spark; of a
small memory a quarter."""
LEAST_BITS = 4.2  # bits per weight of the narrowest format that is tried


@dataclass(frozen=True)
class Machine:
    """The devices that models are tried on."""

    text: str  # as `--on` names them
    cluster: Cluster

    @cached_property
    def chips(self) -> tuple[Chip, ...]:
        return tuple(chip for _, node in self.cluster.nodes for _, chip in node.chips)

    @cached_property
    def bytes(self) -> float:
        """Memory in which weights can lie: that of all devices, and of their hosts where it is known."""
        return self.cluster.memory + sum(count * (node.host.memory or 0.0) for count, node in self.cluster.nodes)

    @cached_property
    def engines(self) -> tuple[Engine, ...]:
        """Engines that people start on such devices: vLLM on GPUs that are sold with a network, llama.cpp on all others; beside it vLLM on
        NVIDIA's GPUs with bf16 products, and MLX on Apple's chips."""
        if all(chip.kind == "gpu" and chip.network for chip in self.chips):
            return (find_engine("vllm"),)
        wide = all(chip.kind == "gpu" and chip.vendor == "NVIDIA" and "bf16" in chip.flops for chip in self.chips)
        other = ["vllm"] if wide else ["mlx"] if all(chip.kind == "apple" for chip in self.chips) else []
        return tuple(find_engine(name) for name in ("llama.cpp", *other))

    @cached_property
    def kept(self) -> float:
        """Bytes of a device that stay with the operating system; 0 where devices have a memory of their own, or the driver keeps some."""
        shared = [chip.memory for chip in self.chips if chip.kind == "cpu" or (chip.kind == "gpu" and not chip.host)]
        return max((max(min(SYSTEM_BYTES, MOST_SYSTEM * memory), SYSTEM_SHARE * memory) for memory in shared), default=0.0)


@dataclass(frozen=True)
class Trial:
    """A model in one format on one engine, in its best layout there."""

    offer: Offer
    q: ServeQuestion
    option: Option
    speed: float
    """Tokens per second of one request with half of the context in use; prompt tokens per second of an embedding model."""

    @property
    def interval(self) -> tuple[float, float]:
        """Tokens per second between which 90% of measurements lie."""
        return interval(self.q, self.option)

    @property
    def longest(self) -> int:
        """The longest context that fits; at most the one that the model was trained for."""
        fits = largest_context(self.q, self.option)
        return min(fits, self.q.model.decoder.context or fits)


@dataclass(frozen=True)
class Failure:
    """Why a model is not offered."""

    offer: Offer
    format: str
    missing: float = 0.0  # bytes that the fullest device lacks, where memory is what is missing
    speed: float = 0.0  # tokens per second, where they are too few
    reason: str = ""


def machine(text: str) -> Machine:
    """Return the devices that a text names."""
    from meshwise.catalogue import clusters

    return Machine(text, lookup.with_processors_as_hosts(lookup.servable(clusters.find_cluster(text))))


def chosen_engines(ask: PickAsk, on: Machine) -> tuple[Engine, ...]:
    """Return the engines to try."""
    return (find_engine(ask.engine),) if ask.engine else on.engines


def too_large(model: Model, on: Machine) -> bool:
    """Return whether weights do not fit in the narrowest format, whatever the engine."""
    return model.params * LEAST_BITS / 8 > on.bytes


def best(ask: PickAsk, on: Machine, offer: Offer, model: Model) -> Trial | Failure:
    """Return the trial that loses least in quality among those that fit and are fast enough, of these the one that is surely fast: with the
    highest lower bound; else the nearest miss."""
    failures: list[Failure] = []
    for tier in (*TIERS, ()):
        found: list[Trial] = []
        for engine in chosen_engines(ask, on):
            for fmt in _formats(engine, offer, model, tier):
                made = tried(ask, on, offer, model, engine, fmt)
                found += [made] if isinstance(made, Trial) else []
                failures += [made] if isinstance(made, Failure) else []
        if found:
            return max(found, key=lambda trial: trial.interval[0])
    slow = [failure for failure in failures if failure.speed]
    if slow:
        return max(slow, key=lambda failure: failure.speed)
    near = [failure for failure in failures if failure.missing]
    if near:
        return min(near, key=lambda failure: failure.missing)
    return failures[0] if failures else Failure(offer, "", reason="no weights are known for the engines that run there")


def _formats(engine: Engine, offer: Offer, model: Model, tier: tuple[str, ...]) -> Iterator[str]:
    """Yield the formats of a tier that the model can be downloaded in for an engine; a format that it is published in is in the first
    tier, and the empty tier is a file of the user's own."""
    if model.tensors:
        yield from [""] if not tier and engine.gguf else []
        return
    own = model.quantization if model.quantization in ("fp8", "mxfp4") else ""
    if engine.gguf and own in SAME_IN_GGUF:
        own_gguf = SAME_IN_GGUF[own]
        yield from [own_gguf] if tier == TIERS[0] and (offer.weights.gguf or offer.weights.ollama) else []
        return
    if not engine.gguf and own:
        yield from [own] if tier == TIERS[0] and (not engine.formats or own in engine.formats) else []
        return
    for fmt in tier:
        if fmt in engine.common_formats and _published(engine, offer, fmt):
            yield fmt


def _published(engine: Engine, offer: Offer, fmt: str) -> bool:
    """Return whether weights in a format can be downloaded, or the engine makes them as it loads or converts others."""
    if not offer.release.title:  # a model of the user's own
        return True
    if engine.name == "ollama":
        return bool(offer.weights.ollama) and fmt == engine.default_format
    if engine.gguf:
        return bool(offer.weights.gguf)
    return fmt != "awq" or bool(offer.weights.awq)


def tried(ask: PickAsk, on: Machine, offer: Offer, model: Model, engine: Engine, fmt: str) -> Trial | Failure:
    """Return a model in one format on one engine in its best layout, or what is missing."""
    wanted = ask.tokens
    context = min(wanted, model.decoder.context or wanted)
    if context < wanted and ask.context:
        return Failure(offer, fmt, reason=f"was trained for {context:,} tokens of context")
    embedding = ask.purpose == "embedding"
    name = f"{split_model_name(offer.id)[0]}:{fmt}" if fmt else offer.id
    served = ServeAsk(
        name, on=on.text, engine=engine.key, users=ask.users, context=context, prompt=min(PROMPT, context // 2), output=OUTPUT,
        depth=0 if embedding else max(0, context // 2 - PROMPT - OUTPUT),
    )  # fmt: skip
    try:
        q = lookup.question(served, model)
    except UserError as error:
        return Failure(offer, fmt, reason=str(error))
    hosted = bool(q.cluster.node.host.memory)
    spare = max(on.kept, TOWER_BYTES if ask.purpose == "vision" else 0.0 if q.runtime.paged else SPARE_BYTES)
    if not hosted:  # the memory of the host is not known: no layers are kept there
        lacking = (q.weights.bytes - sum(q.rooms)) / len(q.rooms)
        if lacking > 0:
            return Failure(offer, q.weights.format, missing=lacking + spare)
        q = replace(q, engine=replace(q.engine, offload=False))
    found = search(q)
    fitting = [one for one in found.options if one.spare >= spare and (hosted or on_cards(one)) and not one.pool]
    if not fitting:
        lacking = min((spare - one.spare for one in (*found.options, *found.misses) if on_cards(one)), default=0.0)
        return Failure(offer, q.weights.format, missing=max(1.0, lacking))
    option = next((one for one in fitting if _speed(ask, one) >= ask.speed), None)
    if option is None:
        return Failure(offer, q.weights.format, speed=max(_speed(ask, one) for one in fitting))
    return Trial(offer, q, option, _speed(ask, option))


def _speed(ask: PickAsk, option: Option) -> float:
    """Return tokens per second of one request; of its prompt for an embedding model."""
    assert option.speed
    return option.speed.prefill_tokens_per_second if ask.purpose == "embedding" else option.per_user
