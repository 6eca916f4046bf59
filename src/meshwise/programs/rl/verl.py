"""verl: commands with key=value, and YAML with the same keys, of the synchronous, one-step-off and asynchronous trainers."""

from collections.abc import Sequence

from meshwise.catalogue.rl_programs import rl_programs
from meshwise.programs import forms
from meshwise.programs.kinds import word
from meshwise.programs.program import Program, Setup, Written
from meshwise.programs.rl.facts import one_objective, tokens_of
from meshwise.programs.source import Setting, Source
from meshwise.programs.table import table
from meshwise.runs.run import Run, Stated, Value

TITLE, VERSION = "verl", "0.9.1"
ACTOR, ROLLOUT, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
STRATEGIES = word({"fsdp": "fsdp2", "megatron": "megatron"}, {"fsdp": "fsdp", "torchtitan": None, "veomni": None})
TRAINERS = {
    "colocated": ("verl.trainer.main_ppo", "ppo"), "split": ("verl.experimental.one_step_off_policy.main_ppo", "one_step_off_ppo"),
    "async": ("verl.experimental.fully_async_policy.fully_async_main", "fully_async_ppo"),
}  # fmt: skip
"""Module and start of the name of its configuration, by mode."""
KEYS = table("verl", strategies=STRATEGIES)


def wording(setup: Setup) -> dict[str, Value]:
    """Return the facts of a split in verl's words."""
    values = dict(setup.values)
    objective, megatron, inside = setup.text("objective"), setup.text("strategy") == "megatron", setup.whole("devices_per_node")
    names = rl_programs()["verl"].objectives
    values |= {
        "estimator": "grpo" if objective == "gkd" else names[objective], "engine": "vllm", "dynamic": bool(values["packed"]),
    }  # fmt: skip
    values |= (
        {"row_tokens": tokens_of(setup)}
        if values["packed"]
        else {"read_mbs": setup.whole("mbs"), "reference_mbs": setup.whole("mbs")}
    )
    for name in ("partial", *(("mbs",) if values["packed"] else ())):
        values.pop(name)  # the asynchronous trainer alone has the first
    values |= {"clip_high": 0.28} if objective == "dapo" else {}
    if megatron:
        values |= {"megatron_cp": values.pop("cp")}
        if setup.whole("ep") == 1:
            values.pop("etp", None)
        values |= {"megatron_out": setup.text("mode") == "colocated"}
    else:
        for name in ("tp", "pp", "ep", "etp"):
            values.pop(name, None)
        values |= {"state_out": setup.text("mode") == "colocated", "optimizer_out": setup.text("mode") == "colocated"}
    if "critic_model" in values and not values["packed"]:
        values["critic_mbs"] = setup.whole("mbs")
    values |= {"rewarded": True} if "reward_model" in values else {}
    values |= {"distilled": True} if "teacher_model" in values else {}
    return values | _devices(setup, inside)


def _devices(setup: Setup, inside: int) -> dict[str, Value]:
    """Return which nodes train and which generate."""
    if setup.text("mode") == "colocated":
        return {}
    shares = {"nodes": setup.whole("train_devices"), "rollout_nodes": setup.whole("rollout_devices")}
    whole = all(devices % inside == 0 for devices in shares.values())
    found: dict[str, Value] = {name: devices // inside if whole else 1 for name, devices in shares.items()}
    found |= {
        "devices_per_node": inside if whole else shares["nodes"],
        "rollout_per_node": inside if whole else shares["rollout_nodes"],
    }
    return found | ({"partial": True, "synced_every": 1} if setup.text("mode") == "async" else {})


def write(setup: Setup) -> Written:
    """Return the command. Data are placeholders, and the reward is the one that verl has for the data's name."""
    module, start = TRAINERS[setup.text("mode")]
    name = f"{start}{'_megatron' * (setup.text('strategy') == 'megatron')}_trainer"
    pairs = [
        *PROGRAM.settings(wording(setup)), ("data.train_files", f"{forms.PLACEHOLDER}_train.parquet"),
        ("data.val_files", f"{forms.PLACEHOLDER}_validation.parquet"),
    ]  # fmt: skip
    words = tuple(f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in pairs)
    return Written({}, ("python3", "-m", module, "--config-name", name, *words), starter="once")


def meaning(facts: Run) -> Run:
    """Add the objective, the mode, how many updates a step has, and the devices that only generate."""
    estimators = rl_programs()["verl"].objectives
    high, plain = facts.value("clip_high"), one_objective(estimators, facts.value("estimator"))
    objective = "gkd" if facts.value("distilled") else "dapo" if plain == "grpo" and high and float(str(high)) > 0.2 else plain
    more: list[Stated] = [facts.meaning("objective", objective, "estimator")] if objective else []
    prompts, each = facts.value("prompts"), facts.value("update_prompts")
    if isinstance(prompts, int) and isinstance(each, int) and each:
        more.append(facts.meaning("updates", max(1, round(prompts / each)), "update_prompts"))
    if cp := facts.value("megatron_cp"):
        facts = facts.without("cp")
        more.append(facts.meaning("cp", cp, "megatron_cp"))
    nodes, inside = facts.value("rollout_nodes"), facts.value("rollout_per_node")
    if isinstance(nodes, int) and isinstance(inside, int) and nodes:
        more.append(facts.meaning("rollout_devices", nodes * inside, "rollout_nodes"))
        more.append(facts.meaning("mode", "async" if "synced_every" in facts else "split", "rollout_nodes"))
    return facts.adding(more)


def recognises(settings: Sequence[Setting], source: Source | None, script: str) -> int:
    """Return a score for its trainers in a command, or keys that only verl has."""
    named = 30 if script.startswith("verl.") or script.endswith("main_ppo.py") else 0
    own = sum(one.key.startswith("actor_rollout_ref.") for one in settings)
    return named + 3 * own


PROGRAM = Program(
    name="verl", title=TITLE, version=VERSION, kind="rl", framework="verl", form="flags", keys=KEYS, write=write, wording=wording,
    meaning=meaning, recognises=recognises, check="bash train.sh --cfg job",
)  # fmt: skip
