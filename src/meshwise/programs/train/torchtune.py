"""torchtune: the YAML of its recipes for full fine-tuning, LoRA, DoRA and QLoRA, on one device and with FSDP2 on several."""

from collections.abc import Iterable, Sequence
from typing import Any

from meshwise.programs import forms
from meshwise.programs.program import Program, Refusal, Setup, Written
from meshwise.programs.source import Setting, Source
from meshwise.programs.table import table
from meshwise.programs.train import adapters, recipe, trainer
from meshwise.programs.train import torchtune_builders as builders
from meshwise.programs.train.limits import NO_EXPERTS, NO_PIPELINE, Limits, limited, offload_needs_shards
from meshwise.runs.run import Run, Stated, Value

TITLE, VERSION = "torchtune", "0.6.1"
FILE = "torchtune.yaml"
RECIPES = tuple(f"{what}_finetune_{where}" for what in ("full", "lora") for where in ("single_device", "distributed"))
CHUNKED, WHOLE = "torchtune.modules.loss.CEWithChunkedOutputLoss", "torch.nn.CrossEntropyLoss"
RANK, ALPHA = 8, 16  # arguments of the lora_* functions where a file does not state them
OPTIMIZERS = {
    "adamw": "torch.optim.AdamW", "adamw-8bit": "bitsandbytes.optim.AdamW8bit",
    "adamw-paged": "bitsandbytes.optim.PagedAdamW", "adamw-paged-8bit": "bitsandbytes.optim.PagedAdamW8bit",
    "adafactor": "torch.optim.Adafactor", "sgd": "torch.optim.SGD",
}  # fmt: skip
SHARDED_OPTIMIZERS = {"adamw": "torch.optim.AdamW", "adamw-8bit": "torchao.optim.AdamW8bit", "sgd": "torch.optim.SGD"}
"""Optimizers that update the sharded tensors of FSDP2; those of bitsandbytes do not."""

KEYS = table("torchtune", names=adapters.NAMES, optimizers=trainer.OPTIMIZERS)
LIMITS: Limits = {
    **NO_PIPELINE, **NO_EXPERTS, "cp": (1,), "sp": (0,), "recompute": ("none", "full"), "precision": ("bf16",),
    "offload": ("none", "parameters", "activations"), "optimizer": tuple(OPTIMIZERS), "loss": ("kernel", "materialised", ""),
}  # fmt: skip


def meaning(facts: Run) -> Run:
    """Add the model, its adapters, the ZeRO stage of FSDP2, the loss, and what is offloaded."""
    more: list[Stated] = [facts.meaning("zero", 3 if facts.value("reshard") else 2, "reshard")]
    more.append(facts.meaning("sp", 0, "tp"))
    out = next((name for name in ("state_out", "activations_out") if facts.value(name)), "")
    offload = {"state_out": "parameters", "activations_out": "activations"}.get(out, "none")
    more.append(facts.meaning("offload", offload, out or "activations_out"))
    if "loss_class" in facts:
        chunked = "Chunked" in str(facts.value("loss_class"))
        more.append(facts.meaning("loss", "kernel" if chunked else "materialised", "loss_class"))
    return facts.adding([*more, *_model(facts)])


def _model(facts: Run) -> Iterable[Stated]:
    """Yield the preset and the adapter that the function of model._component_ says."""
    preset, start, _ = builders.parts(str(facts.value("builder") or ""))
    if "builder" in facts:
        yield facts.meaning("model", preset or str(facts.value("builder")), "builder")
    if not start:
        return
    quantized = start == "qlora" or facts.value("quantized")
    yield facts.meaning("adapter", "qlora" if quantized else "dora" if facts.value("dora") else "lora", "builder")
    attention = facts.value("adapted")
    if isinstance(attention, tuple):
        yield facts.meaning("targets", builders.read(tuple(map(str, attention)), bool(facts.value("mlp"))), "adapted")
    for name, default in (("rank", RANK), ("alpha", ALPHA)):
        if name not in facts:
            yield Stated(name, default, "default", None, f"model.lora_{name}", f"default of {TITLE} {VERSION}")


def wording(setup: Setup) -> dict[str, Value]:
    """Return a plan's facts in the words of the YAML."""
    values: dict[str, Value] = dict(setup.values)
    several, tp = _several(setup), setup.whole("tp")
    method, optimizer = setup.text("adapter"), setup.text("optimizer", "adamw")
    function = _function(setup)
    offload = setup.text("offload", "none")
    values |= {
        "builder": builders.component(function, method),
        "packed": bool(setup.plan.ask.packing) if setup.plan is not None else True,
        "optimizer_class": (SHARDED_OPTIMIZERS if several else OPTIMIZERS)[optimizer],
        "loss_class": WHOLE if setup.text("loss") == "materialised" else CHUNKED,
        "activations_out": offload == "activations",
    }
    values |= {"fused_update": True} if optimizer == "adamw" and tp == 1 else {}
    if several:
        values |= {"reshard": setup.whole("zero", 0) != 2, "state_out": offload == "parameters"}
    if tp > 1:
        values["tp_plan"] = f"{builders.MODELS}llama3.base_llama_tp_plan"
    if method:
        attention, mlp = builders.written(values["targets"]) or ((), False)
        values |= {"adapted": attention, "mlp": mlp} | ({"dora": True} if method == "dora" else {})
        if method == "qlora" and not _family(function).qlora:
            values["quantized"] = True
    return values


def _several(setup: Setup) -> bool:
    return setup.whole("devices") > 1


def _function(setup: Setup) -> str:
    """Return the function that builds the model, '' where there is none; the name that the user gave tells Instruct from base."""
    return builders.builder_of(str(setup.plan.ask.model) if setup.plan is not None else setup.model)


def _family(function: str) -> builders.Family:
    return builders.FAMILIES[function.partition(".")[0]]


def write(setup: Setup) -> Written:
    """Return the YAML and the command, which torchtune itself hands to torchrun on every node."""
    words = wording(setup)
    recipe = f"{'lora' if setup.text('adapter') else 'full'}_finetune_{'distributed' if _several(setup) else 'single_device'}"
    text = forms.yaml_text([*PROGRAM.settings(words), *_others(setup)], (*setup.header, *_notes(setup)))
    return Written({FILE: text}, ("tune", "run", *_launch(setup), recipe, "--config", FILE), starter="node")


def _notes(setup: Setup) -> list[str]:
    """Return what differs from the prediction, for the comment at the top."""
    if setup.text("adapter"):
        joined = f"{TITLE} adapts qkv_proj and gate_up_proj as separate layers: adapters have more parameters than predicted."
        return [joined] if _family(_function(setup)).unjoined else []
    if setup.plan is not None and setup.plan.framework == TITLE:
        return []
    kept = f"{TITLE} keeps weights, gradients and optimizer states in dtype"
    return [f"{kept}, without a float32 copy: less memory than predicted."]


def _launch(setup: Setup) -> list[str]:
    """Return torchrun's options: none on one device, whose recipes refuse them. Without an endpoint, torchtune starts one node alone."""
    if not _several(setup):
        return []
    nodes = ["--nnodes", "$NNODES", "--rdzv_backend", "c10d", "--rdzv_endpoint", "$MASTER_ADDR:$MASTER_PORT"]
    return [*(nodes if setup.whole("nodes") > 1 else []), "--nproc_per_node", str(setup.whole("devices_per_node"))]


def _others(setup: Setup) -> list[tuple[str, Any]]:
    """Return the keys that the recipes need and that no plan knows: placeholders, and constants."""
    todo, family = forms.PLACEHOLDER, _family(_function(setup))
    pairs: list[tuple[str, Any]] = [
        ("tokenizer._component_", f"{builders.MODELS}{family.tokenizer}"),
        *((f"tokenizer.{name}", [f"{todo}: a file of the tokenizer, as text"]) for name in family.paths),
        ("checkpointer._component_", "torchtune.training.FullModelHFCheckpointer"),
        ("checkpointer.checkpoint_dir", [f"{todo}: the folder of {setup.model}, as text"]),
        ("checkpointer.checkpoint_files", f"{todo}: a list of its safetensors files"),
        ("checkpointer.output_dir", "${output_dir}"), ("checkpointer.model_type", family.model_type),
        ("dataset._component_", f"{todo}: a function of torchtune.datasets"), ("optimizer.lr", f"{todo}: the peak learning rate"),
        ("output_dir", [f"{todo}: the folder of checkpoints, as text"]),
        ("epochs", 1 if setup.values.get("steps") else f"{todo}: the number of epochs"),
    ]  # fmt: skip
    pairs += [] if setup.values.get("steps") else [("max_steps_per_epoch", None)]
    pairs += [("resume_from_checkpoint", False), ("shuffle", True), ("seed", None), ("device", "cuda")]
    if setup.text("adapter"):  # their recipes need a schedule
        pairs += [("lr_scheduler._component_", "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup")]
        pairs += [("lr_scheduler.num_warmup_steps", f"{todo}: the number of steps")]
    elif not setup.values.get("in_backward"):
        pairs += [("optimizer_in_bwd", False)]
    pairs += [("metric_logger._component_", "torchtune.training.metric_logging.DiskLogger")]
    return [*pairs, ("metric_logger.log_dir", "${output_dir}/logs"), ("log_peak_memory_stats", True)]


def refuse(setup: Setup) -> Iterable[Refusal]:
    yield from recipe.refuse(setup, TITLE, {})
    function = _function(setup)
    if not function:
        yield Refusal(f"{TITLE} {VERSION} has no model builder for {setup.model}; it has {', '.join(builders.BUILDERS)}", {})
        return
    if "objective" in setup.values:
        yield Refusal(f"{setup.text('objective')} is another recipe, which is not written; expected --objective sft", {})
    yield from _adapted(setup)
    yield from limited(setup, TITLE, LIMITS)
    yield from _sharded(setup)
    yield from offload_needs_shards(setup, TITLE)
    if setup.text("offload") == "activations" and setup.text("recompute") == "none":
        yield Refusal(f"{TITLE} offloads activations only with full recompute", {"recompute": "full"})
    if setup.whole("tp") > 1 and (setup.text("adapter") or not _family(function).splits):
        which = "llama3, llama3_1 and llama3_3"
        yield Refusal(f"{TITLE} has tensor parallelism only for full fine-tuning of {which} (tp {setup.whole('tp')})", {"tp": 1})


def _adapted(setup: Setup) -> Iterable[Refusal]:
    """Yield refusals of targets that torchtune cannot name, and of DoRA where its function lacks it."""
    if not setup.text("adapter"):
        return
    if setup.text("adapter") == "dora" and _function(setup) in builders.NO_DORA:
        yield Refusal(f"{TITLE} has no DoRA for {setup.model}; expected --finetune lora:{setup.whole('rank')}", {})
    if builders.written(setup.values["targets"]) is None:
        adapter = f"{setup.text('adapter')}:{setup.whole('rank')}"
        why = f"{TITLE} attaches adapters to some of {', '.join(builders.ATTENTION)}, with or without all of {', '.join(builders.MLP)}"
        yield Refusal(f"{why}; expected such targets or --finetune {adapter}", {})


def _sharded(setup: Setup) -> Iterable[Refusal]:
    """Yield refusals of data parallelism that is not one group of FSDP2 shards, and of optimizers that cannot be sharded."""
    dp, replicas, optimizer = setup.whole("dp"), setup.whole("dp_replicate"), setup.text("optimizer", "adamw")
    shards = {"dp_replicate": 1, "dp_shard": dp}
    if dp > 1 and setup.whole("zero", 0) not in (2, 3):
        yield Refusal(f"{TITLE} has only FSDP on several devices, no ZeRO {setup.whole('zero', 0)}", {"zero": 3, **shards})
    elif replicas > 1:
        yield Refusal(f"{TITLE} shards over all data ranks, without replicas (dp_replicate {replicas})", shards)
    if _several(setup) and optimizer in OPTIMIZERS and optimizer not in SHARDED_OPTIMIZERS:
        instead = "adamw-8bit" if "8bit" in optimizer else "adamw"
        yield Refusal(f"{TITLE} has {optimizer} only on one device: it does not update FSDP's shards", {"optimizer": instead})


def recognises(settings: Sequence[Setting], source: Source | None, script: str) -> int:
    """Return a score for a recipe's name in a command, or a YAML whose model is built by torchtune."""
    if script.rpartition("/")[2].removesuffix(".py") in RECIPES:
        return 20
    built = any(one.key == "model._component_" and str(one.value).startswith(builders.MODELS) for one in settings)
    return len({one.key for one in settings} & {row.key for row in KEYS}) if built else 0


PROGRAM = Program(
    name="torchtune", title=TITLE, version=VERSION, framework="torchtune", form="yaml", keys=KEYS, write=write, refuse=refuse,
    wording=wording, meaning=meaning, recognises=recognises, refers={"--config": "torchtune"},
    check=f"tune validate {FILE}",
)  # fmt: skip
