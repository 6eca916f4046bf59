"""OpenRLHF: the flags of openrlhf.cli.train_ppo_ray."""

from collections.abc import Sequence

from meshwise.catalogue.rl_programs import rl_programs
from meshwise.programs import forms
from meshwise.programs.program import Program, Setup, Written
from meshwise.programs.rl.facts import one_objective, tokens_of, updates_of
from meshwise.programs.source import Setting, Source
from meshwise.programs.table import table
from meshwise.runs.run import Run, Stated, Value

TITLE, VERSION = "OpenRLHF", "0.11.2"
MODULE = "openrlhf.cli.train_ppo_ray"
KEYS = table("openrlhf")


def wording(setup: Setup) -> dict[str, Value]:
    """Return the facts of a split in OpenRLHF's words."""
    values, together = dict(setup.values), setup.text("mode") == "colocated"
    inside, devices = setup.whole("devices_per_node"), setup.whole("train_devices")
    objective, number = setup.text("objective"), setup.whole("prompts") * setup.whole("answers")
    nodes, each = (devices // inside, inside) if devices % inside == 0 else (1, devices)
    generating = setup.whole("devices") if together else setup.whole("rollout_devices")
    values |= {
        "estimator": rl_programs()["openrlhf"].objectives[objective], "total": setup.whole("seq"),
        "update_rows": number // setup.whole("updates"), "nodes": nodes, "devices_per_node": each,
        "engines": generating // setup.whole("engine_tp"), "prefixes": True, "recomputes": bool(values["recomputes"]),
    }  # fmt: skip
    values |= {"dynamic": True, "row_tokens": tokens_of(setup)} if values["packed"] else {}
    if values["reads_reference"]:
        values |= {"reference_nodes": nodes, "reference_per_node": each}
        values |= {} if together else {"beside_reference": True}
    else:
        values["kl"] = 0.0
    values |= {"together": True, "engine_sleeps": True, "state_out": True} if together else {}
    values |= {"asynchronous": True} if not together else {}
    values |= {"partial": True} if setup.text("mode") == "async" else {}
    values |= {"filters": True} if objective == "dapo" else {}
    for role in ("critic", "reward"):
        values |= {f"{role}_nodes": nodes, f"{role}_per_node": each} if f"{role}_model" in values else {}
    if "reward_model" not in values:
        values["scorer"] = f"{forms.PLACEHOLDER}_reward.py"
    return {name: value for name, value in values.items() if value is not False}


def write(setup: Setup) -> Written:
    """Return the command, as a script that Ray starts."""
    words = ["python3", "-m", MODULE]
    for key, value in PROGRAM.settings(wording(setup)):
        words += [key] if value is True else [key, str(value)]
    words += ["--data.prompt_dataset", f"{forms.PLACEHOLDER}_prompts"]
    return Written({}, tuple(words), starter="once")


def meaning(facts: Run) -> Run:
    """Add the objective, the mode, the prompt's tokens, how many updates a step has, and the devices that only generate."""
    estimators = rl_programs()["openrlhf"].objectives
    plain = one_objective(estimators, facts.value("estimator"))
    objective = "dapo" if plain == "grpo" and facts.value("filters") else plain
    more: list[Stated] = [facts.meaning("objective", objective, "estimator")] if objective else []
    if "packed" not in facts:
        more.append(facts.meaning("packed", False, "total"))
    total, response = facts.value("total"), facts.value("response")
    if isinstance(total, int) and isinstance(response, int) and total > response:
        more.append(facts.meaning("prompt", total - response, "total"))
    elif isinstance(total, int) and response is None:
        more += [facts.meaning("prompt", total // 2, "total"), facts.meaning("response", total - total // 2, "total")]
    more += updates_of(facts)
    if facts.value("together"):
        more.append(facts.meaning("mode", "colocated", "together"))
    elif isinstance(engines := facts.value("engines"), int) and engines:
        tp = facts.value("engine_tp")
        more.append(facts.meaning("rollout_devices", engines * (tp if isinstance(tp, int) else 1), "engines"))
        more.append(
            facts.meaning("mode", "async" if facts.value("asynchronous") and facts.value("partial") else "split", "engines")
        )
    return facts.adding(more)


def recognises(settings: Sequence[Setting], source: Source | None, script: str) -> int:
    """Return a score for its module in a command, or flags that only OpenRLHF has."""
    named = 30 if script.startswith("openrlhf.") or "train_ppo_ray" in script else 0
    names = {one.key for one in settings}
    return named + (len(names & {row.key for row in KEYS}) if named or "--vllm.num_engines" in names else 0)


PROGRAM = Program(
    name="openrlhf", title=TITLE, version=VERSION, kind="rl", framework="openrlhf", form="flags", keys=KEYS, write=write,
    wording=wording, meaning=meaning, recognises=recognises, check=f"python3 -m {MODULE} --help",
)  # fmt: skip
