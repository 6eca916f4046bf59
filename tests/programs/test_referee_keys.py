"""Every key that `export` writes is one that the program itself lists: lenient parsers let misspelt keys pass."""

from collections.abc import Iterator

from meshwise.programs.program import Program, Setup, Written, programs
from meshwise.programs.read.flags import settings
from meshwise.programs.read.tables import settings as toml_settings
from meshwise.programs.read.tree import settings as tree_settings
from meshwise.programs.source import Source, Word
from meshwise.runs.run import Span
from support.launch_files import base
from support.launch_layouts import samples
from support.referees import listed


def flags_of(written: Written) -> set[str]:
    words = [Word(word, Span("command", 1)) for word in written.command]
    return {setting.key for setting in settings(words, {}) if setting.key.startswith("--")}


def file_keys(written: Written, name: str) -> set[str]:
    source = Source(name, written.files[name])
    found = toml_settings(source) if name.endswith(".toml") else tree_settings(source)
    return {setting.key for setting in found if not setting.key.split(".")[-1].isdecimal()}


def written(program: Program) -> Iterator[tuple[str, Written]]:
    assert program.write is not None
    for name, setup in samples(program):
        yield name, program.write(setup)


def names(keys: set[str]) -> set[str]:
    """Return every part of dotted keys."""
    return {part for key in keys for part in key.split(".")}


def test_megatron_flags_exist() -> None:
    known = listed("megatron")
    for name, made in written(programs()["megatron"]):
        assert flags_of(made) <= known, name


def test_torchtitan_flags_exist() -> None:
    known = listed("torchtitan") | {"--module", "--config", "--compile.no_enable"}
    for name, made in written(programs()["torchtitan"]):
        assert flags_of(made) <= known, name


def test_torchtitan_02_keys_exist() -> None:
    known = listed("torchtitan-0.2")
    for name, made in written(programs()["torchtitan-0.2"]):
        assert file_keys(made, "train.toml") <= known, name


def test_deepspeed_keys_exist() -> None:
    known = listed("deepspeed")
    for program in ("deepspeed", "trainer", "llama-factory"):
        for name, made in written(programs()[program]):
            if "ds_config.json" in made.files:
                keys = file_keys(made, "ds_config.json")
                assert {key for key in keys if "." in key} | {key.split(".")[0] for key in keys} <= known | {"optimizer.type"}, (
                    name
                )


def test_accelerate_keys_exist_also_inside_sections_where_its_parser_is_blind() -> None:
    known = listed("accelerate") | {"dynamo_backend", "dynamo_config"}
    for name, made in written(programs()["accelerate"]):
        assert names(file_keys(made, "accelerate.yaml")) <= known | {"deepspeed_config", "fsdp_config", "parallelism_config"}, (
            name
        )


def test_trainer_arguments_exist() -> None:
    known = {f"--{name}" for name in listed("trainer") | listed("trl")} | {"--model_name_or_path"}
    for name, made in written(programs()["trainer"]):
        assert flags_of(made) <= known, name


def test_configuration_keys_exist() -> None:
    files = {"axolotl": "axolotl.yaml", "llama-factory": "llama_factory.yaml", "torchtune": "torchtune.yaml"}
    more = {"llama-factory": listed("trainer")}
    for program, file in files.items():
        known = listed(program) | more.get(program, set())
        for name, made in written(programs()[program]):
            assert names(file_keys(made, file)) <= known, (program, name)


def test_maxtext_keys_exist() -> None:
    known = listed("maxtext")
    for name, made in written(programs()["maxtext"]):
        pairs = {word.partition("=")[0] for word in made.command[4:]}
        assert pairs <= known, name


def test_the_bloom_plan_is_written() -> None:
    setup: Setup = base("bloom")
    program = programs()["megatron-deepspeed"]
    assert not list(program.refuse(setup))
    assert program.write is not None
    made = program.write(setup)
    assert {"--zero-stage", "--deepspeed_config", "--checkpoint-activations", "--pp-partition-method"} <= flags_of(made)
    assert file_keys(made, "ds_config.json") >= {"zero_optimization.stage", "bf16.enabled"}
