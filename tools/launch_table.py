"""For cog: what each training program can say, found by trying: `export` writes it and reads it back, or refuses it."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from meshwise.plan.ask import TrainAsk
from meshwise.plan.train.plan import make
from meshwise.programs.program import Program, Setup, launchers, programs
from meshwise.programs.setup import of_plan

ROOT = Path(__file__).parent.parent
PLAIN: dict[str, Any] = {
    "tp": 1, "pp": 1, "cp": 1, "ep": 1, "etp": 1, "vpp": 1, "schedule": "1f1b", "sp": 0, "offload": "none", "mbs": 1, "recompute": "none",
    "dp_replicate": 1,
}  # fmt: skip
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "tp without sp": ("dense", {"tp": 8}),
    "tp with sp": ("dense", {"tp": 8, "sp": 1}),
    "pp": ("dense", {"pp": 4}),
    "vpp (interleaved)": ("dense", {"pp": 4, "vpp": 2, "schedule": "interleaved"}),
    "zero-bubble schedule": ("dense", {"pp": 4, "vpp": 2, "schedule": "zero-bubble"}),
    "uneven stages": ("uneven", {"pp": 4}),
    "cp": ("dense", {"cp": 4}),
    "ep": ("experts", {"ep": 8}),
    "etp": ("experts", {"ep": 8, "tp": 2, "etp": 2, "sp": 1}),
    "dp_replicate x dp_shard": ("dense", {"dp_replicate": 8}),
    "ZeRO 0": ("dense", {"zero": 0}),
    "ZeRO 1": ("dense", {"zero": 1}),
    "ZeRO 2": ("dense", {"zero": 2}),
    "ZeRO 3": ("dense", {"zero": 3}),
    "full recompute": ("dense", {"recompute": "full"}),
    "selective recompute": ("dense", {"recompute": "selective"}),
    "recompute by module": ("dense", {"recompute": "layernorm"}),
    "recompute by policy": ("dense", {"recompute": "minimal"}),
    "offload: optimizer": ("dense", {"offload": "optimizer"}),
    "offload: parameters": ("dense", {"offload": "parameters"}),
    "offload: activations": ("dense", {"offload": "activations"}),
    "fp16": ("dense", {"precision": "fp16"}),
    "fp8": ("dense", {"precision": "fp8"}),
    "fp8-row": ("dense", {"precision": "fp8-row"}),
    "fp8-block": ("dense", {"precision": "fp8-block"}),
    "mxfp8": ("dense", {"precision": "mxfp8"}),
    "nvfp4": ("dense", {"precision": "nvfp4"}),
    "8-bit AdamW": ("dense", {"optimizer": "adamw-8bit"}),
    "Muon": ("dense", {"optimizer": "muon"}),
    "compile": ("dense", {"compile": True}),
    "fused loss": ("dense", {"loss": "fused"}),
}
CHECKED = {
    "megatron": "its parser and `validate_args`", "torchtitan": "its parser and `ParallelDims`", "torchtitan-0.2": "its parser",
    "deepspeed": "`DeepSpeedConfig`", "accelerate": "its parser and its list of keys", "trainer": "fields of `TrainingArguments`",
    "llama-factory": "its parser; `DeepSpeedConfig`", "axolotl": "its schemas", "maxtext": "its reader of keys",
    "torchtune": "`tune validate`", "ms-swift": "its parser",
    "megatron-deepspeed": "round trip", "megatron-bridge": "round trip", "nanotron": "round trip",
    "meshwise": "its own parser",
}  # fmt: skip


JUDGES = {
    "accelerate": ("training", "test_accelerate_takes_the_yaml", "`launch_command_parser` and its validation"),
    "axolotl": ("training", "test_a_configuration_is_taken[axolotl", "its pydantic schemas, for 64 H100"),
    "deepspeed": ("training", "test_deepspeed_takes_the_json", "`DeepSpeedConfig`"),
    "llama-factory": ("training", "test_a_configuration_is_taken[llama-factory", "its parser of arguments"),
    "maxtext": ("training", "test_maxtext_takes_the_keys", "its reader of base.yml and key=value"),
    "megatron": ("training", "test_megatron_takes_the_flags", "`parse_args` and `validate_args`, for an H100"),
    "ms-swift": ("training", "test_ms_swift_takes_the_arguments", "its parser of arguments, before it loads a model"),
    "torchtitan": ("training", "test_torchtitan_takes_the_flags", "`ConfigManager` and `ParallelDims`"),
    "torchtitan-0.2": ("training", "test_torchtitan_02_takes_the_file", "`ConfigManager`"),
    "torchtune": ("training", "test_a_configuration_is_taken[torchtune", "`tune validate`"),
    "trainer": ("training", "test_trl_takes_the_arguments", "TRL's parser of `SFTConfig`, which are the Trainer's arguments and more"),
    "mlx": ("training", "test_mlx_takes_its_server_and_its_adapters", "the parser of `mlx_lm.server`"),
    "sglang": ("training", "test_sglang_takes_every_command", "`ServerArgs.add_cli_args`"),
    "vllm": ("vllm", "test_vllm_takes_every_command", "its parser and `create_engine_config`"),
    "--with jobset": ("launchers", "test_kube", "Kubernetes' schemas and Kubeflow's models"),
    "--with leaderworkerset": ("launchers", "test_kubernetes", "Kubernetes' schemas of its pods"),
    "--with trainjob": ("launchers", "test_kubeflow", "Kubeflow's models"),
    "--with skypilot": ("launchers", "test_skypilot", "`Task.from_yaml`"),
    "--with ray": ("ray", "test_two_nodes_of_ray", "a Ray cluster of two nodes"),
    "--with slurm": ("slurm", "test_", "a Slurm of two nodes"),
}  # fmt: skip
"""The referee and the tests that judge what is written for a program, and by what."""
UNJUDGED = {
    "automodel": "its recipes read keys where they use them, and no parser refuses any; its list of keys",
    "megatron-bridge": "its configuration could not be imported without the packages for GPUs that it imports; round trip",
    "megatron-deepspeed": "it is no package; round trip",
    "meshwise": "it is this program: `meshwise run` reads the plan itself",
    "mlx-lm": "its command takes the file, but no parser of it refuses a key of the YAML; its list of keys",
    "nanotron": "the package is 0.4 of 2024, whose loader has no `data_stages`; files are for its main branch; round trip",
    "unsloth": "it is called from Python and has no parser; its list of arguments",
    "nemo-rl": "the package is empty (0.0.0); round trip",
    "openrlhf": "its parser stands in the script that imports Ray and its trainers, and was not tried; its list of flags",
    "trl": "GRPO's arguments were not tried with its parser; their list",
    "verl": "its Hydra files were not tried; its list of keys",
    "dynamo": "its schema is a resource of a Kubernetes cluster; round trip",
    "llama.cpp": "its parser is C++, and no package has it alone; round trip",
    "ollama": "its parser is Go; round trip",
    "tensorrt-llm": "the package index has no wheel of it for a CPU; round trip",
    "--with torchrun": "`tests/programs/launch` run it in bash",
}
"""Why nothing of a program's own judges what is written for it, and what does instead."""


@cache
def base(kind: str, bloom: bool) -> Setup:
    models = {"dense": "llama-3.1-8b", "experts": "qwen3-30b-a3b", "uneven": "llama-3.1-8b"}
    ask = TrainAsk(model="bloom-7b1" if bloom else models[kind], on="8x8xh100-sxm", batch="512x4096", top=1)
    setup = of_plan(make(ask))
    return replace(setup, values={**setup.values, "layers": 30 if kind == "uneven" else setup.values["layers"]})


def says(program: Program, kind: str, change: dict[str, Any]) -> bool:
    """Return whether a program can say a change of some plain layout."""
    bloom = program.name == "megatron-deepspeed"
    if bloom and kind == "experts":
        return False
    for zero in (change["zero"],) if "zero" in change else (3, 2, 1, 0):
        values = {**base(kind, bloom).values, **PLAIN, "zero": zero, **change}
        dp = 64 // (int(values["tp"]) * int(values["pp"]) * int(values["cp"]))  # type: ignore[call-overload]
        copies = int(values["dp_replicate"]) if zero else dp  # type: ignore[call-overload]
        if "dp_replicate" in change and not zero:
            continue  # nothing is sharded
        values |= {"dp": dp, "dp_replicate": copies, "dp_shard": dp // copies, "accumulation": 512 // dp}
        if not list(program.refuse(replace(base(kind, bloom), values=values))):
            return True
    return False


def table() -> None:
    """Print the table of training programs and axes."""
    trains = [program for program in programs().values() if program.kind == "train" and program.write is not None]
    print("| | " + " | ".join(program.name for program in trains) + " |")
    print("| --- |" + " --- |" * len(trains))
    for name, (kind, change) in ROWS.items():
        print(f"| {name} | " + " | ".join("yes" if says(program, kind, change) else "–" for program in trains) + " |")
    print("| **checked by** | " + " | ".join(CHECKED.get(program.name, "round trip") for program in trains) + " |")


def targets() -> None:
    """Print every program and launcher with the version it is written for."""
    print("| name | for | use |\n| --- | --- | --- |")
    for program in programs().values():
        use = (
            f"export, check ({'serving' if program.kind == 'serve' else 'training'})"
            if program.write is not None
            else "check only"
        )
        print(f"| `{program.name}` | {program.title} {program.version} | {use} |")
    for launcher in launchers().values():
        print(f"| `--with {launcher.name}` | {launcher.title} {launcher.version} | starts processes |")


def referees() -> None:
    """Print the results of `make referees`: each referee, then each program with what its own parser says."""
    results = json.loads((ROOT / "docs" / "use" / "referees.json").read_text(encoding="utf-8"))
    print("| referee | versions | date | result |\n| --- | --- | --- | --- |")
    for name, result in results.items():
        versions = ", ".join(f"{package} {version}" for package, version in result["versions"].items())
        print(f"| {name} | {versions} | {result['date']} | {'passed' if result['passed'] else 'failed'} |")
    print("\n| written for | verdict of its own parser | by |\n| --- | --- | --- |")
    written = [name for name, program in programs().items() if program.write is not None]
    for name in [*written, *(f"--with {name}" for name in launchers())]:
        print(f"| `{name}` | " + " | ".join(verdict(name, results)) + " |")


def verdict(name: str, results: dict[str, Any]) -> tuple[str, str]:
    """Return whether the parser of a program accepts what is written for it, and which parser; or why that is not known."""
    if name not in JUDGES:
        return "not verified", UNJUDGED[name]
    referee, test, by = JUDGES[name]
    told = [outcome for one, outcome in results.get(referee, {}).get("tests", {}).items() if one.startswith(test)]
    if not told or "skipped" in told:
        return "not verified", f"`make referees ONLY={referee}` was not run to its end; {by} would judge it"
    return "refused" if "failed" in told else "accepted", by
