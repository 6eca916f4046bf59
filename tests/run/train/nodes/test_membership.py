"""Nodes of an elastic run find each other through the shared folder, and form the next generation without those that are lost."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from meshwise.errors import DoesNotFit
from meshwise.run.train.hosts import Hosts
from meshwise.run.train.nodes import membership
from meshwise.run.train.nodes.membership import Generation, Membership


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"HEARTBEAT": 0.05, "LOST": 1.5, "SETTLE": 0.3, "FIRST": 1.0, "ANSWER": 1.0}.items():
        monkeypatch.setattr(membership, f"{name}_SECONDS", seconds)


def node(out: Path, rank: int, least: int = 2, nodes: int = 3) -> Membership:
    return Membership(out, Hosts(nodes, rank, "127.0.0.1:29500", least=least), lambda line: None)


def together(*calls: "Callable[[], Generation | None]") -> "list[Generation | None]":
    """Make the calls at the same time; return their results in order."""
    results: list[Generation | None] = [None] * len(calls)

    def store(index: int, call: "Callable[[], Generation | None]") -> None:
        results[index] = call()

    threads = [threading.Thread(target=store, args=item) for item in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_a_lost_node_is_left_out_also_node_0_and_one_that_returns_joins(tmp_path: Path) -> None:
    def yes(generation: Generation) -> bool:
        return True

    with node(tmp_path, 1) as second, node(tmp_path, 2) as third:
        with node(tmp_path, 0) as first:
            made = together(*(lambda n=n: n.form(yes) for n in (first, second, third)))
            assert [generation and generation.members for generation in made] == [(0, 1, 2)] * 3
            assert [n.leads for n in (first, second, third)] == [True, False, False]
        # node 0 is gone
        made = together(*(lambda n=n: n.form(yes) for n in (second, third)))
        assert [generation and generation.members for generation in made] == [(1, 2)] * 2
        assert second.leads
        assert made[0]
        assert made[0].rendezvous.startswith("127.0.0.1:")
        with node(tmp_path, 0) as back:
            until(lambda: second.joining() == [0])
            second.announce(regroup=True)
            assert third.asked_to_regroup()
            made = together(*(lambda n=n: n.form(yes) for n in (back, second, third)))
            assert [generation and generation.members for generation in made] == [(0, 1, 2)] * 3
            assert back.leads
            back.announce(over=True)
            third.current = Generation(third.current.number - 1)
            assert third.form(yes) is None


def until(holds: Callable[[], bool]) -> None:
    event = threading.Event()
    for _ in range(600):
        if holds():
            return
        event.wait(0.1)
    raise AssertionError("waited a minute")


def test_too_few_nodes_end_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "JOIN_SECONDS", 0.5)
    with (
        node(tmp_path, 1) as alone,
        pytest.raises(DoesNotFit, match=r"node 0 and node 2 did not join within .* at least 2 nodes"),
    ):
        alone.form(lambda generation: True)
    (tmp_path / ".nodes" / "0.json").write_text("[" * 9)
    (tmp_path / ".nodes" / "generation.json").write_text('{"number": "x", "members": 3}')
    with node(tmp_path, 1) as alone, pytest.raises(DoesNotFit):
        alone.form(lambda generation: True)
