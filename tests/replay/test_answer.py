"""`meshwise replay`: a trace through a plan, with percentiles over time, goodput, cost and intervals."""

import json
from pathlib import Path

import pytest

import meshwise as mw
from meshwise.errors import UserError
from support.command import Run, flowing, meshwise, refused, rows

PLAN = (
    "llama-3.1-8b:fp8",
    "--on",
    "2xh100-sxm",
    "--rate",
    "4/s",
    "--prompt",
    "1k",
    "--output",
    "64",
    "--fix",
    "cards=1,replicas=2",
)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two minutes of steady traffic, half of whose prompts begin alike."""
    file = tmp_path_factory.mktemp("replay") / "traffic.csv"
    lines = [f"{i * 0.2:.1f},{1000 + 7 * (i % 50)},{40 + i % 30},{0 if i % 2 else i + 1} {-i - 1}" for i in range(600)]
    file.write_text("\n".join(["seconds,prompt,output,blocks", *lines]) + "\n")
    return str(file)


def test_a_plan_is_replayed_with_everything_that_was_asked_for(run: Run, trace: str, tmp_path: Path) -> None:
    plan, picture, page = tmp_path / "plan.json", tmp_path / "day.svg", tmp_path / "day.html"
    run("serve", *PLAN, "--out", str(plan))
    done = run("replay", str(plan), "--trace", trace, "--ttft", "1s@p95", "--svg", str(picture), "--html", str(page))
    text = flowing(done.out)
    assert done.code == 0
    for words in ("2 copies", "600 requests", "TTFT", "per token", "holds", "Goodput: 100.0%", "Cache:", "device-hours, $", "kWh",
                  "where the time of requests goes", "requests/s", f"reproduce: meshwise replay {plan}"):  # fmt: skip
        assert words in text
    assert picture.read_text().count("<path") > 10
    assert "TTFT" in page.read_text()
    answer = json.loads(run("replay", str(plan), "--trace", trace, "--ttft", "1s@p95", "--json").out)
    figures, low, high = (answer[name] for name in ("figures", "low", "high"))
    assert low["ttft"]["p50"] < figures["ttft"]["p50"] < high["ttft"]["p50"]
    assert (figures["requests"], figures["holds"], len(answer["slices"])) == (600, True, 60)
    assert figures["hits"] == pytest.approx(0.5 * 512 / 1170, rel=0.1)
    assert sum(figures["shares"].values()) == pytest.approx(1)
    assert figures["device_hours"] == pytest.approx(2 * figures["seconds"] / 3600)
    table = rows(run("replay", str(plan), "--trace", trace, "--csv").out)
    assert len(table) == 60
    assert float(table[3]["rate"]) == pytest.approx(5, rel=0.2)


def test_the_library_takes_plans_and_rows(trace: str) -> None:
    plan = mw.serve("llama-3.1-8b:fp8", on="h100-sxm", rate="2/s", prompt="1k", output=64)
    found = mw.replay(plan, trace=[(0.0, 1000, 20), (1.0, 1000, 20)])
    again = mw.replay("llama-3.1-8b:fp8", on="h100-sxm", trace=[(0.0, 1000, 20), (1.0, 1000, 20)])
    assert found.figures.requests == again.figures.requests == 2
    assert found.figures.ttft.p50 == pytest.approx(again.figures.ttft.p50, rel=0.01)
    assert mw.replay(plan, trace=trace, speed=2, window="..60s").figures.requests == 300


def test_targets_that_do_not_hold_end_with_exit_code_1(run: Run, trace: str) -> None:
    done = run("replay", "llama-3.1-8b:fp8", "--on", "h100-sxm", "--trace", trace, "--ttft", "1ms@p95")
    assert done.code == 1
    assert "missed" in done.out
    assert "Goodput: 0.0%" in done.out


def test_made_traffic_needs_no_file(run: Run) -> None:
    asked = ["replay", "llama-3.1-8b:fp8", "--on", "h100-sxm", "--make", "agent", "--rate", "1/s", "--hours", "0.1", "--json"]
    first, again = (json.loads(run(*asked).out) for _ in range(2))
    assert first == again
    assert first["figures"]["hits"] > 0.5
    off = json.loads(run(*asked, "--no-prefix-cache").out)
    assert off["figures"]["hits"] == 0
    assert off["figures"]["ttft"]["p50"] > first["figures"]["ttft"]["p50"]


def test_the_cheapest_policy_holds_the_targets(run: Run, trace: str) -> None:
    asked = [
        "replay",
        "llama-3.1-8b:fp8",
        "--on",
        "h100-sxm",
        "--trace",
        trace,
        "--speed",
        "40",
        "--ttft",
        "300ms@p95",
        "--cheapest",
    ]
    found = json.loads(run(*asked, "--start-up", "5s", "--json").out)
    best = found["variants"][found["best"]]["figures"]
    holding = [one["figures"] for one in found["variants"] if one["figures"]["holds"]]
    assert best["dollars"] == min(one["dollars"] for one in holding)
    assert best["ttft"]["p95"] <= 0.3
    assert any(not one["figures"]["holds"] for one in found["variants"])
    assert "Least money" in run(*asked).out
    impossible = run(*[word.replace("300ms", "1ms") for word in asked], "--copies", "1..2")
    assert impossible.code == 1
    assert "Nothing that was tried holds the targets" in impossible.out


def test_what_ifs_stand_beside_the_deployment(run: Run, trace: str) -> None:
    asked = ["replay", "llama-3.1-8b", "--on", "2xh100-sxm", "--trace", trace, "--fix", "cards=1,replicas=2", "--what-if"]
    done = meshwise(*asked, "--vary", "chip=h200", columns=160)
    for words in ("as it is", "one copy fewer", "twice the copies", "router prefix", "prefix cache off", "fp8 weights", "chip h200",
                  "tokens a pass", "--what-if --vary chip=h200"):  # fmt: skip
        assert words in done.out
    found = {one["name"]: one["figures"] for one in json.loads(run(*asked, "--json").out)["variants"]}
    assert found["fp8 weights"]["tpot"]["p50"] < found["as it is"]["tpot"]["p50"]
    assert found["twice the copies"]["dollars"] == pytest.approx(2 * found["as it is"]["dollars"], rel=0.01)
    assert found["prefix cache off"]["hits"] == 0


def test_a_trace_is_shown(run: Run, trace: str) -> None:
    text = run("show", "trace", trace).out
    for words in ("600 requests", "5.01/s on average", "Prompts:", "Outputs:", "endless", "A cache of"):
        assert words in text
    assert json.loads(run("show", "trace", trace, "--json").out)["requests"] == 600
    assert "row 3" in refused(run("show", "trace", _bad(Path(trace).parent)))
    assert "missing FILE" in refused(run("show", "trace"))
    assert "unknown trace" in refused(run("show", "trace", "nowhere"))


def _bad(folder: Path) -> str:
    file = folder / "bad.csv"
    file.write_text("seconds,prompt,output\n5,1,1\n4,1,1\n")
    return str(file)


def test_requests_that_are_too_long_are_counted(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "long.csv"
    file.write_text("seconds,prompt,output\n0,100,10\n1,5000,10\n")
    done = run("replay", "llama-3.1-8b:fp8", "--on", "h100-sxm", "--context", "1k", "--trace", str(file))
    assert "1 of 2 requests are longer than the context of 1,024 and rejected" in flowing(done.out)


WRONG = {
    "": "--trace FILE or --make KIND",
    "--trace x.csv --make agent": "--trace FILE or --make KIND",
    "--trace x.csv --rate 2/s": "--rate belongs to --make",
    "--trace x.csv --users 4": "--scale-users",
    "--make agent": "--rate and --hours",
    "--make poem --rate 1/s --hours 1": "expected one of conversation",
    "--trace azure-code-2023 --autoscale queue:4": "--autoscale needs --copies",
    "--trace azure-code-2023 --autoscale mood:4 --copies 1..2": "expected rate:2",
    "--trace azure-code-2023 --autoscale kv:200% --copies 1..2": "expected rate:2",
    "--trace azure-code-2023 --copies 1..2": "needs --autoscale",
    "--trace azure-code-2023 --copies 9..2": "expected a number of copies",
    "--trace azure-code-2023 --speed 0": "expected a number from",
    "--trace azure-code-2023 --cheapest": "--cheapest needs a target",
    "--trace azure-code-2023 --window 5h..6h": "has no requests",
    "--trace nowhere.csv": "cannot read",
}


@pytest.mark.parametrize("words", WRONG)
def test_what_makes_no_sense_is_refused_in_one_line(run: Run, words: str) -> None:
    assert WRONG[words] in refused(run("replay", "llama-3.1-8b:fp8", "--on", "h100-sxm", *words.split()))


def test_a_plan_has_its_own_devices(run: Run, trace: str, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    run("serve", *PLAN, "--out", str(plan))
    assert "--on does not apply" in refused(run("replay", str(plan), "--on", "h200", "--trace", trace))
    with pytest.raises(UserError, match="missing PLAN or MODEL"):
        mw.replay(trace=trace)
