"""`meshwise plan --vary`, `--within` and `--cheapest`: the output for people and for scripts, and the errors for mistakes."""

import json
import re
import shlex

import pytest

from support.command import Run, once, refused, rows

BASE = ["plan", "llama-3-8b", "--batch", "1M", "--seq", "4k"]
ON = [*BASE, "--on", "2x8xh100-sxm"]
TRAINED = [*ON, "--tokens", "1T"]


def cells(line: str) -> list[str]:
    """The cells of a line of a table."""
    return re.split(r" {2,}", line.strip())


# Output for people.


def test_a_table_a_chart_the_reasons_and_the_command() -> None:
    done = once(
        "plan", "llama-3-70b", "--on", "h100-sxm", "--batch", "4M", "--seq", "8k", "--tokens", "15T", "--fix", "offload=none",
        "--vary", "nodes=1,8..32",
    )  # fmt: skip
    assert (done.code, done.err) == (0, "")
    _, _, head, *lines = [line for line in done.out.splitlines() if line.strip()]
    assert cells(head) == ["nodes", "layout", "devices", "s/step", "tokens/s", "MFU", "days", "cost"]  # GiB where it is wider
    assert cells(lines[1])[0] == "1"
    assert re.fullmatch(r"does not fit: needs [\d.]+ GiB, only 76.8 are free", cells(lines[1])[1])
    assert [cells(line)[0] for line in lines[2:5]] == ["8", "16", "32"]
    assert "why the layout changes\n16: " in done.out
    assert "network not given: the vendor's InfiniBand NDR" in done.out
    assert "note: days and cost include failures (goodput) and spare nodes" in done.out
    assert "note: price per device-hour: h100-sxm $6.88/h" in done.out
    assert done.out.splitlines()[-1].endswith("--vary nodes=1,8..32")


def test_bars_are_as_long_as_what_they_show() -> None:
    """16 cells for the longest of each column, the others in proportion, to an eighth of a cell."""
    out = once(*TRAINED, "--vary", "nodes=1..8").out
    chart = out[out.rindex("nodes  days") :].splitlines()[1:5]
    eighths = {"█": 8} | {part: i for i, part in enumerate(" ▏▎▍▌▋▊▉") if i}
    columns = list(zip(*(re.findall(r"([█▏▎▍▌▋▊▉]*) \$?([\d.,]+)[k%M]?", line.strip()[1:]) for line in chart), strict=True))
    assert len(columns) == 3  # days, cost, MFU
    for column in columns:
        longest = max(float(number.replace(",", "")) for _, number in column)
        for bar, number in column:
            length = sum(eighths[cell] for cell in bar)
            assert length == pytest.approx(16 * 8 * float(number.replace(",", "")) / longest, abs=1.5)


def test_a_layout_that_wins_at_every_point_is_reported() -> None:
    out = once(*ON, "--fix", "tp=1,pp=1,cp=1,mbs=1,recompute=full", "--vary", "nodes=2,4").out
    assert "The same layout wins at every point." in out


def test_a_chip_without_a_price_has_no_cost_and_says_so() -> None:
    out = once(*TRAINED, "--vary", "chip=h100-sxm,mi325x").out
    assert "note: no list price for mi325x: give one with --price" in out


def test_a_deadline_is_marked() -> None:
    days = [row["wall_days"] for row in rows(once(*TRAINED, "--vary", "nodes=1..8", "--csv").out)]
    limit = f"{float(days[1]) + 0.01:.3f}d"
    lines = once(*TRAINED, "--vary", "nodes=1..8", "--within", limit).out.splitlines()
    marks = [cells(line)[-1] for line in lines[5:9]]
    assert marks == ["no", "yes", "yes", "yes"]
    met = [row["within"] for row in rows(once(*TRAINED, "--vary", "nodes=1..8", "--within", limit, "--csv").out)]
    assert met == ["False", "True", "True", "True"]


def test_a_deadline_on_one_plan_names_the_rows_that_meet_it() -> None:
    days = [float(row["wall_days"]) for row in rows(once(*TRAINED, "--csv").out)]
    out = once(*TRAINED, "--within", f"{days[2] + 1e-4:.5f}d").out
    (rows_said,) = re.findall(r"note: within [^:]+: rows? ([\d, ]+) of 1\d", out)
    assert rows_said.split(", ") == [str(i + 1) for i, value in enumerate(days) if value <= days[2] + 1e-4]
    output = refused(once(*TRAINED, "--within", f"{min(days) - 1e-3:.5f}d"), code=1)
    assert f"the fastest layout on 2x8xh100-sxm takes {min(days):,.1f} days" in output


def test_the_cheapest_is_a_sentence_a_row_per_chip_and_a_command() -> None:
    done = once(*BASE, "--tokens", "100B", "--within", "30d", "--cheapest")
    assert (done.code, done.err) == (0, "")
    sentence = re.search(r"^Cheapest within 30 d: (\S+), (\$[\d.]+k), ([\d.]+) days, dp.*\.$", done.out, re.MULTILINE)
    assert sentence
    assert float(sentence[3]) <= 30
    assert "Chips: GPUs in the catalogue with a rental price" in done.out
    (plan_it,) = re.findall(r"^plan it: meshwise (.*)$", done.out, re.MULTILINE)
    planned = once(*shlex.split(plan_it))
    assert planned.code == 0
    assert sentence[2] in planned.out
    assert f"--on {sentence[1]}" in planned.out


@pytest.mark.parametrize(
    "more",
    [
        ["--vary", "nodes=2,4"],
        ["--vary", "chip=h100-sxm,h200", "--vary", "batch=1M,2M"],
        ["--vary", "link=100GB/s", "--tokens", "1T", "--within", "400.5d"],
        ["--vary", "precision=bf16,fp8", "--link", "123.456GB/s"],
        ["--cheapest", "--tokens", "100B", "--within", "36h", "--at-most", "16 nodes"],
        ["--cheapest", "--tokens", "100B", "--vary", "chip=a100-80gb", "--vary", "nodes=1,2"],
    ],
    ids=" ".join,
)
def test_the_command_that_is_printed_asks_the_same_again(more: list[str]) -> None:
    done = once(*ON, *more)
    assert done.code == 0
    (command,) = re.findall(r"^reproduce: meshwise (.*)$", done.out, re.MULTILINE)
    assert once(*shlex.split(command)) == done


def test_an_option_that_is_varied_need_not_be_given() -> None:
    given = once(*BASE, "--on", "h100-sxm", "--vary", "batch=1M,2M", "--vary", "nodes=2,4", "--csv")
    left_out = once(
        "plan", "llama-3-8b", "--seq", "4k", "--on", "h100-sxm", "--vary", "batch=1M,2M", "--vary", "nodes=2,4", "--csv"
    )
    assert left_out == given
    assert once(*BASE, "--vary", "chip=h100-sxm,h200", "--vary", "nodes=2").code == 0


# Output for scripts.


def test_json_and_csv_have_a_row_per_point() -> None:
    asked = [
        "plan",
        "llama-3-70b",
        "--on",
        "h100-sxm",
        "--batch",
        "4M",
        "--seq",
        "8k",
        "--fix",
        "offload=none",
        "--vary",
        "chip=h100-sxm,h200",
        "--vary",
        "nodes=1,8",
    ]
    table, data = rows(once(*asked, "--csv").out), json.loads(once(*asked, "--json").out)
    assert data["vary"] == ["chip=h100-sxm,h200", "nodes=1,8"]
    assert [(point["chip"], point["nodes"]) for point in data["points"]] == [(c, n) for c in ("h100-sxm", "h200") for n in (1, 8)]
    assert list(data["points"][0]) == ["chip", "nodes", "cluster", "fits", "refusal", "why", "choice"]
    for row, point in zip(table, data["points"], strict=True):
        assert (row["chip"], row["nodes"], row["fits"]) == (point["chip"], str(point["nodes"]), str(point["fits"]))
        if point["choice"] is None:
            assert (row["seconds"], row["refusal"]) == ("", point["refusal"])
        else:
            assert float(row["seconds"]) == point["choice"]["seconds"]
            assert row["layout.tp"] == str(point["choice"]["layout"]["tp"])
    assert [point["fits"] for point in data["points"]] == [False, True, False, True]


def test_the_cheapest_is_marked_in_json_and_csv() -> None:
    asked = [*BASE, "--tokens", "100B", "--within", "30d", "--cheapest", "--at-most", "64 devices"]
    table, data = rows(once(*asked, "--csv").out), json.loads(once(*asked, "--json").out)
    (best,) = [row for row in table if row["cheapest"] == "True"]
    assert float(best["dollars"]) == data["cheapest"]["choice"]["dollars"]
    assert data["cheapest"] in data["points"]
    assert len(table) == len(data["points"])


# Mistakes.


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([*ON, "--vary", "node=8"], 2, "did you mean 'nodes'?"),
        ([*ON, "--vary", "nodes=512..8"], 2, "an empty range"),
        ([*ON, "--vary", "nodes=8", "--vary", "gpus=64"], 2, "both set the number of devices"),
        ([*ON, "--vary", "nodes=8", "--at-most", "4"], 2, "both set the number of devices"),
        ([*ON, "--vary", "nodes=8", "--top", "3"], 2, "--out, --html and --top need a single plan; drop --vary and --cheapest"),
        (
            [*ON, "--vary", "nodes=8", "--out", "plan.json"],
            2,
            "--out, --html and --top need a single plan; drop --vary and --cheapest",
        ),
        ([*BASE, "--on", "8xrtx4090", "--vary", "nodes=1,2"], 2, "no network between them; add one, such as 2x8xrtx4090@10Gbps"),
        ([*BASE, "--vary", "chip=h100-sxm"], 2, "missing --on"),
        (BASE, 2, "missing --on"),
        (["plan", "llama-3-8b", "--on", "h100-sxm", "--vary", "nodes=8"], 2, "missing --batch"),
        ([*ON, "--within", "30d"], 2, "--within needs --tokens"),
        ([*ON, "--cheapest"], 2, "--cheapest needs --tokens"),
        ([*TRAINED, "--within", "30"], 2, "'30' is not a time: it has no unit"),
        ([*TRAINED, "--within", "0d"], 2, "--within '0d': expected more than 0"),
        ([*TRAINED, "--within", "soon"], 2, "'soon' is not a time"),
        ([*ON, "--link", "0GB/s"], 2, "--link '0GB/s': expected more than 0"),
        ([*ON, "--link", "fast"], 2, "'fast' is not a bandwidth"),
        ([*TRAINED, "--vary", "nodes=1,2", "--within", "1h"], 1, "nothing trains within 60 min: the closest is 2x8xh100-sxm"),
        ([*TRAINED, "--cheapest", "--within", "1s"], 1, "nothing trains within 1 s: the closest is"),
        ([*BASE, "--on", "rtx4090", "--vary", "devices=1"], 1, "none of 1 points fits; 1: does not fit"),
    ],
    ids=lambda value: " ".join(value[6:]) if isinstance(value, list) else "",
)
@pytest.mark.parametrize("flag", [[], ["--json"]], ids=["table", "json"])
def test_a_mistake_is_one_line(run: Run, arguments: list[str], code: int, words: str, flag: list[str]) -> None:
    assert words in refused(run(*arguments, *flag), code)
