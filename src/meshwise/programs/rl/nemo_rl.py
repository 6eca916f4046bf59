"""NeMo RL: the YAML of examples/run_grpo.py over a configuration that it ships; its keys are recalled, since PyPI has no schema."""

from collections.abc import Sequence

from meshwise.programs import forms
from meshwise.programs.program import Program, Setup, Written
from meshwise.programs.rl.facts import updates_of
from meshwise.programs.source import Setting, Source
from meshwise.programs.table import table
from meshwise.runs.run import Run, Stated, Value

TITLE, VERSION, FILE = "NeMo RL", "0.5", "nemo_rl.yaml"
BASE = "examples/configs/grpo_math_1B.yaml"
ENGINE, MEGATRON, DTENSOR = "policy.generation.vllm_cfg", "policy.megatron_cfg", "policy.dtensor_cfg"
RESOURCES = "policy.generation.colocated.resources"
KEYS = table("nemo-rl")


def wording(setup: Setup) -> dict[str, Value]:
    """Return the facts of a split in NeMo RL's words."""
    values, megatron, together = dict(setup.values), setup.text("strategy") == "megatron", setup.text("mode") == "colocated"
    number, inside = setup.whole("prompts") * setup.whole("answers"), setup.whole("devices_per_node")
    objective = setup.text("objective")
    values |= {
        "update_rows": number // setup.whole("updates"), "read_mbs": setup.whole("mbs"), "total": setup.whole("seq"),
        "on_dtensor": not megatron, "on_megatron": megatron, "backend": "vllm", "together": together, "sp": bool(values.get("sp")),
    }  # fmt: skip
    values |= {"leaves_one_out": True} if objective == "rloo" else {}
    values |= {"filters": True, "clip_high": 0.28} if objective == "dapo" else {}
    values |= {} if values["reads_reference"] else {"kl": 0.0}
    if not megatron:
        values |= {"dtensor_tp": values.pop("tp"), "dtensor_cp": values.pop("cp"), "dtensor_recomputes": values.pop("recomputes")}
        for name in ("pp", "ep", "etp", "sp"):
            values.pop(name, None)
    elif setup.whole("ep") == 1:
        values.pop("etp", None)
    if not together:
        devices = setup.whole("rollout_devices")
        whole = devices % inside == 0
        values |= {"rollout_nodes": devices // inside if whole else 1, "rollout_per_node": inside if whole else devices}
    if setup.text("mode") == "async":
        values |= {"asynchronous": True, "age": 1, "in_processes": True}
    return values


def write(setup: Setup) -> Written:
    """Return the YAML and the command, which is started in NeMo RL's folder."""
    pairs = [("defaults", BASE), *PROGRAM.settings(wording(setup)), ("data.dataset_name", f"{forms.PLACEHOLDER}_dataset")]
    script = "examples/run_distillation.py" if setup.text("objective") == "gkd" else "examples/run_grpo.py"
    return Written(
        {FILE: forms.yaml_text(pairs, setup.header)}, ("uv", "run", "python", script, "--config", FILE), starter="once"
    )


def meaning(facts: Run) -> Run:
    """Add the objective, the mode, the axes of its DTensor policy, and how many updates a step has."""
    one_out, filters = facts.value("leaves_one_out"), facts.value("filters")
    more: list[Stated] = [facts.meaning("objective", "dapo" if filters else "rloo" if one_out else "grpo", "prompts")]
    if facts.value("on_megatron"):
        more.append(facts.meaning("strategy", "megatron", "on_megatron"))
    else:
        facts = facts.without("tp", "pp", "cp", "ep")
        more.append(facts.meaning("strategy", "fsdp", "on_dtensor"))
        degrees = {axis: facts.value(f"dtensor_{axis}") for axis in ("tp", "cp", "recomputes")}
        more += [facts.meaning(axis, degree, f"dtensor_{axis}") for axis, degree in degrees.items() if degree is not None]
    total, response = facts.value("total"), facts.value("response")
    if isinstance(total, int) and isinstance(response, int) and total > response and "prompt" not in facts:
        more.append(facts.meaning("prompt", total - response, "total"))
    more += updates_of(facts)
    if facts.value("together") is False:
        nodes, inside = facts.value("rollout_nodes") or 1, facts.value("rollout_per_node") or facts.value("devices_per_node") or 8
        more.append(facts.meaning("rollout_devices", int(str(nodes)) * int(str(inside)), "together"))
        more.append(facts.meaning("mode", "async" if facts.value("asynchronous") else "split", "together"))
    return facts.adding(more)


def recognises(settings: Sequence[Setting], source: Source | None, script: str) -> int:
    """Return a score for its script in a command, or for the keys of GRPO beside those of a policy."""
    names = {one.key for one in settings}
    named = 30 if script.rpartition("/")[2] in ("run_grpo.py", "run_grpo_math.py") else 0
    sure = any(name.startswith("grpo.num_") for name in names) and any(name.startswith("policy.") for name in names)
    return named + (20 + len(names & {row.key for row in KEYS}) if sure else 0)


PROGRAM = Program(
    name="nemo-rl", title=TITLE, version=VERSION, kind="rl", framework="nemo-rl", form="yaml", keys=KEYS, write=write, wording=wording,
    meaning=meaning, recognises=recognises, refers={"--config": "nemo-rl"},
)  # fmt: skip
