"""One model at several lengths: equal tokens where that is possible, and numbers that add up."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwise.errors import UserError
from meshwise.run.train.ask import TrainRun
from meshwise.run.train.launch import Launch, prepare
from meshwise.run.train.report.comparison import Measured
from meshwise.run.train.results import Lengths, TrainResult
from meshwise.run.train.short.lengths import equal_tokens, parse, points
from meshwise.run.train.short.sweep import Outcome, Point
from meshwise.ui.views.run.lengths import comparison, configuration, losses, per_rank
from meshwise.workers.trainer.contract.rows import Rank, Step, failure, measurement
from support.command import one_line


def short(outcomes: list[Outcome], refused: list[Point], *, same: bool) -> Lengths:
    return Lengths(tuple(outcomes), tuple(refused), same, 100, {"device": "cpu"})


def ready(**words: Any) -> tuple[TrainRun, Launch]:
    asked = TrainRun(device="cpu", **words)
    return asked, prepare(asked)


def test_lengths_are_sorted_and_nonsense_is_refused() -> None:
    assert parse("1k,64, 128") == (64, 128, 1024)
    for text in ("", "64,64"):
        with pytest.raises(UserError) as error:
            parse(text)
        assert "--report-lengths" in one_line(error.value)


@pytest.mark.parametrize(("axes", "batch"), [({}, 16), ({"dp_shard": 2}, 16), ({"mbs": 2}, 16), ({"pp": 2}, 32)])
def test_a_step_has_as_many_tokens_at_every_length_where_they_divide(axes: Any, batch: int) -> None:
    asked, run = ready(**axes, batch=batch, seq=64)
    found = points(asked, run, (32, 64, 256))
    assert equal_tokens(run, (32, 64, 256))
    assert [point.refusal for point in found] == [""] * 3
    assert {point.ready.settings.batch * point.ready.settings.seq for point in found if point.ready} == {batch * 64}
    same = next(point.ready for point in found if point.ready and point.ready.settings.seq == 64)
    assert same.settings.layout == run.settings.layout


def test_a_step_of_fewer_tokens_than_the_longest_sequence_gets_as_many_as_that_has() -> None:
    asked, run = ready(batch=8, seq=64)
    found = points(asked, run, (128, 1024))
    assert equal_tokens(run, (128, 1024)) == 1024  # 512 tokens are half a sequence of 1024
    assert [point.ready.settings.batch for point in found if point.ready] == [8, 1]


def test_lengths_without_a_small_multiple_in_common_keep_the_batch() -> None:
    asked, run = ready(batch=8, seq=64)
    found = points(asked, run, (100, 128))
    assert not equal_tokens(run, (100, 128))  # 3,200 tokens would be six times as many
    assert [point.ready.settings.batch for point in found if point.ready] == [8, 8]


def test_a_length_that_breaks_a_rule_is_reported_with_it() -> None:
    asked, run = ready(what="gpt2", batch=8, seq=64)
    found = points(asked, run, (64, 2048))
    assert found[0].ready
    assert "1024" in found[1].refusal  # it has learned so many positions
    lines = comparison(short([], [found[1]], same=False)).lines
    assert lines[-1].startswith("not run, batch=")
    assert lines[-1].endswith(found[1].refusal)


def outcome(run: Launch, seq: int, seconds: float, *, oom: bool = False) -> Outcome:
    settings = replace(run.settings, seq=seq)
    row = failure(settings, 1, "oom", "") if oom else measurement(settings, [Step(0, 6.0, 1, seconds, 2.0**30)], 1)
    return Outcome(Point({"seq": seq}, run), row, None)


def test_every_length_is_a_row_in_order_and_its_numbers_add_up() -> None:
    _, run = ready(batch=8)
    some = [outcome(run, 128, 0.5), outcome(run, 64, 0.25), outcome(run, 256, 0, oom=True)]
    table = comparison(short(some, [], same=True)).table
    assert table
    titles = [column.title for column in table.columns]
    rows = [dict(zip(titles, row, strict=True)) for row in table.cells()]
    assert [row["sequence"] for row in rows] == ["64", "128", "256"]
    for row in rows[:2]:
        assert float(row["tokens/s"].replace(",", "")) * float(row["s/step"]) == float(row["tokens/step"].replace(",", ""))
    assert rows[2]["s/step"] == "oom"
    assert "MFU" not in titles  # of a CPU no peak is known


def test_tokens_of_the_data_ranks_add_up_to_the_batch() -> None:
    _, run = ready(dp_shard=2, tp=2, batch=8)
    steps = [Step(i, 6.0 - i, 1.0, 0.5, 2.0**30) for i in range(7)]
    ranks = [Rank(i, "host", {"pp": 0, "dp_shard": i // 2, "tp": i % 2}, 256, 0.4, 0.3, 2.0**30) for i in range(4)]
    seen = Measured(run.settings, steps, ranks, measurement(run.settings, steps, 4), [])
    assert per_rank(seen).lines == ("tokens of the data ranks: 256 + 256 = 512 per step",)
    about = configuration(TrainResult(Path("run"), seen, None), short([], [], same=True)).lines
    assert about[-1] == "8 x 64 = 512 tokens per step; 512 / 0.5 s = 1,024 tokens/s = 4 x 256.0"
    table = losses(seen).table
    assert table
    assert [tuple(row[:2]) for row in table.cells()] == [
        ("1", "6.0000"),
        ("3", "4.0000"),
        ("4", "3.0000"),
        ("5", "2.0000"),
        ("7", "0.0000"),
    ]
