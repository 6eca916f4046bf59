"""Each parser gets some mutated inputs here, and ten thousand by `make fuzz`: a result, or one line for the user."""

from pathlib import Path

import pytest

from meshwise.errors import UserError
from meshwise.programs.program import programs
from meshwise.programs.read.files import read_sources
from meshwise.programs.source import Source
from support.fuzz_targets import TARGETS
from support.launch_seeds import launch_files

pytestmark = pytest.mark.slow

FEW = 40


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_inputs_end_in_a_result_or_one_line(name: str, tmp_path: Path) -> None:
    for number in range(FEW):
        TARGETS[name].feed(tmp_path, TARGETS[name].input(number))


def test_launch_files_of_every_program_are_mutated() -> None:
    found = {"dynamo"}  # a deployment of it is read as its engine
    for name, text in launch_files():
        try:
            found.add(read_sources([Source(name, text)], {}).program.name)
        except UserError:
            continue  # it names files that are not given
    assert set(programs()) - found == set()


def test_every_kind_of_launch_file_has_valid_inputs_and_five_seconds() -> None:
    chosen = [target for name, target in TARGETS.items() if name.startswith("launch")]
    assert {target.file for target in chosen} == {
        "train.sh", "train.yaml", "config.json", "train.toml", "README.md", "Modelfile", "train.py", "launch",
    }  # fmt: skip
    assert all(target.seeds() and target.seconds == 5 for target in chosen)
