"""tools/shown.py: numbers of commands in the sentences of pages."""

from typing import Any

import pytest

import shown

LINE = "meshwise plan bloom-176b"


def row(seconds: float, **axes: int) -> dict[str, Any]:
    return {"seconds": seconds, "layout": {"dp_replicate": 1, "dp_shard": 8, "tp": 4, "pp": 12, "mbs": 2} | axes}


@pytest.fixture(autouse=True)
def answers(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = {"choices": [row(100.0, dp_replicate=2, dp_shard=2), row(100.4), row(120.0, mbs=1)]}
    validation = {"time": {"mape": 0.0276, "spearman": 0.968}, "memory": {"mape": 0.03}}
    found = {LINE: plan, "meshwise validate bloom": validation}
    monkeypatch.setattr(shown, "answer", found.__getitem__)


def test_rank_of_a_layout() -> None:
    """dp counts replicas and shards together."""
    assert [shown.rank_of(layout, LINE) for layout in ("dp4 tp4", "dp8 tp4 pp12 mbs2", "dp8 mbs1")] == [1, 2, 3]
    with pytest.raises(SystemExit, match="no row has the layout dp3"):
        shown.rank_of("dp3", LINE)


def test_standing_says_how_far_behind_the_first() -> None:
    assert shown.standing("dp4", LINE) == "the first row"
    assert shown.standing("dp8 mbs2", LINE) == "the second row, 0.4% slower than the first"


def test_scores_have_the_digits_of_the_tables() -> None:
    assert shown.score("bloom", "mape") == "2.8%"
    assert shown.score("bloom", "spearman") == "0.97"
    assert shown.score("bloom", "mape", "memory") == "3.0%"
    assert shown.score("bloom", "picked_loss") == ""


def test_a_paragraph_is_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    shown.prose("word " * 60)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == ""
    assert max(map(len, lines)) <= shown.PROSE_WIDTH
