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
    return read_sources([Source(form["file"], form["text"])], form.get("set", {}))


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
