"""`meshwise bench URL --trace`: the requests of a trace at their times, with their lengths and shared prefixes."""

import json
import os
import signal
import threading
from pathlib import Path

import pytest

from support.command import Run, flowing, refused
from support.scripted_endpoint import Script, serving

ROWS = ["0,40,6,1 2", "0.1,40,4,1 3", "0.2,30,5,7 8", "0.3,40,6,1 2"]


@pytest.fixture
def trace(tmp_path: Path) -> str:
    file = tmp_path / "trace.csv"
    file.write_text("\n".join(["seconds,prompt,output,blocks", *ROWS]) + "\n")
    return str(file)


def test_prompts_have_the_lengths_and_the_prefixes_of_the_trace(run: Run, trace: str) -> None:
    script = Script(first=0.01, gap=0.001)
    with serving(script.serve) as port:
        done = run("bench", f"http://127.0.0.1:{port}", "--trace", trace, "--patience", "5s", "--json")
    asked = [one for one in script.seen if one.get("max_tokens", 0) > 2]
    prompts = [str(one["prompt"]).split() for one in asked]
    assert [one["max_tokens"] for one in asked] == [6, 4, 5, 6]
    assert [len(words) for words in prompts] == [40, 40, 30, 40]
    assert prompts[0] == prompts[3], "equal blocks are equal texts"
    assert prompts[0] == prompts[1], "40 words lie in the first block of 512, which is the same"
    assert prompts[0][0] != prompts[2][0]
    assert all(one["cache_prompt"] for one in asked)
    found = json.loads(done.out)
    assert found["trace"] == "trace.csv"
    assert [round(row["seconds"], 1) for row in found["requests"]] == [0.0, 0.1, 0.2, 0.3]
    assert all(0.01 <= row["ttft"] <= row["e2e"] for row in found["requests"])


def test_the_simulation_stands_beside_what_was_measured(run: Run, trace: str, tmp_path: Path) -> None:
    plan, table = tmp_path / "plan.json", tmp_path / "rows.csv"
    run("serve", "llama-3.1-8b:fp8", "--on", "h100-sxm", "--prompt", "40", "--output", "6", "--out", str(plan))
    with serving(Script(first=0.05, gap=0.005).serve) as port:
        asked = ["bench", f"http://127.0.0.1:{port}", "--trace", trace, "--plan", str(plan), "--patience", "5s"]
        shown = flowing(run(*asked).out)
        found = json.loads(run(*asked, "--json", "--rows", str(table)).out)
    for words in ("measured", "simulated", "TTFT p95", "request p99", "4 requests sent, 4 answered"):
        assert words in shown
    by_figure = {(row["figure"], row["part"]): row for row in found["compared"]}
    assert by_figure["ttft", "p50"]["measured"] >= 0.05
    assert 0 < by_figure["e2e", "p95"]["low"] <= by_figure["e2e", "p95"]["simulated"] <= by_figure["e2e", "p95"]["high"]
    assert "all requests, with prompts" in table.read_text(), "calibrate reads it as a load"


def test_a_trace_is_bounded_in_requests_time_and_concurrency(run: Run, trace: str) -> None:
    with serving(Script(first=0.3).serve) as port:
        url = f"http://127.0.0.1:{port}"
        few, short, narrow = (
            json.loads(run("bench", url, "--trace", trace, *more, "--patience", "5s", "--json").out)
            for more in (["--requests", "2"], ["--within", "150ms"], ["--at-once", "1"])
        )
    assert [len(one["requests"]) for one in (few, short)] == [2, 2]
    assert len(narrow["requests"]) < 4


def test_a_signal_keeps_what_was_measured(run: Run, trace: str, tmp_path: Path) -> None:
    file = tmp_path / "slow.csv"
    file.write_text("\n".join(["seconds,prompt,output", "0,40,6", "0.1,40,6", "60,40,6"]) + "\n")
    report = tmp_path / "report.json"
    with serving(Script(first=0.01).serve) as port:
        timer = threading.Timer(1.5, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        done = run("bench", f"http://127.0.0.1:{port}", "--trace", str(file), "--patience", "5s", "--out", str(report))
        timer.cancel()
    assert done.code == 130
    assert len(json.loads(report.read_text())["requests"]) == 2


WRONG = {
    "--trace T --rate 2/s": "--rate and --trace exclude each other",
    "--trace T --prefix 50%": "a trace has its own times, lengths and prefixes",
    "--speed 2": "give --trace FILE too",
    "--trace nowhere.csv": "cannot read",
}


@pytest.mark.parametrize("words", WRONG)
def test_flags_that_contradict_are_refused(run: Run, trace: str, words: str) -> None:
    asked = [trace if word == "T" else word for word in words.split()]
    assert WRONG[words] in refused(run("bench", "http://127.0.0.1:9", *asked))
    assert "--trace needs the URL" in refused(run("bench", "model.gguf", "--trace", trace))
