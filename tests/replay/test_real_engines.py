"""The simulation beside a real engine: the requests of two traces on vLLM and an H200, percentile by percentile."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from meshwise.cost.serve.load.requests import percentiles
from meshwise.plan.ask import ServeAsk
from meshwise.replay.deployment import deployed
from meshwise.replay.engine.clock import Clock, Engine, Fleet
from meshwise.replay.engine.record import Record
from meshwise.replay.engine.times import PassTimes
from meshwise.replay.traces.request import Request

FIXTURES = Path(__file__).parents[1] / "fixtures" / "replay"
BLOCK = 128
"""Tokens of Mooncake's blocks, cut to a quarter."""


def rows(name: str) -> list[dict[str, float]]:
    with (FIXTURES / name).open() as file:
        found = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
    return sorted(found, key=lambda row: row["seconds"])


@pytest.mark.parametrize("name", ["vllm_h200_azure.csv", "vllm_h200_mooncake.csv"])
def test_percentiles_are_those_of_vllm_on_an_h200(name: str) -> None:
    """Within 20% at p50 and 30% at p95, of TTFT and of whole requests (the issue's bounds; see docs/reports/replay.md for the errors)."""
    measured = rows(name)
    option = deployed(
        ServeAsk("llama-3.1-8b:bf16", on="h200", engine="vllm", rate="5/s", context="8k", prompt=512, output=128)
    ).option
    assert option.cost
    limits = replace(option.limits, sequences=128, tokens=8192, cache=114688.0)
    requests = [
        # the first block of all prompts is the same, later ones come once
        Request(
            row["seconds"] - measured[0]["seconds"], int(row["prompt"]), int(row["output"]), (0, i + 1) if row["cached"] else ()
        )
        for i, row in enumerate(measured)
    ]
    engine = Engine(times=PassTimes(option.cost), limits=limits, block=BLOCK)
    record = Clock(Fleet(engine=engine, copies=1), Record(requests[-1].at)).run(requests)
    for column, values in (("ttft_s", record.ttft), ("end_to_end_s", record.e2e)):
        seen, found = percentiles([row[column] for row in measured]), percentiles(values)
        assert found.p50 == pytest.approx(seen.p50, rel=0.2)
        assert found.p95 == pytest.approx(seen.p95, rel=0.3)
