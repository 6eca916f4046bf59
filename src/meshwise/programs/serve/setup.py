"""A serving plan as facts: what writers of serving programs say in the words of an engine."""

from collections.abc import Iterable
from typing import Any

from meshwise.catalogue.engines import find_engine
from meshwise.cost.serve.layouts import ServeLayout
from meshwise.cost.serve.question import ServeQuestion
from meshwise.errors import UserError
from meshwise.models import find
from meshwise.plan.serve import lookup
from meshwise.plan.serve.choice import ServeChoice
from meshwise.plan.serve.plan import ServePlan
from meshwise.plan.serve.search import search, with_memory
from meshwise.plan.serve.words import length_words, load_words
from meshwise.programs.program import Refusal, Setup
from meshwise.runs.run import Value
from meshwise.units import GIB, figure
from meshwise.version import VERSION

CONVERTED = ("fp32", "bf16", "fp16", "fp8")
"""Formats that engines convert published weights to when they load them; other formats need their own checkpoint."""
MTP_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers", "mtp_num_layers")
"""Keys of a config.json that count layers for multi-token prediction."""


def of_plan(plan: ServePlan, number: int = 1) -> Setup:
    """Return the facts of one layout of a serving plan: the best, or the one in row `number` of its table."""
    if not 1 <= number <= len(plan.choices):
        raise UserError(f"--row {number}: the plan has {len(plan.choices)} layouts")
    choice, q = plan.choices[number - 1], lookup.question(plan.ask)
    options = [option.layout for option in search(q).options]
    layout = next((one for one in options if one.name == choice.name), None)
    if layout is None:
        raise UserError(f"row {number} of the plan, {choice.name}, is no layout of its question any more: plan again")
    return Setup(values(q, layout), {}, model(q), header(plan, choice), ServeSubject(plan, q, layout))


def of_layout(q: ServeQuestion, layout: ServeLayout) -> Setup:
    """Return the facts of a layout that is not from a plan's file."""
    return Setup(values(q, layout), {}, model(q))


def refused(given: Setup, title: str, engine: str, *splits: str) -> Iterable[Refusal]:
    """Yield a refusal where a plan has weights, or a split of a model, that a program does not run."""
    gguf = find_engine(engine).gguf
    subject: Any = given.plan
    if subject is not None and subject.q.engine.gguf != gguf:
        stored = "GGUF files" if gguf else "checkpoints of the hub"
        why = f"{title} runs {stored}, and the plan, made for {subject.framework}, has {given.text('weights')} weights"
        yield Refusal(f"{why}: plan again with --engine {engine}", {})
    elif subject is not None and given.text("split") not in splits:
        why = f"{title} splits a model by {' or '.join(splits)}, and the plan, made for {subject.framework}, by {given.text('split')}"
        yield Refusal(f"{why}: plan again with --engine {engine}", {})


class ServeSubject:
    """A serving plan with its question and the chosen layout, for what the facts do not say."""

    def __init__(self, plan: ServePlan, q: ServeQuestion, layout: ServeLayout) -> None:
        self.plan, self.q, self.layout, self.ask, self.framework = plan, q, layout, plan.ask, plan.engine


def values(q: ServeQuestion, layout: ServeLayout) -> dict[str, Value]:
    """Return a layout as facts; `copy_users` and `batched_tokens` are limits of one replica, with attention apart of all its devices."""
    per_host = sum(card.host == 0 for card in q.cards)
    limits = with_memory(q, layout).limits
    own = len(layout.cards)
    copies = 1 if layout.hosts > 1 else max(1, min(layout.replicas, per_host // own))
    facts: dict[str, Value] = {
        "tp": layout.tp, "pp": layout.pp, "replicas": layout.replicas, "copies": copies, "users": q.work.users,
        "copy_users": limits.sequences if q.load.rate else max(1, min(-(-q.work.users // layout.replicas), limits.sequences)),
        "batched_tokens": limits.tokens, "chunked": limits.chunked, "attention_dp": layout.apart,
        "ep": layout.tp if layout.apart else 1, "context": q.work.context, "kv": q.work.kv, "weights": q.weights.format,
        "published": q.weights.format == q.model.quantization,
        "memory_share": q.runtime.usable.get(q.cards[0].chip.kind, 1.0), "split": layout.split,
        "expert_layers": layout.expert_layers, "flash": q.runtime.flash if q.work.flash is None else q.work.flash,
        "nodes": layout.hosts, "devices_per_node": -(-own // layout.hosts) * copies, "devices": layout.devices,
        "chip": q.cards[0].chip.key, "model": model(q),
    }  # fmt: skip
    facts |= {"gpu_layers": layout.gpu_layers} if layout.gpu_layers is not None else {}
    facts |= {"prefill_replicas": layout.prefill.replicas} if layout.prefill else {}
    facts |= {"adapters": q.work.adapters, "adapter_rank": q.work.rank} if q.work.adapters else {}
    facts |= {"prefix_caching": True} if q.load.prefix or q.load.depth else {}
    return facts | ({"draft": q.load.draft, "draft_method": draft_method(q)} if q.load.draft else {})


def draft_method(q: ServeQuestion) -> str:
    """Return how tokens are proposed: by layers of the checkpoint itself (MTP) if its config has any, else by an EAGLE 3 head."""
    try:
        config = {} if q.model.tensors else find.find_values(q.model.name)[0]
    except UserError:  # a config.json of which only the label is known
        config = {}
    return "mtp" if any(config.get(key) for key in MTP_KEYS) else "eagle3"


def draft_model(given: Setup) -> str:
    """Return the place of the draft model; '' where the checkpoint proposes tokens itself."""
    return "" if given.text("draft_method") == "mtp" else f"path/to/{given.model.rpartition('/')[2]}-eagle3"


def model(q: ServeQuestion) -> str:
    """Return the hub id of the model, or a path where its format needs a checkpoint of its own."""
    name, fmt = q.model.name, q.weights.format
    loads = fmt == q.model.quantization or (fmt in CONVERTED and (fmt != "fp8" or q.engine.converts_to_fp8))
    return q.model.hub_id or find.hub_id(name) if loads else f"path/to/{name}-{fmt}"


def header(plan: ServePlan, choice: ServeChoice) -> tuple[str, ...]:
    """Return what a file says about its plan: the command, the layout and the prediction."""
    c: Any = plan.cluster
    fullest = min(choice.devices, key=lambda device: device.spare)
    used = (fullest.weights + fullest.cache + fullest.compute + fullest.context) / GIB
    return (
        f"Made by meshwise {VERSION} from: {plan.command}",
        f"Layout: {choice.name} on {c['name']}, {plan.weights['format']}, context {plan.context:,}",
        f"Load: {load_words(plan.ask)}, {length_words(plan.ask)}",
        f"Predicted with {plan.engine}: {figure(choice.per_user)} tokens/s per request ({figure(choice.low)} to {figure(choice.high)}), "
        f"{figure(choice.throughput, 4)} in all with prompts, first token after {choice.ttft.p50:.2g} s, "
        f"{used:.1f} GiB of {fullest.capacity / GIB:.0f} per device",
    )
