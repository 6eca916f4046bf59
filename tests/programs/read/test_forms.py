"""Launch files in the forms that people start: every stated fact is read, and what only running would tell is unknown."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from meshwise.errors import UserError
from meshwise.programs.read.files import Reading, read_sources
from meshwise.programs.source import Source

FORMS = Path(__file__).parents[2] / "fixtures" / "launch" / "forms.yaml"


@cache
def forms() -> list[dict[str, Any]]:
    return yaml.safe_load(FORMS.read_text(encoding="utf-8"))


def read(form: dict[str, Any]) -> Reading:
    beside = [Source(name, text) for name, text in form.get("with", {}).items()]
    return read_sources([Source(form["file"], form["text"]), *beside], form.get("set", {}))


@pytest.mark.parametrize("form", forms(), ids=lambda form: form["file"])
def test_a_launch_file_says_its_program_and_its_facts(form: dict[str, Any]) -> None:
    reading = read(form)
    assert reading.program.name == form["program"]
    assert {name: reading.facts.value(name) for name in form["facts"]} == form["facts"]


def test_there_are_sixty_forms_and_names_differ() -> None:
    names = [form["file"] for form in forms()]
    assert len(names) >= 60
    assert len(set(names)) == len(names)


def test_a_launcher_without_its_file_is_told_which_file_to_give() -> None:
    with pytest.raises(UserError, match=r"train\.sbatch, which was not given: give that file too"):
        read_sources([Source("go.sh", "sbatch --nodes=4 train.sbatch")], {})


def test_another_program_with_a_flag_of_megatron_is_not_megatron() -> None:
    with pytest.raises(UserError, match=r"it starts 'train\.py'"):
        read_sources([Source("k.sh", "torchrun --nproc_per_node=8 train.py --num_layers=80 --sharding_strategy=full")], {})


def test_every_pool_of_a_disaggregated_manifest_is_named() -> None:
    reading = read(next(form for form in forms() if form["file"] == "dynamo.yaml"))
    assert [note for note in reading.notes if note.startswith("pool ")] == [
        "pool PrefillWorker: tp 4, replicas 2, 8 devices", "pool DecodeWorker: tp 8, 8 devices",
    ]  # fmt: skip


def test_what_a_branch_decides_is_named_with_its_choices() -> None:
    reading = read(next(form for form in forms() if form["file"] == "megatron-branch.sh"))
    stated = reading.facts.get("layers")
    assert stated is not None
    assert stated.note == "64 or 32, by $1 (megatron-branch.sh:1)"


def read_text(name: str, text: str) -> Reading:
    return read_sources([Source(name, text)], {})


@pytest.mark.parametrize("before", ["", "echo 'max-model-len: [1' > serve.yaml\n"])
def test_a_configuration_that_is_not_given_or_not_readable_leaves_facts_unknown(before: str) -> None:
    facts = read_text("s.sh", f"{before}vllm serve --config serve.yaml --max-num-seqs 16").facts
    stated = facts.get("tp")
    assert facts.value("users") == 16
    assert stated is not None
    assert (stated.value, stated.how) == (None, "unknown")


def test_a_name_that_a_python_script_sets_twice_is_unknown() -> None:
    script = (
        "from trl import SFTConfig\nif big:\n    n = 8\nelse:\n    n = 2\nSFTConfig(per_device_train_batch_size=n, max_steps=5)\n"
    )
    facts = read_text("t.py", script).facts
    assert (facts.value("mbs"), facts.value("steps")) == (None, 5)


@pytest.mark.parametrize("command", ["trl dpo", "accelerate launch examples/scripts/dpo.py"])
def test_the_objective_of_trl_is_that_of_its_verb_or_script(command: str) -> None:
    text = f"{command} --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 2 --max_steps 10 --max_length 2048"
    assert read_text("d.sh", text).facts.value("objective") == "dpo"


def test_nodes_are_unknown_where_a_script_of_the_users_own_starts_the_launcher() -> None:
    text = "python submit.py --nodes 8 -- torchrun --nproc_per_node 8 train.py --per_device_train_batch_size 1 --max_steps 10"
    facts = read_text("m.sh", text).facts
    assert facts.value("devices_per_node") == 8


def test_every_model_of_llama_servers_presets_is_named() -> None:
    reading = read_text("models.ini", "version = 1\n[*]\nnp = 2\n[a]\nmodel = /a.gguf\n[b]\nmodel = /b.gguf\nc = 8192\n")
    assert [note.partition(":")[0] for note in reading.notes if note.startswith("pool ")] == ["pool a", "pool b"]


def test_members_of_a_json_value_are_read_as_dotted_flags_are() -> None:
    for spelling in (
        '--speculative-config \'{"method": "ngram", "num_speculative_tokens": 3}\'',
        "--speculative-config.method ngram --speculative-config.num_speculative_tokens 3",
    ):
        assert read_text("s.sh", f"vllm serve Qwen/Qwen3-8B {spelling}").facts.value("draft") == 3
    stated = read_text("s.sh", "vllm serve Qwen/Qwen3-8B --speculative-config '{\"method\": '").facts.get("draft")
    assert stated is not None
    assert stated.how == "unknown"


@pytest.mark.parametrize(
    ("flags", "facts"),
    [
        ("--fsdp 'full_shard auto_wrap offload'", {"zero": 3, "offload": "parameters", "recompute": "none"}),
        ("--fsdp full_shard --fsdp_config '{\"activation_checkpointing\": true}'", {"zero": 3, "offload": None, "recompute": "full"}),
        ("--optim paged_lion_8bit", {"optimizer": None}),
        ("--optim galore_adamw_8bit", {"optimizer": None}),
        ("--optim schedule_free_adamw", {"optimizer": "adamw"}),
    ],
)  # fmt: skip
def test_arguments_of_the_trainer_say_what_is_sharded_kept_and_recomputed(flags: str, facts: dict[str, Any]) -> None:
    text = f"torchrun --nproc_per_node 8 t.py --per_device_train_batch_size 1 --max_steps 10 {flags}"
    read_facts = read_text("t.sh", text).facts
    assert {name: read_facts.value(name) for name in facts} == facts


@pytest.mark.parametrize(("tasks", "devices"), [("8", 8), ("1", None)])
def test_tasks_of_a_node_are_its_devices_unless_one_starts_the_others(tasks: str, devices: int | None) -> None:
    text = f"srun -N 4 --ntasks-per-node={tasks} python t.py --per_device_train_batch_size 1 --max_steps 10"
    assert read_text("t.sh", text).facts.value("devices_per_node") == devices


def test_local_ranks_say_the_nodes_of_a_server() -> None:
    facts = read_text("s.sh", "vllm serve Qwen/Qwen3-8B -tp 2 --data-parallel-size 8 --data-parallel-size-local 4").facts
    assert (facts.value("nodes"), facts.value("devices_per_node")) == (2, 8)
