"""The verb tune: what it prints for people and for scripts, and one line for every mistake."""

import io
import json
import os
import shlex
from pathlib import Path

import pytest

import meshwise
from support import pretend_cluster
from support.command import meshwise as command
from support.command import rows


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    return meshwise.plan("llama-3-8b", on="1x8xh100-sxm", batch="64x4096", framework="torchtitan").save(path)


@pytest.fixture
def arguments(plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A tuning of two runs on a pretended cluster."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{pretend_cluster.install(tmp_path / 'bin')}:{os.environ['PATH']}")
    monkeypatch.setenv("HF_ASSETS", "assets")
    monkeypatch.setenv("DATASET", "c4")
    return ["tune", str(plan), "--launch", "bash {script}", "--runs", "2", "--gain", "0", "--folder", str(tmp_path / "tune")]


@pytest.mark.slow
def test_a_tuning_is_a_table_the_best_layout_and_what_one_more_run_may_save(arguments: list[str]) -> None:
    done = command(*arguments, columns=80)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    table = lines[next(number for number, line in enumerate(lines) if line.startswith("run  candidate")) :]
    assert [line.split()[0] for line in table[2:4]] == ["1", "2"]
    text = " ".join(done.out.split())
    assert "best: " in text
    assert "90% of further runs expected from" in text
    assert "one more run is expected to save" in text
    assert "stopped: 2 of 2 runs are done" in text
    assert [line for line in table if len(line) > 80] == []


@pytest.mark.slow
def test_a_script_reads_json_or_csv_and_progress_goes_to_standard_error(arguments: list[str]) -> None:
    done = command(*arguments, "--json")
    result = json.loads(done.out)
    assert [run["number"] for run in result["runs"]] == [1, 2]
    assert result["best"]["seconds"] > 0
    assert "run 1/2" in done.err
    table = rows(command(*arguments, "--csv").out)
    assert [float(row["predicted"]) for row in table] == [run["predicted"] for run in result["runs"]]


def test_by_hand_the_answers_are_lines_of_standard_input(plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("4.2s\n"))
    done = command("tune", str(plan), "--by-hand", "--runs", "2", "--gain", "0", "--folder", str(tmp_path / "tune"), "--json")
    assert done.code == 0
    result = json.loads(done.out)
    assert [run["measured"] for run in result["runs"]] == [4.2, None]
    assert result["stopped"] == "run 2 waits for its log: the same command asks for it again"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("tune", "missing PLAN"),
        ("tune none.json --own", "there is no such file"),
        ("tune {plan} --launch sbatch", "has neither {script} nor {file}"),
        ("tune {plan}", "how are runs started?"),
        ("tune {plan} --own", "plan with --framework meshwise"),
        ("tune {plan} --replay bloom_prequel", "--replay takes a table of runs that were measured: drop PLAN"),
        ("tune --replay bloom_prequel --own", "drop --own"),
        ("tune {plan} --launch 'bash {script}' --to vllm", "vLLM serves, and the plan is for training"),
    ],
)
def test_a_mistake_is_one_line(plan: Path, tmp_path: Path, words: str, message: str) -> None:
    given = [str(plan) if word == "{plan}" else word for word in shlex.split(words)]
    done = command(*given, *([] if "--replay" in given else ["--folder", str(tmp_path / "tune")]))
    assert done.code == 2
    assert message in done.err
    assert done.err.count("\n") == 1
