"""`meshwise plan --params` and `--shape`: the output for people and for scripts, and the errors for mistakes."""

import json
import re
import shlex

import pytest

from support.command import Run, once, refused, rows

ON = ["plan", "--on", "jean-zay:2", "--batch", "256x2048", "--framework", "megatron-deepspeed"]
NEAR = [*ON, "--params", "7B", "--vocab", "32000"]
NAMED = [*ON, "--vocab", "32000", "--shape", "4096x30x32", "--shape", "4096x29x32"]
COLUMNS = ["hidden", "layers", "heads", "head size", "FFW", "params", "s/step", "s per 100B", "MFU", "GiB", "layout"]


def cells(line: str) -> list[str]:
    """The cells of a line of a table."""
    return re.split(r" {2,}", line.strip())


# Output for people.


def test_a_table_the_faults_of_each_shape_a_rule_and_the_command() -> None:
    done = once(*NEAR, "--top", "3")
    assert (done.code, done.err) == (0, "")
    _, _, head, _, *lines = [line for line in done.out.splitlines() if line.strip()]
    assert cells(head) == COLUMNS
    table = [dict(zip(COLUMNS, cells(line), strict=True)) for line in lines[:3]]
    per = [float(row["s per 100B"]) for row in table]
    assert per == sorted(per)
    for row in table:
        assert 6.8 < float(row["params"].removesuffix("B")) < 7.2
        assert int(row["hidden"]) == int(row["heads"]) * int(row["head size"])
        assert float(row["s/step"]) / float(row["params"].removesuffix("B")) * 100 == pytest.approx(
            float(row["s per 100B"]), rel=1e-2
        )
    assert lines[3] == "faults of each shape, with their cost in percent of its seconds per parameter"
    assert [line.split(":")[0] for line in lines if re.match(r"\d+x\d+x\d+:", line)] == [
        f"{row['hidden']}x{row['layers']}x{row['heads']}" for row in table
    ]
    assert re.search(r"^[\d,]+ pairs of shape and layout searched, over [\d,]+ shapes\.$", done.out, re.MULTILINE)
    assert "The 20 fastest have heads of " in done.out
    assert done.out.splitlines()[-1].startswith("reproduce: meshwise plan --on jean-zay:2 ")


def test_the_command_asks_the_same_again() -> None:
    for arguments in ([*NEAR, "--top", "2"], NAMED, [*ON, "--shape", "4096x32x32", "--like", "llama-3-8b", "--fix", "tp=2"]):
        out = once(*arguments).out
        command = shlex.split(out.splitlines()[-1].removeprefix("reproduce: meshwise "))
        assert once(*command).out == out


def test_shapes_that_are_named_are_shown_as_they_are_named() -> None:
    done = once(*NAMED, "--fix", "pp=4,tp=2")
    assert done.code == 0
    lines = [line for line in done.out.splitlines() if line.strip()]
    assert [cells(line)[:3] for line in lines[4:6]] == [["4096", "30", "32"], ["4096", "29", "32"]]
    assert "4096x29x32: " in done.out
    assert "fastest have" not in done.out


def test_a_named_shape_that_fits_nowhere_is_shown_with_the_reason() -> None:
    done = once(*ON, "--shape", "4096x30x32", "--shape", "65536x90x512")
    assert done.code == 0
    assert [cells(line)[-1] for line in done.out.splitlines() if line.split()[:3] == ["65536", "90", "512"]] == ["does not fit"]
    assert "65536x90x512: 65536x90x512 does not fit on Jean Zay, A100 partition: the smallest of" in " ".join(done.out.split())


# Output for scripts.


def test_json_has_the_keys_that_scripts_read() -> None:
    done = once(*NEAR, "--top", "4", "--json")
    found = json.loads(done.out)
    assert set(found) == {"candidates", "shapes", "rejected", "rows"}
    assert found["candidates"] > found["shapes"] > 100
    assert len(found["rows"]) == 4
    for row in found["rows"]:
        assert set(row) == {"hidden", "layers", "heads", "kv_heads", "ffn", "params", "seconds_per_parameter", "choice", "faults"}
        assert row["choice"]["seconds"] / row["params"] == pytest.approx(row["seconds_per_parameter"])
        assert all(set(fault) == {"words", "cost"} for fault in row["faults"])


def test_json_of_a_shape_that_fits_nowhere_has_no_numbers() -> None:
    found = json.loads(once(*ON, "--shape", "4096x30x32", "--shape", "65536x90x512", "--json").out)
    assert found["rows"][1]["choice"] is None
    assert found["rows"][1]["seconds_per_parameter"] is None
    assert "Infinity" not in once(*ON, "--shape", "4096x30x32", "--shape", "65536x90x512", "--json").out


def test_csv_has_a_row_per_shape() -> None:
    found = rows(once(*NAMED, "--csv").out)
    assert [row["layers"] for row in found] == ["30", "29"]
    assert all(float(row["choice.seconds"]) > 0 for row in found)
    assert all("[" not in row["faults"] for row in found)
    assert "nothing" not in found[0]["faults"]


def test_a_model_and_its_shape_are_evaluated_alike() -> None:
    """BLOOM 7B1 by name, and as 4096x30x32."""
    named = json.loads(once("plan", "bloom-7b1", *ON[1:], "--json").out)
    shaped = json.loads(once(*ON, "--vocab", "250880", "--shape", "4096x30x32", "--json").out)
    assert shaped["rows"][0]["choice"]["seconds"] == pytest.approx(named["choices"][0]["seconds"], rel=1e-9)
    assert shaped["rows"][0]["choice"]["layout"] == named["choices"][0]["layout"]


# Mistakes.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--params", "20M", "--vocab", "250880"], "no shape like bloom-176b has 2e+07 parameters"),
        (["--params", "0"], "expected a million to ten trillion parameters"),
        (["--params", "-7B"], "-7B"),
        (["--params", "1e15"], "expected a million to ten trillion parameters"),
        (["--params", "nan"], "nan"),
        (["--params", "inf"], "inf"),
        (["--params", "many"], "many"),
        (["--params", "7B", "--vocab", "0"], "--vocab '0': expected a whole number from 1 to 16,777,216"),
        (["--params", "7B", "--vocab", "1e12"], "--vocab '1e12': expected a whole number from 1 to 16,777,216"),
        (["--params", "7B", "--vocab", "words"], "words"),
        (["--params", "7B", "--like", "mixtral-8x7b"], "--like takes a dense model whose layers are all alike"),
        (["--params", "7B", "--like", "deepseek-v3"], "--like takes a dense model whose layers are all alike"),
        (["--params", "7B", "--like", "gemma-2-2b"], "--like takes a dense model whose layers are all alike"),
        (["--params", "7B", "--like", "lama-3-70b"], "did you mean 'llama-3-70b'"),
        (["bloom-176b", "--params", "7B"], "a MODEL has its own shape: drop it with --params and --shape"),
        (["bloom-176b", "--shape", "4096x30x32"], "a MODEL has its own shape"),
        (["bloom-176b", "--vocab", "1000"], "a MODEL has its own shape"),
        (["bloom-176b", "--like", "llama-3-8b"], "a MODEL has its own shape"),
        ([], "missing MODEL"),
        (["--shape", "4096x30"], "'4096x30' is not a shape"),
        (["--shape", "4096x30x31"], "31 heads do not divide 4096"),
        (["--shape", "4096x30x32", "--shape", ""], "'' is not a shape"),
        (["--params", "7B", "--cheapest", "--tokens", "1T"], "plan on one cluster: drop --vary, --cheapest, --out and --html"),
        (["--params", "7B", "--vary", "nodes=1,2"], "plan on one cluster: drop --vary, --cheapest, --out and --html"),
        (["--params", "7B", "--out", "plan.json"], "plan on one cluster: drop --vary, --cheapest, --out and --html"),
        (["--params", "7B", "--at-most", "2 nodes"], "plan on one cluster: drop --within and --at-most"),
        (["--params", "7B", "--within", "30d", "--tokens", "1T"], "plan on one cluster: drop --within and --at-most"),
        (["--params", "7B", "--fix", "tp=7"], "none divides the 16 devices"),
        (["--params", "7B", "--fix", "depth=7"], "depth"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments: list[str], message: str, run: Run) -> None:
    assert message in refused(run(*ON, *arguments))


def test_a_cluster_that_no_shape_fits_is_an_answer(run: Run) -> None:
    output = refused(run("plan", "--on", "1xrtx4090", "--batch", "16x2048", "--params", "70B"), 1)
    assert output == "meshwise: no shape fits on 1xrtx4090: the weights alone take 130 GiB, but its devices (1) have 24\n"
    output = refused(run("plan", "--on", "1xrtx4090", "--batch", "16x2048", "--params", "7B"), 1)
    assert re.match(r"meshwise: no shape fits on 1xrtx4090: \d+ shapes tried, [\d,]+ layouts\n", output)


def test_params_and_a_shape_are_two_questions(run: Run) -> None:
    output = refused(run(*ON, "--params", "7B", "--shape", "4096x30x32"))
    assert "--params searches shapes and --shape names them: give only one" in output
