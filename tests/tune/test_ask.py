"""The question of `tune`: what is wrong with it is said in one line, before anything starts."""

from pathlib import Path
from typing import Any

import pytest

import meshwise
from meshwise.errors import UserError
from meshwise.tune.ask import TuneAsk, parse_options


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"launch": "sbatch train.sh"}, "has neither {script} nor {file}"),
        ({"launch": "sbatch {scrpt}"}, "unknown placeholder {scrpt}; known: {script}, {file}, {folder}, {name}, {run}"),
        ({"log": "kubectl logs {name}"}, "--log requires --launch"),
        ({"device": "cpu"}, "--device requires --own"),
        ({"seeds": 5}, "--seeds requires --replay"),
        ({"options": "compile"}, "is not option=values"),
        ({"options": "compile=no compile=yes"}, "repeats an option"),
        ({"options": "precision=bf16,bf16"}, "repeats an option or a value"),
        ({"steps": 1}, "--steps 1: expected a whole number from 4"),
        ({"timeout": "0.1s"}, "--timeout '0.1s': expected at least 1s"),
        ({"gain": "lots"}, "--gain"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_is_expected(words: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        TuneAsk(what="plan.json", **words)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_braces_of_the_shell_are_no_placeholders() -> None:
    ask = TuneAsk(what="plan.json", launch="sbatch --account ${ACCOUNT} {script} | awk '{print $4}'")
    assert ask.launch.startswith("sbatch")


def test_options_keep_their_order() -> None:
    assert parse_options("compile=no,yes precision=bf16,fp8") == {"compile": ("no", "yes"), "precision": ("bf16", "fp8")}


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    return meshwise.plan("llama-debug", on="1x2xcpu", batch="8x64", framework="meshwise").save(path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({}, "how are runs started? --launch"),
        ({"own": True, "by_hand": True}, "two ways to start runs"),
        ({"own": True, "serve": True}, "is a plan for training"),
        ({"own": True, "options": "speed=fast"}, "--try 'speed': expected one of precision, compile, loss"),
        ({"own": True, "options": "loss=fused"}, "--try loss: meshwise's trainer always computes the loss in chunks"),
        ({"own": True, "options": "compile=maybe"}, "--try compile=maybe: expected no or yes"),
        ({"launch": "bash {script}", "to": "megatrn"}, "did you mean 'megatron'"),
        ({"launch": "bash {script}", "launcher": "slrm"}, "did you mean 'slurm'"),
        ({"launch": "kubectl apply -f {file}"}, "say how to read it: --log"),
    ],
)
def test_a_question_that_cannot_be_tuned_is_refused(plan_file: Path, tmp_path: Path, words: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        meshwise.tune(plan_file, folder=str(tmp_path / "tune"), **words)
    assert message in str(caught.value)


def test_what_is_no_plan_is_refused(plan_file: Path, tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    old.write_text(plan_file.read_text().replace('"format": 6', '"format": 1', 1))
    (tmp_path / "other.json").write_text('{"hello": 1}')
    wrong: dict[str, str] = {}
    for what, message in (
        ("", "missing PLAN"),
        ("none.json", "no such file"),
        (old, "a plan of format 1"),
        (tmp_path / "other.json", "not a plan"),
    ):
        try:
            meshwise.tune(what, own=True, folder=str(tmp_path / "tune"))
        except UserError as error:
            if message in str(error):
                continue
            wrong[str(what)] = str(error)
    assert not wrong
    assert not (tmp_path / "tune").exists()
