"""The journal of a tuning: whatever was written before a crash is the state after it."""

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwise.errors import UserError
from meshwise.tune.loop.journal import FILE, FORMAT_VERSION, STATES, Journal, fold, opened


def event(kind: str, number: int) -> dict[str, object]:
    chosen = {"setting": "s", "candidate": {"tp": number}, "name": f"tp{number}"} if kind == "chosen" else {}
    measured = {"seconds": 1.0 + number, "failure": ""} if kind == "measured" else {}
    form = {"format": FORMAT_VERSION, "id": "s"} if kind == "setting" else {}
    return {"event": kind, "run": number, "time": 1.0, **chosen, **measured, **form}


EVENTS = st.lists(st.builds(event, st.sampled_from([*STATES, "setting", "unheard of"]), st.integers(1, 4)), max_size=30)


@given(EVENTS)
def test_a_run_never_goes_back_to_an_earlier_state(events: list[dict[str, object]]) -> None:
    places = [
        {number: STATES.index(run.state) for number, run in fold(events[:length]).items()} for length in range(len(events) + 1)
    ]
    back = [
        (before, after)
        for before, after in itertools.pairwise(places)
        if any(after.get(number, -1) < place for number, place in before.items())
    ]
    assert not back


@given(EVENTS)
def test_an_event_that_is_written_twice_changes_nothing(events: list[dict[str, object]]) -> None:
    assert fold([copy for one in events for copy in (one, one)]) == fold(events)


@settings(max_examples=30, deadline=None)
@given(EVENTS, st.integers(0, 4000))
def test_a_file_that_is_cut_off_anywhere_holds_every_whole_line(
    tmp_path_factory: pytest.TempPathFactory, events: list[dict[str, object]], end: int
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    whole = "".join(json.dumps(one) + "\n" for one in events).encode()
    cut = whole[: min(end, len(whole))]
    (folder / FILE).write_bytes(cut)
    lines = [line for line in cut.split(b"\n")[:-1] if line]
    last = cut.rpartition(b"\n")[2]
    complete = [json.loads(line) for line in lines] + ([json.loads(last)] if _is_json(last) else [])
    journal = Journal(folder)
    assert journal.runs == fold(complete)
    journal.add("chosen", run=99, setting="s", candidate={}, name="next")
    assert Journal(folder).runs == fold([*complete, event("chosen", 99) | {"candidate": {}, "name": "next"}]), (
        "what follows is whole"
    )


def _is_json(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def test_two_loops_cannot_tune_in_one_folder(tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(UserError, match="is tuning in it; wait for it to end"), opened(tmp_path):
        pass
    with opened(tmp_path) as again:
        assert again.runs == {}


def test_a_journal_of_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(json.dumps({"event": "setting", "id": "x", "format": 99}) + "\n")
    with pytest.raises(UserError, match="its format is 99"):
        Journal(tmp_path)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"), opened(tmp_path / "file" / "tune"):
        pass
