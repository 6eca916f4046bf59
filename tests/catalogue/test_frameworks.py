"""Frameworks: found by name, each with its source, and any user may add one."""

from dataclasses import replace
from pathlib import Path

import pytest

from meshwise.catalogue import files
from meshwise.catalogue.frameworks import find_framework, release_in_text
from meshwise.cost.axes import OFFLOAD, RECOMPUTE
from meshwise.errors import UserError
from meshwise.plan.ask import TrainAsk
from meshwise.plan.train import lookup
from meshwise.plan.train.search import search
from support.command import one_line
from support.every import check_every
from support.train_questions import FRAMEWORKS, question

MINE = (
    'name = "My Trainer"\nzero = [3]\nsequence_parallel = "never"\nlogit_bytes = 4\n[[sources]]\ntitle = "me"\nurl = "http://x"\n'
)


def test_the_planner_is_tested_with_every_framework() -> None:
    assert sorted(files.files("frameworks", ".toml")) == sorted(FRAMEWORKS)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_framework_says_where_its_facts_are_from(name: str) -> None:
    found = find_framework(name)
    assert found.key == name
    assert found.sources
    assert all(source.url.startswith("https://") for source in found.sources)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_framework_can_train_a_small_model(name: str) -> None:
    assert len(search(question("llama-debug", framework=name)).layouts) > 0


@pytest.mark.parametrize("name", ["Megatron-LM", "megatron lm", "MEGATRON", " megatron "])
def test_a_framework_goes_by_its_file_or_its_name_however_written(name: str) -> None:
    assert find_framework(name).key == "megatron"


def test_a_misspelt_framework_is_offered_the_nearest() -> None:
    with pytest.raises(UserError, match="unknown framework 'megatorn'; did you mean 'megatron'") as refused:
        find_framework("megatorn")
    assert "torchtitan" in one_line(refused.value)


def test_a_users_own_framework_is_one_file(home: Path) -> None:
    (home / "frameworks" / "mine.toml").write_text(MINE)
    found = find_framework("my trainer")
    assert (found.key, found.zero, found.sequence_parallel, found.logit_bytes) == ("mine", (3,), "never", 4.0)


def test_a_users_framework_overrides_the_built_in_one(home: Path) -> None:
    (home / "frameworks" / "megatron.toml").write_text(MINE)
    assert find_framework("megatron").name == "My Trainer"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("zero = [1]", "mine.toml: the key 'name' is missing"),
        (MINE.replace("zero", "zeros"), "mine.toml: unknown key 'zeros'; did you mean 'zero'?"),
        (MINE.replace("never", "sometimes"), "'sometimes' is not one of never, choice, always"),
        (MINE.replace("[3]", '["3"]'), "zero[0]: expected a whole number"),
        ("name = ", "mine.toml: not valid TOML"),
    ],
)
def test_a_mistake_in_a_users_framework_names_the_file_and_the_key(home: Path, text: str, words: str) -> None:
    (home / "frameworks" / "mine.toml").write_text(text)
    with pytest.raises(UserError) as refused:
        find_framework("mine")
    assert words in one_line(refused.value)


@pytest.mark.parametrize(
    ("chip", "name"),
    [("tpu-v5p:4x4x4", "maxtext"), ("8xh100-sxm", "fsdp"), ("1xrtx3090", "accelerate"), ("2x8xh100-sxm", "megatron")],
)
def test_a_question_that_names_no_framework_gets_the_usual_one_for_its_chips(chip: str, name: str) -> None:
    ask = TrainAsk(model="llama-debug", on=chip, batch=64, seq=512)
    assert lookup.question(ask).work.framework.key == name
    assert lookup.question(replace(ask, framework="torchtitan")).work.framework.key == "torchtitan"


# What a framework documents.


def test_other_programs_go_by_the_framework_that_trains_as_they_do() -> None:
    def check(name: str, key: str) -> None:
        assert find_framework(name).key == key

    check_every(
        check,
        [
            ("NeMo", "megatron-bridge"),
            ("Megatron-Core", "megatron"),
            ("nanoGPT", "ddp"),
            ("axolotl", "accelerate"),
            ("torchtune", "fsdp"),
            ("JAX", "maxtext"),
            ("Colossal-AI", "deepspeed"),
        ],
    )


PROGRAMS = {
    "trl": "TRL", "hf": "Hugging Face Trainer (accelerate)", "peft": "Hugging Face Trainer (accelerate)", "axolotl": "Axolotl",
    "llama-factory": "LLaMA-Factory", "torchtune": "torchtune", "unsloth": "Unsloth", "mlx-lm": "mlx-lm", "ms-swift": "ms-swift",
    "NeMo AutoModel": "NeMo AutoModel", "megatron-bridge": "Megatron-Bridge", "deepspeed": "DeepSpeed", "meshwise": "meshwise",
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_that_fine_tunes_is_found_by_its_own_name_with_its_own_facts(name: str) -> None:
    found = find_framework(name)
    assert found.name == PROGRAMS[name]
    assert find_framework(found.program) == found, "the name that plans are made with finds the same facts"


def test_trl_casts_a_quantized_model_to_float32_until_its_release_of_december_2025() -> None:
    """The wheels of trl 0.25 and 0.26 on PyPI, trainer/sft_trainer.py."""
    assert find_framework("trl", "2025-06").kbit_casts
    assert not find_framework("trl").kbit_casts
    assert find_framework("trl", release_in_text(find_framework("trl"), "trl 0.23.1")).kbit_casts
    assert find_framework("trl", release_in_text(find_framework("trl"), "trl 1.16.0")).loss == "chunked"


def test_no_two_frameworks_share_a_name() -> None:
    names = [
        {files.squeeze(name) for name in (found.key, found.name, *found.aliases)} for found in map(find_framework, FRAMEWORKS)
    ]
    assert sum(map(len, names)) == len(set().union(*names))


def test_what_a_run_does_not_state_has_its_documented_value() -> None:
    assert find_framework("torchtitan").default("recompute") == "selective"
    assert find_framework("maxtext").default("recompute") == "full"
    assert find_framework("megatron-bridge").default("zero") == "1"
    assert find_framework("megatron").default("recompute") == ""


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_value_that_a_framework_names_is_one_of_its_axis(name: str) -> None:
    found = find_framework(name)
    assert found.recompute[0] == "none"
    assert set(found.recompute) <= set(RECOMPUTE)
    assert set(found.offload) <= set(OFFLOAD) - {"none"}
    for pair in found.unstated:
        axis, value = pair.split("=")
        assert found.default(axis) == value
    assert found.default("recompute") in ("", *found.recompute)
    assert int(found.default("zero") or 0) in (0, *found.zero)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_compiling_moves_fewer_bytes_and_keeps_fewer_copies_or_is_no_option(name: str) -> None:
    found = find_framework(name)
    compiled = found.with_compile()
    assert (compiled is found) == (not found.compiled)
    assert compiled.unfused <= found.unfused
    assert compiled.casts <= found.casts
    assert not (found.compiled and compiled.keeps_intermediates)


def test_only_attention_that_writes_its_scores_is_not_flash_attention() -> None:
    assert not find_framework("megatron-deepspeed").flash_attention
    assert all(find_framework(name).flash_attention for name in FRAMEWORKS if name not in ("megatron-deepspeed", "mlx-lm"))
