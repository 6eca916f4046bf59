"""Arguments as programs print them become facts of the run; other names that look like columns do not."""

from meshwise.programs.logs.arguments import pairs, read_arguments
from meshwise.programs.logs.series import Series
from meshwise.runs.reading import Reading


def facts(text: str, names: dict[str, str] | None = None) -> dict[str, float]:
    series = Series(Reading(), "x")
    read_arguments(series, text, names)
    return series.facts


def test_arguments_are_read_in_every_notation():
    assert facts("  hidden_size ..................... 4096") == {"hidden": 4096}
    assert facts("torchrun x.py --tensor-model-parallel-size 8 --seq-length=2048") == {"tp": 8, "seq": 2048}
    assert facts("Parallel(dp=8, pp=2, tp='4')") == {"dp": 8, "pp": 2, "tp": 4}


def test_a_figure_is_no_argument_and_a_word_no_number():
    assert facts("loss=3.5, memory=12, dp=many") == {}


def test_names_of_one_program_are_mapped_to_shared_ones():
    assert facts("batch_accumulation_per_replica=16") == {}
    assert facts("batch_accumulation_per_replica=16", {"batch_accumulation_per_replica": "accumulation"}) == {"accumulation": 16}


def test_pairs_are_names_and_values():
    assert pairs("a=1, --b 2") == [("a", "1"), ("b", "2")]
