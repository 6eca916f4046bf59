"""Each parser gets some mutated inputs here, and ten thousand by `make fuzz`: a result, or one line for the user."""

from pathlib import Path

import pytest

from support.fuzz_targets import TARGETS

pytestmark = pytest.mark.slow

FEW = 40


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_inputs_end_in_a_result_or_one_line(name: str, tmp_path: Path) -> None:
    for number in range(FEW):
        TARGETS[name].feed(tmp_path, TARGETS[name].input(number))
