"""Megatron-DeepSpeed: Megatron's flags of 2022 and DeepSpeed's JSON, by BigScience's code (BLOOM) and Microsoft's newer one."""

from collections.abc import Iterable, Sequence

from meshwise.programs import forms
from meshwise.programs.kinds import Kind
from meshwise.programs.program import Program, Refusal, Setup, Written
from meshwise.programs.source import Setting, Source
from meshwise.programs.table import table
from meshwise.programs.train import megatron, megatron_rules, recipe
from meshwise.programs.train.deepspeed import replicas
from meshwise.programs.train.limits import Limits, limited
from meshwise.runs.run import Run, Stated, Value

TITLE, VERSION = "Megatron-DeepSpeed", "of BigScience, 2022"
FILE = "ds_config.json"
ANY = Kind(lambda _: True, lambda _: None, "anything")
_OTHER = (
    "position_kind", "norm", "optimizer", "gated", "biased", "tied", "granularity", "fsdp", "instances", "vpp", "ep", "cp",
    "vocab",
)  # fmt: skip

KEYS = table(
    "megatron-deepspeed", megatron=(row for row in megatron.KEYS if row.fact not in _OTHER), any=ANY,
    granularity=megatron.GRANULARITY,
)  # fmt: skip
LIMITS: Limits = {
    "zero": (0, 1), "recompute": ("none", "full"), "offload": ("none",), "schedule": ("1f1b",), "vpp": (1,), "cp": (1,),
    "ep": (1,), "sp": (0,), "precision": ("bf16", "fp16"), "optimizer": ("adamw", "sgd-momentum"), "loss": ("",),
    "compile": (False,),
}  # fmt: skip


def meaning(facts: Run) -> Run:
    """Add what Megatron's flags and DeepSpeed's JSON say together."""
    facts = facts.without("predicted_by")
    sharding = _zero(facts)
    offload = facts.get("offload")
    facts = megatron_rules.meaning(facts)
    facts = facts.adding([sharding] if sharding else [])
    if offload is not None and offload.how != "default":
        facts = facts.adding([offload])
    if facts.value("cpu_optimizer"):
        facts = facts.adding([facts.meaning("offload", "optimizer", "cpu_optimizer")])
    return facts


def _zero(facts: Run) -> Stated | None:
    """Return the ZeRO stage: of the JSON, else of --zero-stage. DeepSpeed shards the optimizer of bf16 with a pipeline even in stage 0."""
    if not facts.value("deepspeed"):
        return None
    name = "stage" if facts.says("stage") else "stage_flag" if "stage_flag" in facts else "stage"
    stated = facts.get(name)
    if stated is None:
        given = facts.get("config_file")
        why = f"in {given.value}, which was not given" if given and given.value else "in DeepSpeed's JSON, which was not given"
        return Stated("zero", None, "unknown", given.span if given else None, "--deepspeed_config", why)
    if stated.value is None:
        return Stated("zero", None, "unknown", stated.span, stated.key, stated.note)
    piped = not facts.value("no_pipeline")
    if facts.whole(name) == 0 and piped and facts.value("precision") == "bf16":
        return facts.derived("zero", 1, "stage 0, but DeepSpeed's pipeline shards the optimizer of bf16", name)
    return facts.meaning("zero", facts.whole(name), name)


MISSING_FACTS = (
    "distributed_optimizer", "embedding_in_split", "loss_in_split", "first_stage_layers", "last_stage_layers",
    "recompute_method", "recompute_layers", "head_dim", "norm_eps", "rope_theta", "tied", "biased", "norm", "qkv_bias",
    "qk_norm", "steps",
)  # fmt: skip
"""Facts with flags in newer Megatron that this one lacks or derives."""


def stage_of(setup: Setup) -> int:
    """Return the ZeRO stage to write: 0 for bf16, whose optimizer its pipeline shards itself."""
    return setup.whole("zero", 0) if setup.text("precision", "bf16") == "fp16" else 0


def wording(setup: Setup) -> dict[str, Value]:
    """Return a plan's facts in the words of its flags."""
    values = megatron_rules.wording(setup)
    values["no_pipeline"] = False
    values |= {"deepspeed": True, "stage_flag": stage_of(setup), "stage": stage_of(setup), "config_file": FILE}
    values["positions"] = max(setup.whole("seq"), setup.whole("positions", 0))
    values |= {"deepspeed_checkpointing": True} if setup.text("recompute") == "full" else {}
    if setup.whole("layers", 0) % setup.whole("pp"):
        values["partition"] = "type:transformer|embedding"
    return {name: value for name, value in values.items() if name not in MISSING_FACTS}


def write(setup: Setup) -> Written:
    """Return DeepSpeed's JSON and the command."""
    values = wording(setup)
    values |= {"embedding_norm": True} if setup.plan.question().model.decoder.embedding_norm else {}
    samples = setup.values.get("samples") or "${TRAIN_SAMPLES:?set TRAIN_SAMPLES: the sequences to train on}"
    pairs = [*PROGRAM.settings(values), ("--train-samples", samples)]
    sections = [
        ("train_micro_batch_size_per_gpu", setup.whole("mbs")), ("train_batch_size", setup.whole("batch")),
        ("zero_optimization.stage", stage_of(setup)), (f"{setup.text('precision', 'bf16')}.enabled", True),
    ]  # fmt: skip
    return Written(
        {FILE: forms.json_text(sections)}, (megatron.SCRIPT, *forms.flag_words([*pairs, *megatron.to_set(*TOKENIZER)]))
    )


TOKENIZER = (
    ("--tokenizer-type", "PretrainedFromHF"),
    ("--tokenizer-name-or-path", "${TOKENIZER:?set TOKENIZER: a hub id or the folder of a tokenizer}"),
)


def refuse(setup: Setup) -> Iterable[Refusal]:
    yield from limited(setup, TITLE, LIMITS)
    yield from recipe.refuse(setup, TITLE, {})
    yield from replicas(setup, TITLE)
    if setup.text("precision") == "bf16" and not setup.whole("zero", 0) and setup.whole("dp") > 1:
        near = {"zero": 1, "dp_replicate": 1, "dp_shard": setup.whole("dp")}
        yield Refusal(f"{TITLE} always shards the optimizer of bf16 (ZeRO 1)", near)
    yield from megatron_rules.refused_model(setup, TITLE, ("learned", "rope", "alibi"))
    if setup.values.get("experts") or setup.text("norm") == "rmsnorm" or setup.whole("kv_heads", 0) != setup.whole("heads", 0):
        yield Refusal(f"{TITLE} of 2022 has no experts, RMSNorm or grouped queries; export --to megatron", {})


def edition(facts: Run) -> str:
    """Return whose code has the flags of a file."""
    return "of Microsoft" if facts.value("microsoft") else VERSION


def recognises(settings: Sequence[Setting], source: Source | None, script: str) -> int:
    """Return more than Megatron-LM where a command has DeepSpeed's flags too."""
    names = {setting.key.replace("_", "-") for setting in settings}
    own = names & {
        "--deepspeed", "--zero-stage", "--deepspeed-config", "--deepspeed-activation-checkpointing",
        "--ds-sequence-parallel-size",
    }  # fmt: skip
    base = megatron.recognises(settings, source, script)
    return base + 2 * len(own) if own and base else 0


PROGRAM = Program(
    name="megatron-deepspeed", title=TITLE, version=VERSION, framework="megatron-deepspeed", form="flags", keys=KEYS,
    write=write, refuse=refuse, wording=wording, meaning=meaning, recognises=recognises, edition=edition,
    refers={"--deepspeed_config": "deepspeed", "--deepspeed-config": "deepspeed"},
)  # fmt: skip
