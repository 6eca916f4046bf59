"""Rows of a preflight: the node, device or link at fault is named, and healthy rows raise no alarm."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.run.preflight import verdict
from meshwise.run.preflight.cluster import found
from meshwise.run.preflight.result import Preflight
from meshwise.run.preflight.tools import NodeFacts
from meshwise.run.preflight.verdict import Finding, Measured

Row = dict[str, Any]


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("MESHWISE_HOME", str(tmp_path))


def rows(nodes: int, ranks: int, seed: int = 0, *, noise: float = 0.03, device: str = "cuda") -> list[Row]:
    """Return the rows of a healthy cluster."""
    dice = random.Random(seed)
    made: list[Row] = []

    def about(rate: float) -> float:
        return rate * (1 + noise * (2 * dice.random() - 1))

    for rank in range(nodes * ranks):
        own = {"rank": rank, "node": rank // ranks}
        made.append(
            {
                "kind": "machine",
                "device": device,
                "host": f"n{rank // ranks}",
                "local": rank % ranks,
                "name": "X",
                "nodes": nodes,
                "cores": 8,
                **own,
            }
        )
        made += [
            {"kind": "figure", "what": what, "rate": about(rate), **own}
            for what, rate in (("matrix products", 7e14), ("memory", 3e12))
        ]
        for other in range(nodes * ranks):
            inside = other // ranks == rank // ranks
            if other != rank and (inside or other % ranks == rank % ranks):
                what, rate = ("inside", 3e11) if inside else ("between", 4e10)
                made.append(
                    {"kind": "link", "what": what, "from": rank, "to": other, "rate": about(rate), "latency": about(1e-5), **own}
                )
    return made


def slowed(made: list[Row], share: float, which: Any) -> list[Row]:
    """Return rows with some rates lower, and what the worker adds: the same rates measured again beside a usual one."""
    out: list[Row] = []
    usual: dict[str, bool] = {}
    for row in made:
        hit = row["kind"] in ("figure", "link") and which(row)
        out.append(row | {"rate": row["rate"] * share} if hit else row)
        if hit:
            out.append({**out[-1], "kind": "again", "usual": False})
            usual[row["what"]] = False
    for row in made:
        if row["kind"] in ("figure", "link") and usual.get(row["what"]) is False and not which(row):
            out.append({**row, "kind": "again", "usual": True})
            usual[row["what"]] = True
    return out


def sick(made: list[Row], expected: dict[str, float] | None = None) -> list[Finding]:
    return [one for one in verdict.judge(Measured(tuple(made)), expected or {}) if one.level == "sick"]


@given(st.integers(0, 10**6), st.sampled_from([(1, 8), (2, 1), (2, 8), (4, 2), (8, 1)]))
def test_a_healthy_cluster_raises_no_alarm(seed: int, size: tuple[int, int]) -> None:
    assert verdict.judge(Measured(tuple(rows(*size, seed))), {"matrix products": 7.2e14, "send between": 4e10}) == []


@pytest.mark.parametrize("size", [(2, 1), (4, 1), (3, 2), (8, 8)])
def test_a_slow_node_is_named(size: tuple[int, int]) -> None:
    (one,) = sick(slowed(rows(*size), 0.7, lambda row: row["node"] == 1 and row["kind"] == "figure"))[:1]
    assert one.where == "n1"
    assert one.share == pytest.approx(0.7, rel=0.1)


def test_a_slow_gpu_of_a_node_is_named() -> None:
    (one,) = sick(slowed(rows(2, 8), 0.6, lambda row: row["rank"] == 11 and row["what"] == "memory"))
    assert one.where == "n1 device 3"


def test_a_slow_cable_is_blamed_on_its_node_with_the_direction() -> None:
    (one,) = sick(slowed(rows(4, 2), 0.3, lambda row: row["what"] == "between" and row["node"] == 2))
    assert (one.nodes, one.device) == (("n2",), None)
    assert "when it sends" in one.message


def test_a_slow_adapter_of_one_gpu_is_told_from_a_slow_node() -> None:
    (one,) = sick(slowed(rows(4, 2), 0.3, lambda row: row["what"] == "between" and 5 in (row["from"], row["to"])))
    assert one.where == "n2 device 1"


def test_a_slow_path_between_two_nodes_is_a_link_of_both() -> None:
    (one,) = sick(slowed(rows(5, 1), 0.2, lambda row: row["kind"] == "link" and {row["from"], row["to"]} == {1, 3}))
    assert one.where == "link between n1 and n3"


def test_two_slow_nodes_are_both_named() -> None:
    found = sick(slowed(rows(6, 1), 0.2, lambda row: row["kind"] == "link" and {1, 4} & {row["from"], row["to"]}))
    assert {one.where for one in found} == {"n1", "n4"}


def test_what_was_slow_once_and_not_measured_again_is_only_watched() -> None:
    made = [row | {"rate": row["rate"] / 3} if row["kind"] == "figure" and row["rank"] == 0 else row for row in rows(4, 1)]
    found = verdict.judge(Measured(tuple(made)), {})
    assert {one.level for one in found} == {"watch"}


def test_a_whole_cluster_below_its_prediction_is_sick() -> None:
    found = sick(rows(2, 8), {"matrix products": 1.4e15})
    assert {one.against for one in found} == {"prediction"}
    assert {one.nodes for one in found} == {("n0",), ("n1",)}


def test_counters_and_xid_errors_name_the_gpu() -> None:
    made = rows(1, 2)
    made.append({"kind": "counters", "rank": 1, "node": 0, "clocks_throttle_reasons.hw_thermal_slowdown": "Active",
                 "pcie.link.width.current": "8", "pcie.link.width.max": "16"})  # fmt: skip
    made.append({"kind": "xid", "rank": 0, "node": 0, "codes": "31 79"})
    found = sick(made)
    assert {one.where for one in found} == {"n0 device 0", "n0 device 1"}
    assert any("throttled (hw_thermal_slowdown); PCIe x8 instead of x16" in one.message for one in found)


def test_a_node_that_never_came_is_left_out_by_name(tmp_path) -> None:
    made = [*rows(2, 1), {"kind": "absent", "rank": 2, "node": 2, "host": "n2", "why": "did not join"}]
    seen = found([NodeFacts("n0"), NodeFacts("n1"), NodeFacts("n9", state="drained")], [])
    done = Preflight(seen, tmp_path, None, tuple(sick(made)), Measured(tuple(made)))
    assert done.exit_code == 1
    assert done.advice() == ["srun --exclude=n2,n9", "kubectl cordon n2", "kubectl cordon n9"]


def test_a_node_that_has_become_slower_is_seen() -> None:
    from meshwise.run.preflight import history

    before = Measured(tuple(rows(1, 1)))
    for _ in range(3):
        history.remember("n0", verdict.kind_of(before, "n0"), {"matrix products": 9e14})
    (one,) = sick(rows(1, 1))
    assert one.against == "history"
    assert "79% of 900 TFLOP/s" in one.message
