"""LitGPT: the YAML or the flags of `litgpt pretrain`, `litgpt finetune_full` and `litgpt finetune_lora`; read only."""

from collections.abc import Sequence

from meshwise.programs.program import Program
from meshwise.programs.source import Setting, Source
from meshwise.programs.table import table
from meshwise.runs.run import Run, Stated

TITLE, VERSION = "LitGPT", "0.5"
PRECISIONS = {"bf16-mixed": "bf16", "16-mixed": "fp16", "32-true": "fp32", "32": "fp32"}
TRUE = ("bf16-true", "16-true")  # weights, gradients and optimizer state all in 16 bits

KEYS = table("litgpt")
SHARED = {"--config", "positional", "precision", "devices", "optimizer", "seed", "num_nodes", "model_name"}
OWN = {row.key for row in KEYS} - SHARED


def meaning(facts: Run) -> Run:
    """Add precision, sharding and the adapter. It shards over all devices of one run with FSDP (its own strategy)."""
    text = str(facts.value("precision_text") or "")
    more: list[Stated] = []
    adapts = facts.value("rank") is not None
    if text in PRECISIONS:
        more.append(facts.meaning("precision", PRECISIONS[text], "precision_text"))
    elif text in TRUE and adapts:
        more.append(facts.meaning("precision", "bf16" if text.startswith("bf16") else "fp16", "precision_text"))
    elif text or "precision_text" not in facts:
        why = f"{text}: all state in 16 bits, which is not predicted" if text else "not stated: it depends on the device"
        more.append(facts.derived("precision", None, why, "precision_text"))
    devices = str(facts.value("devices_text") or "")
    if devices.isdecimal() and len(devices) < 9:
        more.append(facts.meaning("devices_per_node", int(devices), "devices_text"))
    if adapts:
        more.append(facts.meaning("adapter", "qlora" if "nf4" in str(facts.value("quantize") or "") else "lora", "rank"))
    one = devices == "1" and facts.whole("nodes", 1) == 1
    more.append(
        facts.derived("zero", 0 if one else 3, "one device" if one else "FSDP over all devices, its own strategy", "devices_text")
    )
    more += [Stated(name, value, "derived", None, "", "its own recipes") for name, value in FIXED.items()]
    more.append(Stated("recompute", None, "unknown", None, "", "pretrain recomputes nothing, finetune_full every layer: --set recompute=")
                if not adapts else Stated("recompute", "none", "derived", None, "", "finetune_lora recomputes nothing"))  # fmt: skip
    task = str(facts.value("positional_task") or "")
    if task in TASKS:
        more.append(facts.meaning("recompute", TASKS[task], "positional_task"))
    named = str(facts.value("optimizer_text") or "adamw").rpartition(".")[2].lower()
    more.append(
        Stated("optimizer", "adamw" if "adamw" in named else None, "derived" if "adamw" in named else "unknown", None, "", named)
    )
    return facts.adding(more)


TASKS = {"pretrain": "none", "finetune_full": "full", "finetune_lora": "none", "finetune": "none"}
FIXED: dict[str, int | str] = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "offload": "none"}


def recognises(settings: Sequence[Setting], source: Source | None, script: str) -> int:
    """Return how many of LitGPT's keys a file or a command has; a command of its own is certain."""
    names = {setting.key.removeprefix("--") for setting in settings}
    own = len(names & OWN)
    if script == "litgpt":
        return 20 + own
    return own + 3 if not script and {"train.global_batch_size", "train.micro_batch_size"} <= names else 0


PROGRAM = Program(
    name="litgpt", title=TITLE, version=VERSION, framework="fsdp", form="yaml", keys=KEYS, write=None, meaning=meaning,
    recognises=recognises, flag_words=True, refers={"--config": "litgpt"},
)  # fmt: skip
