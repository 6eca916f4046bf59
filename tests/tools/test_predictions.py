"""tools/predictions.py: what moved, appeared or disappeared is reported by source, and the check fails until the file is renewed."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import predictions
from predictions import CLOSE, SAMPLE, Prediction, compare, moved, of_question, of_table, parsed, read, report, sample, write

SOURCE = "runs h100-sxm megatron bf16"
QUESTION = "plan llama-3-8b --on 8xh100-sxm --batch 64x4096 --framework torchtitan"


def row(name: str, source: str = SOURCE, **values: float) -> Prediction:
    return Prediction(source=source, id=name, answer="fits", **{"seconds": 2.0, "bytes": 3e9} | values)


def lines(golden: Sequence[Prediction], found: Sequence[Prediction]) -> list[str]:
    return list(report(compare(golden, found)))


# Compare.


def test_nothing_is_reported_where_nothing_moved():
    rows = [row("a"), row("b", seconds=math.nan), row("c", seconds=math.inf, bytes=0.0)]
    nearly = [replace(each, seconds=each.seconds * (1 + CLOSE / 2)) for each in rows if each.seconds]
    assert compare(rows, rows).same
    assert compare(rows, nearly).same
    assert lines(rows, rows) == []


def test_moves_are_counted_by_source_and_column_with_median_and_largest():
    golden = [row("a"), row("b"), row("c"), row("d"), row("e", source="other a100 fsdp bf16")]
    found = [row("a", seconds=2.02), row("b", seconds=1.9), row("c", seconds=2.04), row("d"), golden[-1]]
    header, line = lines(golden, found)
    assert header.split() == ["source", "column", "rows", "moved", "median", "largest", "at"]
    assert line.split() == [*SOURCE.split(), "seconds", "4", "3", "+1.00%", "-5.00%", "b"]


def test_each_column_has_its_own_line():
    columns = [line.removeprefix(SOURCE).split()[0] for line in lines([row("a")], [row("a", seconds=3.0, bytes=4e9)])[1:]]
    assert columns == ["seconds", "bytes"]


def test_another_layout_is_reported_with_the_question():
    golden = [Prediction(source="questions plan", id="plan x", answer="dp8 tp1", seconds=1.0)]
    found = [replace(golden[0], answer="dp4 tp2", seconds=0.9)]
    assert lines(golden, found)[-1] == "questions plan: dp8 tp1 -> dp4 tp2: plan x"


def test_rows_whose_answer_changes_alike_share_a_line():
    golden = [row(name) for name in "abcdefgh"]
    found = [replace(each, answer="does not fit") for each in golden]
    assert lines(golden, found) == [f"{SOURCE}: fits -> does not fit: a; b; c; d; e; f; and 2 more"]


def test_a_number_that_appears_or_disappears_is_a_change():
    golden, found = [row("a"), row("b", decode=5.0)], [row("a", decode=5.0), row("b")]
    assert lines(golden, found) == [f"{SOURCE}: no decode -> decode 5.0: a", f"{SOURCE}: decode 5.0 -> no decode: b"]


def test_new_and_missing_rows_are_named():
    assert lines([row("a"), row("b")], [row("a"), row("c")]) == [f"{SOURCE}: 1 new: c", f"{SOURCE}: 1 missing: b"]


def test_a_row_read_with_another_precision_is_the_same_row():
    now = SOURCE.replace("bf16", "fp8")
    _, move, change = lines([row("a")], [row("a", source=now, seconds=1.0)])
    assert move.split()[-4:] == ["1", "-50.00%", "-50.00%", "a"]
    assert change == f"{now}: source {SOURCE} -> source {now}: a"


def test_a_row_that_left_the_sample_is_still_compared():
    """A table that gets more rows has another sample; rows in the file are looked up among all of its rows."""
    golden = sample([row(str(i)) for i in range(40)])
    found = [row(str(i), seconds=4.0) for i in range(50)]
    done = compare(golden, found)
    assert not done.missing
    assert len(done.moves[SOURCE, "seconds"]) == len(golden)
    assert done.new


@given(was=st.floats(), now=st.floats())
def test_moving_is_symmetric_and_never_from_a_number_to_itself(was: float, now: float):
    assert moved(was, now) == moved(now, was)
    assert not moved(was, was)


@pytest.mark.parametrize(("was", "now"), [(1.0, math.nan), (1.0, math.inf), (0.0, 1e-9), (1.0, -1.0), (1.0, 1 + 2 * CLOSE)])
def test_a_move_is_seen(was: float, now: float):
    assert moved(was, now)
    assert lines([row("a", seconds=was)], [row("a", seconds=now)])


# Sample.


@given(st.integers(1, 300))
def test_a_sample_is_spread_over_a_source(number: int):
    rows = [row(str(i)) for i in range(number)]
    taken = [int(each.id) for each in sample(rows)]
    steps = {b - a for a, b in pairwise(taken)}
    assert len(taken) == min(number, SAMPLE)
    assert (taken[0], taken[-1]) == (0, number - 1)
    assert not steps or max(steps) - min(steps) <= 1


def test_every_question_is_in_the_sample():
    rows = [row(f"plan {i}", source="questions plan") for i in range(3 * SAMPLE)]
    assert sample(rows) == rows


# The file.


def test_the_file_reads_back_as_it_was_written(tmp_path: Path):
    rows = [row("a", seconds=1 / 3, low=1e-12, high=math.inf), row('plan "x", --on 2', seconds=math.nan, decode=123456789.0)]
    write(tmp_path / "golden.csv", rows)
    again = read(tmp_path / "golden.csv")
    assert compare(rows, again).same
    assert again[0] == rows[0]
    assert "0.333333," in (tmp_path / "golden.csv").read_text()


def test_a_missing_or_damaged_file_is_refused_in_one_line(tmp_path: Path):
    path = tmp_path / "golden.csv"
    header = ",".join(predictions.COLUMNS)
    texts = {
        None: "no such file",
        "": "header",
        "a,b\n": "header",
        f"{header}\n<<<<<<< HEAD\n": "line 2",
        f"{header}\na,b,c,x,,,,,,\n": "line 2",
    }
    for text, reason in texts.items():
        if text is not None:
            path.write_text(text)
        with pytest.raises(SystemExit) as refused:
            read(path)
        assert reason in str(refused.value), text
        assert str(refused.value).endswith("renew with: make predictions"), text


def test_the_check_fails_until_the_file_is_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "golden.csv"
    monkeypatch.setattr(predictions.answers, "questions", lambda: [QUESTION])
    assert predictions.main(["--write"], path) == 0
    assert predictions.main(["--check"], path) == 0
    assert capsys.readouterr().out == ""
    write(path, [replace(each, seconds=2 * (each.seconds or 0)) for each in read(path)])
    assert predictions.main(["--check"], path) == 1
    printed = capsys.readouterr().out.splitlines()
    assert "-50.00%" in printed[1]
    assert printed[-1] == "renew with: make predictions"
    assert predictions.main(["--write"], path) == 0
    assert "-50.00%" in capsys.readouterr().out
    assert predictions.main(["--check"], path) == 0


# Predict.


def test_a_question_is_parsed_into_keywords():
    question = "plan --on '2 pods of tpu-v5p' --at-most 4 --shape 1x2x3 --shape 4x5x6 --vary nodes=1..4 --cheapest"
    words = {"on": "2 pods of tpu-v5p", "at_most": "4", "shape": ["1x2x3", "4x5x6"], "cheapest": True}
    assert parsed(question) == ("plan", [], words, ["nodes=1..4"])
    assert parsed("serve llama-3-8b:q8_0 --on m2-ultra") == ("serve", ["llama-3-8b:q8_0"], {"on": "m2-ultra"}, [])


def test_every_kind_of_question_has_an_answer_or_a_refusal():
    kinds = {
        QUESTION: 1,
        f"{QUESTION.replace('--on 8xh100-sxm', '--on h100-sxm')} --vary nodes=1,2": 2,
        "plan llama-3-8b --batch 1M --tokens 100B --within 30d --cheapest --vary chip=h100-sxm": 1,
        "plan --on jean-zay:2 --batch 256x2048 --shape 4096x32x32 --shape 5120x20x20": 2,
        "plan llama-3-405b --on 8xh100-sxm --batch 1M": 1,
        "serve llama-3-8b:q8_0 --on m2-ultra": 1,
        "serve llama-3-8b:q8_0 --on rtx4090 --vary users=1,2": 2,
    }
    for question, number in kinds.items():
        rows = list(of_question(question))
        assert len({each.key for each in rows}) == number, question
        for each in rows:
            assert each.answer, question
            refused = each.answer.startswith("refused: ")
            assert refused == ("405b" in question), question
            assert refused == (each.low is None) == (each.high is None) == (each.bytes is None), question


def test_a_table_that_is_refused_is_one_row():
    (refused,) = of_table("no_such_table")
    assert refused.answer.startswith("refused: unknown table 'no_such_table'")


def test_rows_of_a_table_name_their_source_and_have_their_own_keys():
    for table, source in {
        "korthikanti2022_iteration": "korthikanti2022_iteration a100-80gb-sxm megatron",
        "llamacpp_fit_dryrun": "llamacpp_fit_dryrun a100-80gb-sxm llama.cpp Q4_K_M",
    }.items():
        counts, *rows = predictions.numbered(of_table(table))
        assert counts.answer.startswith(f"{len(rows)} predicted, "), table
        assert all(each.source.startswith(source) for each in rows), table
        assert len({each.key for each in rows}) == len(rows), table
