"""TRL: the YAML of `trl grpo` and `trl rloo`, with vLLM on the same devices or as a server."""

from collections.abc import Iterable, Sequence

from meshwise.programs import forms
from meshwise.programs.kinds import word
from meshwise.programs.program import Program, Refusal, Setup, Written
from meshwise.programs.source import Setting, Source
from meshwise.programs.table import table
from meshwise.runs.run import Run, Stated, Value

TITLE, VERSION, FILE = "TRL", "1.16.0", "trl.yaml"
OWN = ("num_generations", "max_completion_length", "vllm_mode", "use_vllm", "num_iterations", "steps_per_generation")
KEYS = table("trl", mode=word({"colocated": "colocate", "split": "server"}))


def wording(setup: Setup) -> dict[str, Value]:
    """Return the facts of a split in TRL's words. A micro-batch of a plan holds rows of --seq tokens; TRL's holds answers."""
    values, devices = dict(setup.values), setup.whole("train_devices")
    number = setup.whole("prompts") * setup.whole("answers")
    each = max(1, number // setup.whole("updates") // devices)
    mbs = max(size for size in range(1, each + 1) if each % size == 0 and size <= setup.whole("mbs"))
    values |= {
        "mbs": mbs, "accumulation": each // mbs, "generated_rows": number, "beta": 0.04 if values["reads_reference"] else 0.0,
        "sixteen_bits": True, "engine": True, "engine_length": setup.whole("seq"), "engine_sleeps": setup.text("mode") == "colocated",
    }  # fmt: skip
    values |= {"loss_type": "dapo" if setup.text("objective") == "dapo" else "grpo"} if setup.text("objective") != "rloo" else {}
    values |= {"use_peft": True} if "rank" in values else {}
    return values


def _shards(setup: Setup) -> str:
    """Return the configuration of accelerate that TRL ships for these shards."""
    if setup.whole("train_devices") == 1:
        return "single_gpu"
    return f"zero{setup.whole('zero')}" if setup.text("strategy") == "deepspeed" else "fsdp2"


def write(setup: Setup) -> Written:
    """Return the YAML and the command; where devices only generate, also the server's, which is started first."""
    verb = "rloo" if setup.text("objective") == "rloo" else "grpo"
    pairs = [
        *PROGRAM.settings(wording(setup)),
        ("dataset_name", f"{forms.PLACEHOLDER}_dataset"),
        ("output_dir", f"{forms.PLACEHOLDER}_output"),
    ]
    pairs += [("reward_funcs", [f"{forms.PLACEHOLDER}_reward"])] if "reward_model" not in setup.values else []
    pairs += [("reward_model_name_or_path", setup.text("reward_model"))] if "reward_model" in setup.values else []
    files = {FILE: forms.yaml_text(pairs, setup.header)}
    if setup.text("mode") == "split":
        copies = setup.whole("rollout_devices") // setup.whole("engine_tp")
        words = (
            "trl", "vllm-serve", "--model", setup.text("policy"), "--tensor_parallel_size", str(setup.whole("engine_tp")),
            "--data_parallel_size", str(copies), "--max_model_len", str(setup.whole("seq")),
        )  # fmt: skip
        files["vllm_serve.sh"] = f"#!/bin/bash\n{forms.comment(setup.header)}{' '.join(words)}\n"
    command = (
        "trl", verb, "--config", FILE, "--accelerate_config", _shards(setup), "--num_processes",
        str(setup.whole("train_devices")),
    )  # fmt: skip
    return Written(files, command, starter="node")


def refuse(setup: Setup) -> Iterable[Refusal]:
    """Refuse what TRL's trainers do not have."""
    number, devices = setup.whole("prompts") * setup.whole("answers"), setup.whole("train_devices")
    if number % (devices * setup.whole("updates")):
        yield Refusal(f"{TITLE} gives each of {devices} devices the same number of answers, and {number:,} do not divide", {})
    if setup.text("objective") == "gkd":
        yield Refusal(f"{TITLE} has GKD as a trainer in Python, without a command", {})


def meaning(facts: Run) -> Run:
    """Add the objective, whether there is a reference, and the prompts of a step."""
    objective = "dapo" if facts.value("loss_type") == "dapo" else "grpo"
    more: list[Stated] = [facts.meaning("objective", objective, "loss_type")]
    more += [facts.meaning("packed", False, "answers"), facts.meaning("reads_reference", bool(facts.value("beta")), "beta")]
    rows, answers = facts.value("generated_rows"), facts.value("answers")
    if isinstance(rows, int) and isinstance(answers, int) and answers:
        more.append(facts.meaning("prompts", max(1, rows // answers), "generated_rows"))
    length, response = facts.value("engine_length"), facts.value("response")
    if isinstance(length, int) and isinstance(response, int) and length > response:
        more.append(facts.meaning("prompt", length - response, "engine_length"))
    return facts.adding(more)


def recognises(settings: Sequence[Setting], source: Source | None, script: str) -> int:
    """Return how many keys a YAML or a command has that only these trainers have, and those that they share."""
    names = {one.key.lstrip("-") for one in settings}
    own = names & set(OWN)
    return 10 * len(own) + len(names & {row.key for row in KEYS}) if len(own) > 1 else 0


PROGRAM = Program(
    name="trl", title=TITLE, version=VERSION, kind="rl", framework="trl", form="yaml", keys=KEYS, write=write, refuse=refuse,
    wording=wording, meaning=meaning, recognises=recognises, flag_words=True, refers={"--config": "trl"},
)  # fmt: skip
