"""Lines are numbered, plain and of bounded length."""

import io

from meshwise.programs.logs.lines import MAX_LINE_CHARS, lines, plain


def test_a_line_without_end_is_cut():
    stream = io.StringIO("x" * (3 * MAX_LINE_CHARS + 17) + "\nnext\n")
    first, second = lines(stream)
    assert len(first.text) == MAX_LINE_CHARS
    assert first.cut
    assert (second.number, second.text) == (2, "next")


def test_the_last_line_without_a_line_break_is_cut():
    assert [line.cut for line in lines(io.StringIO("a\nb"))] == [False, True]


def test_colours_and_all_but_the_last_state_of_a_progress_bar_are_removed():
    assert plain("\x1b[1;32mstep\x1b[0m 5\n") == "step 5"
    assert plain("10%|#  |\r100%|###| 4/4\n") == "100%|###| 4/4"
