"""tools/shown.py: numbers of commands in the sentences of pages."""

from pathlib import Path
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


@pytest.mark.parametrize(
    "line",
    [
        "meshwise show chips h200 | head -3",
        "meshwise count llama-3-71b",
        "cd tests && meshwise show chips | wc -l",
        "meshwise show chips h200 > {work}/chip; meshwise count llama-3-71b; grep -c ';' {work}/chip",
        "meshwise count llama-3-71b && meshwise show chips",
        "meshwise plan llama-debug --on 1xh100-sxm --batch 8 --framework torchtitan --json | meshwise export - --to torchtitan | head -5",
    ],
)
def test_a_command_in_this_process_answers_as_in_a_shell(line: str, tmp_path: Path) -> None:
    line = line.format(work=tmp_path)
    assert shown.pieces(line)
    assert shown.done(line) == shown._by_shell(line)  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    "line", ["meshwise show chips < a", "meshwise show chips >> a", "python a.py", "meshwise $(x)", 'meshwise "$X"']
)
def test_what_only_a_shell_can_do_is_left_to_it(line: str) -> None:
    assert shown.pieces(line) is None


def test_pages_do_not_show_what_the_machine_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A page would differ between its author and CI: files of the user, width and language of the terminal, a GPU that is listed."""
    line = "meshwise show chips; meshwise about --json | grep -c '\"own_files\": \\[\\]'; meshwise count mine"
    before = shown.done(line)
    (tmp_path / "chips").mkdir()
    (tmp_path / "chips" / "mine.toml").write_text('name = "mine"\n')
    for name, value in {
        "MESHWISE_HOME": str(tmp_path),
        "COLUMNS": "40",
        "LC_ALL": "de_DE.UTF-8",
        "CUDA_VISIBLE_DEVICES": "0",
    }.items():
        monkeypatch.setenv(name, value)
    assert shown.done(line) == before


def test_python_of_a_page_shares_the_plans_of_its_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    module, name, once = shown.KEPT[0]
    monkeypatch.setattr(shown, "KEPT", [(module, name, lambda ask: asked.append(ask) or once(ask)), *shown.KEPT[1:]])
    assert shown.done("meshwise plan llama-debug --on 1xh100-sxm --batch 8").code == 0
    shown.Python().lines('import meshwise as mw\nmw.plan("llama-debug", on="1xh100-sxm", batch="8").best.name')
    assert len(asked) == 2
    assert asked[0] == asked[1]
