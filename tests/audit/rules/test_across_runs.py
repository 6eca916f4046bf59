"""Rules over several runs: rows of a table that agree raise nothing. Faults of real tables: ../test_documents.py, ../test_tables.py."""

from meshwise.audit.figures import Figures
from meshwise.audit.finding import Finding
from meshwise.audit.rules import across_runs
from support.audits import table


def check(rows: list[Figures]) -> list[Finding]:
    return [one for rule in across_runs.RULES for one in rule(rows)]


def test_memory_that_grows_with_the_micro_batch_raises_nothing():
    memory = {1.0: 30e9, 2.0: 37e9, 4.0: 49e9}
    rows = table([{"mbs": mbs, "memory": most} for mbs, most in memory.items()], dp=4.0, devices=4.0, batch=64.0)
    assert check(rows) == []


def test_memory_that_shrinks_with_the_micro_batch_is_found():
    rows = [{"mbs": 2.0, "memory": 65e9}, {"mbs": 4.0, "memory": 56e9}]
    (one,) = check(table(rows, dp=4.0, devices=4.0, batch=64.0))
    assert one.message == "65 GB at micro-batch 2 is more than at the larger micro-batch 4"
    assert (one.where, one.compared_with) == (("x: line 1",), ("x: line 2",))


def test_a_batch_in_proportion_to_its_time_raises_nothing():
    shared = {"dp": 4.0, "tp": 8.0, "pp": 12.0, "mbs": 4.0}
    rows = table([{"batch": 1568.0, "seconds": 92.75}, {"batch": 2048.0, "seconds": 117.07}], **shared)
    assert check(rows) == []  # BLOOM notes, 02-25


def test_strong_and_weak_scaling_raise_nothing_and_a_mixture_is_found():
    strong = table([{"devices": n, "batch": 512.0, "seconds": 1.0 / n} for n in (8.0, 16.0, 32.0)])
    weak = table([{"devices": n, "batch": 64 * n, "seconds": 1.0} for n in (8.0, 16.0, 32.0)])
    neither = table(
        [
            {"devices": 8.0, "batch": 512.0, "seconds": 1.0},
            {"devices": 16.0, "batch": 128.0, "seconds": 0.2},
        ]
    )
    assert check(strong) == check(weak) == []
    assert [one.rule for one in check(neither)] == ["unlike batches"]


def test_a_column_of_scaling_efficiencies_is_computed():
    rows = [
        {"devices": n, "tokens_per_second": rate, "efficiency": e}
        for n, rate, e in ((8.0, 8e3, 1.0), (16.0, 15.2e3, 0.95), (32.0, 20e3, 0.9))
    ]
    (one,) = across_runs.stated_efficiency(table(rows))
    assert one.where == ("x: line 3",)
    assert one.message == "a scaling efficiency of 90% is stated, the rates give 62%"
