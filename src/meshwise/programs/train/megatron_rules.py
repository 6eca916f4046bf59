"""Translate Megatron's arguments, which have a meaning only together, for Megatron-LM, Megatron-DeepSpeed, Megatron-Bridge and NeoX."""

import re
from collections.abc import Iterable, Iterator, Mapping

from meshwise.catalogue.frameworks import overlap_text
from meshwise.programs.program import KERNELS, Refusal, Setup
from meshwise.programs.train import recipe
from meshwise.runs.run import Run, Stated, Value

STRATEGIES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""--data-parallel-sharding-strategy of Megatron-FSDP, and the ZeRO stage that each is."""
MODULES = {"core_attn": "selective", "layernorm": "layernorm", "moe_act": "moe_act", "mlp": "mlp"}
"""--recompute-modules, and the value of the axis `recompute` that each is alone."""
EXPERT_MODULES = {"moe": "mlp"}  # the same of a model with experts, whose feed-forward layers are `moe`
PRICED = ("core_attn", "layernorm", "moe_act", "mlp", "moe", "mla_up_proj")  # modules that the cost model has a policy for
FP8 = {"delayed": "fp8", "tensorwise": "fp8", "blockwise": "fp8-block", "mxfp8": "mxfp8"}
VOCABULARY_MULTIPLE = 128  # --make-vocab-size-divisible-by, times tp
TOKENIZERS = {"GPT2BPETokenizer": 50257}  # vocabularies that a tokenizer's type alone tells
OFFLOAD_FRACTION = 1.0
FLASH_VERSION, LOSS_FUSION, LOSS_KERNEL = (KERNELS + name for name in ("flash_version", "loss_fusion", "loss_kernel"))
GRAPH_KIND, GRAPH_STEP, GRAPH_NANS, DISPATCHER, FLEX = (
    KERNELS + name for name in ("graph_kind", "graph_step", "graph_nans", "dispatcher", "flex")
)
LATENT: dict[str, int] = {"kv_rank": 32, "nope_dim": 128, "rope_dim": 64, "v_dim": 128}  # MLATransformerConfig's defaults
SWITCHES = {
    "overlaps_tp": "overlap_tp", "overlaps_experts": "overlap_ep", "overlaps_reduction": "overlap_reduce",
    "overlaps_gather": "overlap_gather",
}  # fmt: skip
"""Switches that hide communication, by fact of Framework."""


# Reading.


def meaning(facts: Run) -> Run:
    """Add the axes that Megatron's arguments say together."""
    facts = facts.adding([_zero(facts), *_recompute(facts), _offload(facts), *_precision(facts)])
    facts = facts.adding([*_sequence_parallel(facts), *_chunks(facts), *_model(facts), *_vocabulary(facts)])
    facts = facts.adding([*_latent(facts), *_layer_kinds(facts), *_batches(facts)])
    if not facts.value("latent"):
        facts = facts.without(*(name for name in ("q_rank", *LATENT) if name in facts))
    facts = facts.adding(_schedule(facts))
    facts = facts.adding([*_kernels(facts), *_hidden(facts)])
    if "etp" not in facts and "tp" in facts and facts.value("experts"):
        why = "as tp, the default of --expert-tensor-parallel-size"
        facts = facts.adding([facts.derived("etp", facts.value("tp"), why, "tp")])
    if facts.value("zero") and "instances" in facts:
        facts = facts.adding([facts.meaning("dp_replicate", facts.whole("instances", 1), "instances")])
    return facts


def _zero(facts: Run) -> Stated:
    if facts.value("fsdp"):
        strategy = str(facts.value("fsdp_strategy") or "no_shard")
        return facts.meaning("zero", STRATEGIES.get(strategy, 0), "fsdp_strategy", "fsdp")
    if facts.value("torch_fsdp"):
        return facts.meaning("zero", 3, "torch_fsdp")
    if facts.value("distributed_optimizer"):
        return facts.meaning("zero", 1, "distributed_optimizer")
    return facts.meaning("zero", 0, "distributed_optimizer")


def _recompute(facts: Run) -> Iterator[Stated]:
    how = facts.value("granularity")
    if how is None and "granularity" in facts:
        yield Stated("recompute", None, "unknown", facts.values["granularity"].span, "", facts.values["granularity"].note)
    elif how == "selective":
        yield from _modules(facts)
    else:
        yield facts.meaning("recompute", "full" if how == "full" else "none", "granularity")


def _modules(facts: Run) -> Iterator[Stated]:
    """Yield what selective recompute repeats; `mlp` is of the few layers without experts, and not counted in a model with some."""
    stated = facts.value("recompute_modules")
    named = tuple(str(module) for module in stated) if isinstance(stated, tuple) else ("core_attn",)
    absent = ("mlp",) if facts.whole("experts") else ("moe", "moe_act", "shared_experts") if facts.whole("hidden") else ()
    absent += ("mla_up_proj",) if facts.whole("hidden") and not facts.value("latent") else ()
    names = sorted({name for name in named if name not in absent})
    if not names:
        yield facts.meaning("recompute", "none", "recompute_modules", "granularity")
    elif len(names) == 1 and names[0] in MODULES | EXPERT_MODULES:
        yield facts.meaning("recompute", (MODULES | EXPERT_MODULES)[names[0]], "granularity")
    elif set(names) <= set(PRICED):
        yield facts.meaning("recompute", "selective", "granularity")
        yield facts.meaning("modules", "+".join(names), "recompute_modules")
    else:
        why = f"of {', '.join(name for name in names if name not in PRICED)}, which is not predicted"
        yield facts.derived("recompute", None, why, "recompute_modules", "granularity")


def _offload(facts: Run) -> Stated:
    if facts.value("optimizer_offload"):
        return facts.meaning("offload", "optimizer", "optimizer_offload")
    if facts.whole("activation_offload"):
        return facts.meaning("offload", "activations", "activation_offload")
    return facts.meaning("offload", "none", "optimizer_offload")


def _precision(facts: Run) -> Iterator[Stated]:
    if facts.value("fp4_format"):
        yield facts.meaning("precision", "nvfp4", "fp4_format")
    elif facts.value("fp8_format"):
        recipe = str(facts.value("fp8_recipe") or "delayed")
        yield facts.meaning("precision", FP8.get(recipe, "fp8"), "fp8_recipe" if facts.says("fp8_recipe") else "fp8_format")


def _sequence_parallel(facts: Run) -> Iterator[Stated]:
    if not facts.value("sequence_parallel"):
        yield facts.meaning("sp", 0, "sequence_parallel")
    elif "tp" in facts and facts.value("tp") is None:
        yield facts.derived("sp", None, "on if tp is above 1, and tp is not known", "sequence_parallel")
    elif facts.whole("tp", 1) == 1:
        yield facts.derived("sp", 0, "off: tp is 1", "sequence_parallel")
    else:
        yield facts.meaning("sp", 1, "sequence_parallel")


def _chunks(facts: Run) -> Iterator[Stated]:
    """Yield vpp from the chunks of a stage, or from the layers of a chunk."""
    pp, layers = facts.whole("pp", 1), facts.whole("layers")
    if "vpp" in facts and facts.values["vpp"].how != "default":
        return
    each = facts.whole("layers_per_chunk")
    if each and layers and pp:
        chunks = layers // (pp * each)
        yield facts.derived("vpp", max(1, chunks), f"{layers} layers / ({pp} stages x {each})", "layers_per_chunk")
    elif each:
        yield facts.derived("vpp", None, "layers or pp are not known", "layers_per_chunk")


def _schedule(facts: Run) -> Iterator[Stated]:
    if "schedule" not in facts and facts.value("vpp") is not None and facts.value("pp") is not None:
        interleaved = facts.whole("vpp", 1) > 1 and facts.whole("pp", 1) > 1
        yield facts.derived("schedule", "interleaved" if interleaved else "1f1b", "follows from vpp", "vpp")


def _model(facts: Run) -> Iterator[Stated]:
    """Yield the sizes that Megatron derives where they are not given."""
    heads, hidden = facts.whole("heads"), facts.whole("hidden")
    own = facts.get("kv_heads")  # Microsoft's --num-key-value-heads needs no switch
    if heads and (own is None or (facts.value("grouped") is False and "key" not in own.key)):
        yield facts.derived("kv_heads", heads, "as heads: no --group-query-attention", "heads")
    if hidden and "ffn" not in facts:
        gated = bool(facts.value("gated"))
        width = int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden
        yield facts.derived("ffn", width, "4 x hidden x 2/3 in multiples of 64" if gated else "4 x hidden", "hidden")
    if hidden and heads and "head_dim" not in facts:
        yield facts.derived("head_dim", hidden // heads, "hidden / heads", "hidden")
    if "rotary" in facts and facts.value("rotary"):
        yield facts.meaning("position_kind", "rope", "rotary")
    if facts.value("experts") and "expert_ffn" not in facts and "ffn" in facts:
        yield facts.derived("expert_ffn", facts.value("ffn"), "as --ffn-hidden-size", "ffn")


def _latent(facts: Run) -> Iterator[Stated]:
    """Yield the widths of latent attention that are not given."""
    if facts.value("latent"):
        missing = [name for name in LATENT if name not in facts]
        yield from (
            Stated(name, LATENT[name], "default", None, "--multi-latent-attention", "default of Megatron") for name in missing
        )


_LIST = re.compile(r"\[([01](?:\s*,\s*[01])*)\](?:\s*\*\s*(\d{1,4}))?")


def _layer_kinds(facts: Run) -> Iterator[Stated]:
    """Yield how many of the first layers have no experts, of --moe-layer-freq: N (each Nth layer has some) or '([0]*3+[1]*58)'."""
    stated = facts.get("layer_kinds")
    if stated is None or not facts.whole("experts"):
        return
    text = re.sub(r"\s+", "", str(stated.value or "")).strip("()")
    if text == "1":
        return
    parts = [match for part in text.split("+") if (match := _LIST.fullmatch(part))]
    kinds = "".join(match[1].replace(",", "") * int(match[2] or 1) for match in parts)
    dense = len(kinds) - len(kinds.lstrip("0"))
    if len(parts) == len(text.split("+")) and "0" not in kinds[dense:] and len(kinds) == facts.whole("layers", len(kinds)):
        yield facts.meaning("dense_layers", dense, "layer_kinds")
    else:
        why = f"{stated.value} mixes layers with and without experts, which is not predicted"
        yield facts.derived("dense_layers", None, why, "layer_kinds")


def _batches(facts: Run) -> Iterator[Stated]:
    if "batch_schedule" in facts and facts.value("batch") is None:
        yield facts.derived("batch", None, "--step-batch-size-schedule changes it step by step", "batch_schedule")


def _vocabulary(facts: Run) -> Iterator[Stated]:
    tokenizer = facts.value("tokenizer")
    if "vocab_file" in facts:
        return  # another vocabulary than that of the tokenizer's type
    if facts.value("vocab") is None and isinstance(tokenizer, str) and tokenizer in TOKENIZERS:
        size = TOKENIZERS[tokenizer]
        yield facts.derived("vocab", size, f"{tokenizer} has {size:,} tokens", "tokenizer")


def _kernels(facts: Run) -> Iterator[Stated]:
    """Yield the attention kernel, the loss and the graphs, each of which two arguments say together."""
    version = facts.value(FLASH_VERSION)
    if version and facts.value("attention") in (None, "fa2"):
        yield facts.meaning("attention", version, FLASH_VERSION)
    fused = facts.value(LOSS_FUSION)
    if fused is not None:
        kind = facts.value(LOSS_KERNEL) or "compiled"
        yield facts.meaning("loss", kind, LOSS_FUSION) if fused else facts.meaning("loss", "materialised", LOSS_FUSION)
    graphs = facts.value(GRAPH_KIND)
    if graphs is not None:
        whole = graphs != "none" and facts.value(GRAPH_STEP)
        yield facts.meaning("graphs", "full" if whole else graphs, GRAPH_KIND)


def _hidden(facts: Run) -> Iterator[Stated]:
    """Yield the communication that is hidden, without switches whose degree is 1 and tensor parallelism, off in every release."""
    known = dict(SWITCHES)
    if not facts.says("overlap_tp"):
        known.pop("overlaps_tp")
    if not facts.says("overlap_ep") and facts.whole("ep", 1) == 1:
        known.pop("overlaps_experts")
    yield from recipe.overlap(facts, known)


# Writing.


def wording(setup: Setup) -> dict[str, Value]:
    """Return a plan's facts with those that Megatron words differently under the names of this table."""
    values = dict(setup.values)
    zero = setup.whole("zero", 0)
    values["distributed_optimizer"] = zero == 1
    values["fsdp"] = zero > 1
    if zero > 1:
        values["fsdp_strategy"] = {stage: word for word, stage in STRATEGIES.items()}[zero]
        values["checkpoint_format"] = "fsdp_dtensor"
    if zero and setup.whole("dp_replicate") > 1:
        values["instances"] = setup.whole("dp_replicate")
    values["sequence_parallel"] = bool(setup.whole("sp", 0))
    values |= _recompute_words(setup.text("recompute", "none"), setup.whole("experts", 0) > 0)
    values |= _offload_words(setup)
    values |= _precision_words(setup.text("precision", "bf16"))
    values |= _stage_words(setup)
    values["latent"] = bool(setup.values.get("kv_rank"))
    if setup.values.get("dense_layers") and setup.values.get("experts"):
        dense = setup.whole("dense_layers")
        values["layer_kinds"] = f"([0]*{dense}+[1]*{setup.whole('layers') - dense})"
    values["grouped"] = setup.whole("kv_heads", 0) not in (0, setup.whole("heads", 0)) and not values["latent"]
    if values["latent"]:
        values.pop("head_dim", None)
    if not setup.values.get("experts"):
        values.pop("etp", None)
    if not values["grouped"]:
        values.pop("kv_heads", None)
    return values


def recipe_words(setup: Setup) -> dict[str, Value]:
    """Return the kernels that a plan states."""
    words: dict[str, Value] = {}
    attention, loss, graphs = (setup.text(name) for name in ("attention", "loss", "graphs"))
    if attention in ("fa3", "fa4"):
        words |= {"attention": "fa2", FLASH_VERSION: attention}
    if loss in ("compiled", "kernel"):
        words |= {LOSS_FUSION: True, LOSS_KERNEL: loss}
    if graphs:
        words |= {GRAPH_KIND: "partial" if graphs == "full" else graphs}
    return words | ({GRAPH_STEP: True, GRAPH_NANS: True} if graphs == "full" else {})


def switch_words(setup: Setup, *, assumed: bool = True) -> dict[str, Value]:
    """Return the switches of the communication that is hidden, where the layout has it: of a plan, what it assumes too where `assumed`."""
    hidden = recipe.hidden(setup, assumed=assumed)
    words: dict[str, Value] = {name: hidden[fact] for fact, name in SWITCHES.items() if fact in hidden}
    for name, _ in _impossible(setup):
        words |= {name: False} if name in words else {}
    return words | dispatcher_words(setup)


def dispatcher_words(setup: Setup) -> dict[str, Value]:
    """Return how tokens reach experts: DeepEP's way where the plan counts on it, else all-to-all; the default sends all to every rank."""
    if not setup.values.get("experts") or setup.plan is None:
        return {}
    if setup.whole("ep") > 1 and setup.plan.question().work.framework.sends_once:
        return {DISPATCHER: "flex", FLEX: "deepep"}
    return {DISPATCHER: "alltoall"}


def _impossible(setup: Setup) -> Iterator[tuple[str, str]]:
    """Yield switches that do nothing or stop a layout, and why: Megatron Core's TransformerConfig and arguments.py (recalled)."""
    if setup.whole("tp") == 1 or not setup.whole("sp", 0):
        yield "overlap_tp", "" if setup.whole("tp") == 1 else "hides tensor-parallel communication only with sequence parallelism"
    if not setup.whole("zero", 0):
        yield "overlap_gather", ""
    if setup.whole("ep") == 1:
        yield "overlap_ep", ""
    elif setup.text("recompute") == "full":
        yield "overlap_ep", "hides expert communication only without full recompute"
    elif setup.whole("pp") > 1 and setup.whole("vpp") == 1:
        yield "overlap_ep", "hides expert communication in a pipeline only with interleaved stages"


def _recompute_words(how: str, experts: bool) -> dict[str, Value]:
    if how == "full":
        return {"granularity": "full", "recompute_method": "uniform", "recompute_layers": 1}
    if how == "none":
        return {}
    known = MODULES | EXPERT_MODULES if experts else MODULES
    module = {value: name for name, value in known.items()}.get(how, "core_attn")
    words: dict[str, Value] = {"granularity": "selective"}
    return words | {"recompute_modules": (module,)} if how != "selective" else words


def _offload_words(setup: Setup) -> dict[str, Value]:
    how = setup.text("offload", "none")
    if how == "optimizer":
        return {"optimizer_offload": True, "offload_fraction": OFFLOAD_FRACTION, "precise_optimizer": True}
    if how == "activations":
        return {"activation_offload": -(-setup.whole("layers") // setup.whole("pp"))}
    return {}


def _precision_words(precision: str) -> dict[str, Value]:
    base: dict[str, Value] = {"precision": "fp16" if precision == "fp16" else "bf16"}
    if precision == "nvfp4":
        return base | {"fp4_format": "e2m1", "fp4_recipe": "nvfp4"}
    recipes = {"fp8": ("hybrid", "tensorwise"), "fp8-block": ("e4m3", "blockwise"), "mxfp8": ("e4m3", "mxfp8")}
    if precision in recipes:
        return base | {"fp8_format": recipes[precision][0], "fp8_recipe": recipes[precision][1]}
    return base


def _stage_words(setup: Setup) -> dict[str, Value]:
    """Return the cut into stages where pp does not divide the layers: embedding and head count as one each, the last has the remainder."""
    layers, pp = setup.whole("layers", 0), setup.whole("pp")
    if pp == 1 or layers % pp == 0:
        return {}
    if (layers + 2) % pp == 0:
        return {"embedding_in_split": True, "loss_in_split": True}
    each = -(-(layers + 2) // pp)
    return {"first_stage_layers": each - 1, "last_stage_layers": layers - (each - 1) - (pp - 2) * each}


def refuse(setup: Setup, title: str) -> Iterator[Refusal]:
    """Yield what Megatron cannot say."""
    if setup.text("schedule") in ("zero-bubble", "naive"):
        yield Refusal(f"{title} has no {setup.text('schedule')} schedule", {"schedule": "1f1b", "vpp": 1})
    how = setup.text("recompute", "none")
    if how not in ("none", "full", *MODULES.values()):
        yield Refusal(f"{title} cannot recompute {how}", {"recompute": "full"})
    if setup.text("offload", "none") == "parameters":
        yield Refusal(f"{title} cannot offload parameters", {"offload": "optimizer"})
    if setup.text("offload", "none") == "activations" and (setup.whole("pp") > 1 or how != "none"):
        yield Refusal(f"{title} offloads activations only without a pipeline and without recompute", {"offload": "none"})
    if setup.whole("zero", 0) > 1 and setup.whole("pp") > 1:
        yield Refusal(f"{title} shards gradients and weights (Megatron-FSDP) only without a pipeline", {"zero": 1})
    if setup.text("precision") == "fp8-row":
        yield Refusal(f"{title} has no fp8 recipe with a scale per row", {"precision": "fp8"})
    if setup.text("loss") == "chunked" or (setup.text("loss") == "fused" and setup.plan is not None):
        yield Refusal(f"{title} has no {setup.text('loss')} loss", {"loss": "kernel"})
    if setup.values.get("compile"):
        yield Refusal(f"{title} does not compile layers", {"compile": 0})
    yield from refused_optimizer(setup, title, ("adamw", "sgd-momentum", "sgd", "muon"))


def refused_recipe(setup: Setup, title: str, can: Mapping[str, Iterable[str]]) -> Iterator[Refusal]:
    """Yield what it cannot say of a recipe, and hidden communication that the layout does not allow."""
    yield from recipe.refuse(setup, title, can)
    stated = recipe.hidden(setup, assumed=False)
    asked = {name for fact, name in SWITCHES.items() if stated.get(fact)}
    left = {fact: on for fact, on in stated.items() if not (on and SWITCHES.get(fact) in dict(_impossible(setup)))}
    for name, why in _impossible(setup):
        if name in asked and why:
            yield Refusal(f"{title} {why}", {"overlap": overlap_text(left)})


def refused_optimizer(setup: Setup, title: str, known: tuple[str, ...]) -> Iterator[Refusal]:
    """Yield a refusal if the program lacks the plan's optimizer."""
    if setup.text("optimizer", "adamw") not in known:
        yield Refusal(f"{title} has no optimizer {setup.text('optimizer')}", {"optimizer": known[0]})


def refused_model(setup: Setup, title: str, positions: tuple[str, ...]) -> Iterator[Refusal]:
    """Yield a refusal where a model is more than the sizes and switches of the table."""
    if setup.plan is None:
        return  # the layout of a file, whose model is the file's own
    model = setup.plan.question().model
    blocks = {name for layer in model.layers for name in layer}
    latent = ("mla",) if "megatron" in title.lower() and "DeepSpeed" not in title else ()
    known = model.family in ("dense", "moe", *latent) and model.decoder.qk_norm != "all"  # over all heads, as in OLMo-2
    if not known or not blocks <= {"attention", "ffw", "moe"} or model.decoder.norms != 2:
        why = f"its arguments here do not describe the layers of {model.model_type}"
        yield Refusal(f"{why}; write them in {title}'s model code", {})
    if setup.text("position_kind") not in positions:
        yield Refusal(f"{title} has no {setup.text('position_kind')} positions", {})
