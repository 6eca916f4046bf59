"""A report as text and as Markdown says the same."""

from meshwise.ui.views.run.sections import Section, as_markdown, as_text
from meshwise.ui.views.tables import grid

PAGE = [
    Section("time by part", grid(("", "s", "note"), (("step", "1.5", ""), ("  forward", "0.25", "a|b"))), ("median of 3",)),
    Section("next", commands=("meshwise run x",)),
]


def test_text_lines_up_numbers_to_the_right_and_words_to_the_left() -> None:
    lines = as_text(PAGE).splitlines()
    assert lines[:5] == [
        "time by part",
        "                s  note",
        "  step        1.5",
        "    forward  0.25   a|b",
        "  median of 3",
    ]
    assert lines[-2:] == ["next", "  $ meshwise run x"]


def test_markdown_keeps_rows_whole_and_parts_set_in() -> None:
    text = as_markdown("A run", PAGE)
    assert text.startswith("# A run\n\n## Time by part\n\n|  | s | note |\n| --- | ---: | ---: |\n| step | 1.5 |  |\n")
    assert "| &nbsp;&nbsp;forward | 0.25 | a\\|b |" in text
    assert text.endswith("```console\n$ meshwise run x\n```\n")


def test_a_column_that_no_row_fills_is_left_out() -> None:
    table = grid(("", "MFU", "s"), (("a", "", "1"), ("b", "", "2"))).without_empty_columns()
    assert [column.title for column in table.columns] == ["", "s"]
    assert table.cells() == [["a", "1"], ["b", "2"]]
