"""`meshwise bench URL --rate`: requests arrive whether or not others are done; goodput counts those within the targets."""

import csv
import json
from pathlib import Path

import pytest

from meshwise.runs.serve.case import case_of
from meshwise.runs.table import run_of
from support.command import Run, refused
from support.scripted_endpoint import Script, serving

OPEN = ["--prompt", "20", "--output", "6", "--rate", "40/s", "--requests", "12", "--patience", "5s"]


def test_goodput_counts_the_requests_within_the_targets(run: Run) -> None:
    """A first token after 50 ms meets a target of 10 s and misses one of 1 ms."""
    with serving(Script(first=0.05, gap=0.005).serve) as port:
        url = f"http://127.0.0.1:{port}"
        loose, strict = (run("bench", url, *OPEN, "--ttft", target, "--json") for target in ("10s", "1ms"))
    (met,), (missed,) = (json.loads(done.out)["points"] for done in (loose, strict))
    assert met["rate"] == 40
    assert met["goodput"] == pytest.approx(met["finished"])
    assert met["finished"] > 0
    assert missed["goodput"] == 0
    assert met["e2e_p95"] >= 0.05
    assert met["output_rate"] == pytest.approx(6 * met["finished"])


def test_rows_of_an_open_loop_state_the_rate_and_count_prompts(run: Run, tmp_path: Path) -> None:
    """`validate` reads them as output tokens/s at a rate of requests, with latencies beside them; the plan is predicted at that rate."""
    plan, table = tmp_path / "plan.json", tmp_path / "rows.csv"
    run("serve", "llama-3.1-8b:fp8", "--on", "1xh100-sxm", "--rate", "8/s", "--out", str(plan))
    with serving(Script(first=0.05, gap=0.005).serve) as port:
        asked = ["bench", f"http://127.0.0.1:{port}", *OPEN, "--plan", str(plan)]
        (point,) = json.loads(run(*asked, "--json", "--rows", str(table)).out)["points"]
        shown = run(*asked).out
    (row,) = csv.DictReader(table.read_text().splitlines())
    assert (row["requests_per_s"], row["batch_or_concurrency"], row["rate_of"]) == ("40", "", "all requests, with prompts")
    assert float(row["decode_tok_s"]) == pytest.approx(point["output_rate"], rel=1e-4)
    assert float(row["tpot_ms"]) == pytest.approx(1e3 * point["tpot_mean"], rel=1e-4)
    assert point["predicted"]["with_prompts"] == pytest.approx(40 * 6)
    assert point["predicted"]["ttft_p95"] >= point["predicted"]["ttft_p50"] > 0
    assert "goodput" in shown
    assert "hardly ever" not in shown  # requests of an open loop need not be served at once
    assert case_of(run_of(row), "bench").load is not None


def test_a_ramp_doubles_the_rate_until_requests_miss_their_targets(run: Run) -> None:
    with serving(Script(first=0.05).serve) as port:
        done = run("bench", f"http://127.0.0.1:{port}", *OPEN, "--ramp", "--ttft", "1ms", "--json")
    assert [point["rate"] for point in json.loads(done.out)["points"]] == [40]  # saturated at once


def test_lengths_come_from_a_file_and_prompts_share_a_prefix(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "lengths.jsonl"
    file.write_text('{"prompt": 30, "output": 3}\n{"prompt": 30, "output": 5}\n')
    script = Script()
    with serving(script.serve) as port:
        run("bench", f"http://127.0.0.1:{port}", *OPEN, "--lengths", str(file), "--prefix", "50%")
    sent = [one for one in script.seen if one.get("max_tokens", 0) > 2]
    assert len(sent) == 12
    assert {one["max_tokens"] for one in sent} <= {3, 4, 5}
    starts = {" ".join(one["prompt"].split()[:10]) for one in sent}
    assert len(starts) == 1
    assert len({one["prompt"] for one in sent}) == 12


def test_flags_of_an_open_loop_need_a_rate(run: Run) -> None:
    assert "give --rate too" in refused(run("bench", "http://127.0.0.1:1", "--ttft", "1s"))
    assert "exclude each other" in refused(run("bench", "http://127.0.0.1:1", "--rate", "4/s", "--users", "2"))
