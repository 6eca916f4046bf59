"""Frameworks: found by name, each with its source, and any user may add one."""

from dataclasses import replace
from pathlib import Path

import pytest

from meshwise.catalogue import files
from meshwise.catalogue.frameworks import find_framework
from meshwise.errors import UserError
from meshwise.plan.ask import TrainAsk
from meshwise.plan.train.search import search
from support.command import one_line
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


@pytest.mark.parametrize(("chip", "name"), [("tpu-v5p:4x4x4", "maxtext"), ("8xh100-sxm", "megatron")])
def test_a_question_that_names_no_framework_gets_the_usual_one_for_its_chips(chip: str, name: str) -> None:
    ask = TrainAsk(model="llama-debug", on=chip, batch=64, seq=512)
    assert ask.question().work.framework.key == name
    assert replace(ask, framework="torchtitan").question().work.framework.key == "torchtitan"
