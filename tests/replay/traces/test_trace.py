"""A trace can be cut, sped up and sent by more users; its facts are those of the published traces; made traces keep their word."""

from itertools import pairwise
from pathlib import Path

import pytest

from meshwise.errors import UserError
from meshwise.replay.traces.facts import facts, hits
from meshwise.replay.traces.made import KINDS, make
from meshwise.replay.traces.request import Request
from meshwise.replay.traces.trace import adjusted, find_trace, of_requests, open_trace


def test_mooncakes_prefixes_are_found_again_as_often_as_published() -> None:
    """In a cache without end 36.6% of the blocks, in 20,000 blocks 28.7%, in 5,000 11.0%, in 1,000 4.4%: they came with the trace."""
    trace = open_trace("mooncake-conversation")
    found = hits(trace, (0, 20_000, 5_000, 1_000), 512)
    assert [100 * one.hits for one in found] == pytest.approx([36.6, 28.7, 11.0, 4.4], abs=0.06)


def test_azures_code_service_comes_in_bursts() -> None:
    """57 minutes, 2,048 and 28 tokens on average, gaps that deviate by 13.2 times their mean, up to 632 requests a minute."""
    found = facts(open_trace("azure-code-2023"))
    assert (found.requests, max(found.minutes)) == (8819, 632)
    assert (found.prompt.mean, found.output.mean, found.burst) == pytest.approx((2048, 28, 13.2), rel=0.01)
    assert found.seconds / 60 == pytest.approx(57, abs=0.5)
    assert found.reuse == ()


def test_a_window_twice_as_fast_by_three_times_the_users() -> None:
    trace = of_requests([(float(i), 100 + i, 10, (0, i + 1)) for i in range(100)])
    cut = list(adjusted(trace, window="10s..20s", speed=2))
    assert [one.at for one in cut] == [i / 2 for i in range(10)]
    assert cut[0].prompt == 110
    more = list(adjusted(trace, users=3))
    assert len(more) == 300
    assert all(a.at <= b.at for a, b in pairwise(more))
    assert {one.blocks[0] for one in more} == {0}, "the system's prompt is the same for all"
    assert len({one.blocks[1] for one in more}) == 300, "every user has prompts of their own"
    assert len(list(adjusted(trace, users=0.25))) == 25
    assert len(list(adjusted(trace, users=1.5))) == 150


@pytest.mark.parametrize("words", ["10min", "20s..10s", "a..b", "-5s..10s"])
def test_a_window_has_a_begin_before_its_end(words: str) -> None:
    with pytest.raises(UserError):
        adjusted(of_requests([(0.0, 1, 1)]), window=words)


def test_rows_at_hand_must_be_in_order() -> None:
    with pytest.raises(UserError, match="row 2"):
        of_requests([(1.0, 1, 1), (0.0, 1, 1)])


def test_an_unknown_name_is_met_with_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'azure-code-2023'"):
        find_trace("azure-code")


@pytest.mark.parametrize("kind", KINDS)
def test_a_made_trace_has_its_rate_its_order_and_the_same_seed_the_same_requests(kind: str) -> None:
    trace = make(kind, 2.0, 3600, seed=3)
    first, again = list(trace), list(trace)
    assert first == again
    assert first != list(make(kind, 2.0, 3600, seed=4))
    assert all(a.at <= b.at for a, b in pairwise(first))
    assert len(first) / 3600 == pytest.approx(2.0, rel=0.15)
    assert all(len(one.blocks) == -(-one.prompt // 512) for one in first)


def test_a_day_is_busier_at_noon_and_sessions_grow() -> None:
    found = list(make("agent", 0.2, 86400, day=0.8))
    night, noon = (sum(begin <= one.at / 3600 < begin + 4 for one in found) for begin in (0, 10))
    assert noon > 4 * night
    by_session: dict[int, list[Request]] = {}
    for one in found:
        by_session.setdefault(one.blocks[-1] // 4096, []).append(one)
    turns = max(by_session.values(), key=len)
    assert all(a.prompt < b.prompt and b.blocks[: len(a.blocks)] == a.blocks for a, b in pairwise(turns))
    assert facts(make("agent", 0.2, 3600)).reuse[-1].hits > 0.5


def test_more_requests_than_can_be_replayed_are_refused() -> None:
    with pytest.raises(UserError, match="at most"):
        make("batch", 1e6, 86400)
    with pytest.raises(UserError, match="--rate and --hours"):
        make("batch", 0, 86400)


def test_a_large_trace_is_not_held(tmp_path: Path) -> None:
    """It is read anew each time: what changes in the file changes the trace."""
    file = tmp_path / "t.csv"
    file.write_text("seconds,prompt,output\n0,1,1\n")
    trace = open_trace(file)
    file.write_text("seconds,prompt,output\n0,1,1\n1,1,1\n")
    assert len(list(trace)) == 2
