"""NeMo RL: the YAML of examples/run_grpo.py over a configuration that it ships. Its keys are recalled: the package on PyPI is a
placeholder, and no schema could be read."""

from collections.abc import Sequence

from meshwise.programs import forms
from meshwise.programs.kinds import BOOL, INT, NUMBER, TEXT
from meshwise.programs.program import Key, Program, Setup, Written
from meshwise.programs.source import Setting, Source
from meshwise.runs.run import Run, Stated, Value

TITLE, VERSION, FILE = "NeMo RL", "0.5", "nemo_rl.yaml"
BASE = "examples/configs/grpo_math_1B.yaml"
ENGINE, MEGATRON, DTENSOR = "policy.generation.vllm_cfg", "policy.megatron_cfg", "policy.dtensor_cfg"
RESOURCES = "policy.generation.colocated.resources"
KEYS = (
    Key("prompts", "grpo.num_prompts_per_step", INT, default=32, write="always"),
    Key("answers", "grpo.num_generations_per_prompt", INT, default=16, write="always"),
    Key("leaves_one_out", "grpo.use_leave_one_out_baseline", BOOL),
    Key("filters", "grpo.use_dynamic_sampling", BOOL),
    Key("asynchronous", "grpo.async_grpo.enabled", BOOL),
    Key("age", "grpo.async_grpo.max_trajectory_age_steps", INT),
    Key("kl", "loss_fn.reference_policy_kl_penalty", NUMBER),
    Key("clip_high", "loss_fn.ratio_clip_max", NUMBER),
    Key("policy", "policy.model_name", TEXT, write="always"),
    Key("update_rows", "policy.train_global_batch_size", INT, default=512, write="always"),
    Key("mbs", "policy.train_micro_batch_size", INT, default=4, write="always"),
    Key("read_mbs", "policy.logprob_batch_size", INT, write="always"),
    Key("total", "policy.max_total_sequence_length", INT, default=512, write="always"),
    Key("prompt", "data.max_input_seq_length", INT, write="always"),
    Key("packed", "policy.sequence_packing.enabled", BOOL, write="always"),
    Key("on_dtensor", f"{DTENSOR}.enabled", BOOL, write="always"),
    Key("dtensor_tp", f"{DTENSOR}.tensor_parallel_size", INT),
    Key("dtensor_cp", f"{DTENSOR}.context_parallel_size", INT),
    Key("dtensor_recomputes", f"{DTENSOR}.activation_checkpointing", BOOL),
    Key("on_megatron", f"{MEGATRON}.enabled", BOOL, write="always"),
    Key("tp", f"{MEGATRON}.tensor_model_parallel_size", INT),
    Key("pp", f"{MEGATRON}.pipeline_model_parallel_size", INT),
    Key("cp", f"{MEGATRON}.context_parallel_size", INT),
    Key("ep", f"{MEGATRON}.expert_model_parallel_size", INT),
    Key("etp", f"{MEGATRON}.expert_tensor_parallel_size", INT),
    Key("sp", f"{MEGATRON}.sequence_parallel", BOOL),
    Key("recomputes", f"{MEGATRON}.activation_checkpointing", BOOL),
    Key("backend", "policy.generation.backend", TEXT, write="always"),
    Key("response", "policy.generation.max_new_tokens", INT, write="always"),
    Key("together", "policy.generation.colocated.enabled", BOOL, default=True, write="always"),
    Key("rollout_nodes", f"{RESOURCES}.num_nodes", INT),
    Key("rollout_per_node", f"{RESOURCES}.gpus_per_node", INT),
    Key("engine_tp", f"{ENGINE}.tensor_parallel_size", INT, default=1, write="always"),
    Key("engine_share", f"{ENGINE}.gpu_memory_utilization", NUMBER, default=0.6, write="always"),
    Key("eager", f"{ENGINE}.enforce_eager", BOOL, default=False, write="always"),
    Key("in_processes", f"{ENGINE}.async_engine", BOOL),
    Key("rank", "policy.megatron_cfg.peft.dim", INT),
    Key("alpha", "policy.megatron_cfg.peft.alpha", INT),
    Key("devices_per_node", "cluster.gpus_per_node", INT, default=1, write="always"),
    Key("nodes", "cluster.num_nodes", INT, default=1, write="always"),
)  # fmt: skip


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
        degrees = {axis: facts.value(f"dtensor_{axis}") for axis in ("tp", "cp")}
        more += [facts.meaning(axis, degree, f"dtensor_{axis}") for axis, degree in degrees.items() if degree]
    total, response = facts.value("total"), facts.value("response")
    if isinstance(total, int) and isinstance(response, int) and total > response and "prompt" not in facts:
        more.append(facts.meaning("prompt", total - response, "total"))
    prompts, answers, rows = (facts.value(name) for name in ("prompts", "answers", "update_rows"))
    if isinstance(prompts, int) and isinstance(answers, int) and isinstance(rows, int) and rows:
        more.append(facts.meaning("updates", max(1, round(prompts * answers / rows)), "update_rows"))
    if facts.value("together") is False:
        nodes, inside = facts.value("rollout_nodes") or 1, facts.value("rollout_per_node") or facts.value("devices_per_node") or 8
        more.append(facts.meaning("rollout_devices", int(str(nodes)) * int(str(inside)), "together"))
        more.append(facts.meaning("mode", "async" if facts.value("asynchronous") else "split", "together"))
    if facts.value("kl") == 0:
        more.append(facts.meaning("reads_reference", False, "kl"))
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
