"""The tables of parts: names, letters and colours tell parts of one bar apart."""

from meshwise.cost.parts import SERVE_MEMORY, SERVE_TIME, TRAIN_MEMORY, TRAIN_TIME, names, words


def test_no_two_parts_of_a_bar_look_alike() -> None:
    for table in (TRAIN_TIME, TRAIN_MEMORY, SERVE_TIME, SERVE_MEMORY):
        assert len({part.name for part in table}) == len(table)
        assert len({part.letter for part in table}) == len(table)
        assert len({part.colour for part in table}) == len(table)
        assert all(len(part.letter) == 1 and part.words for part in table)


def test_parts_are_found_by_name() -> None:
    assert names(SERVE_MEMORY) == ("weights", "cache", "compute", "context")
    assert words(SERVE_MEMORY)["cache"] == "KV cache"
