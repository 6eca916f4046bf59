"""What `--json` prints is what its schema says, for every verb; so are the files that people write."""

import json
import os
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jsonschema")

import jsonschema

import schemas
from meshwise.catalogue import files
from meshwise.ui.cli.help import ALL_VERBS, Verbs
from support.command import meshwise

ROOT = Path(__file__).parents[3]
FORMS = {form.name: form for form in schemas.FORMS}
WITHOUT_JSON = {"mcp"}
"""Speaks JSON as it is."""
SERVERS = {"ui", "run"}
"""Print one line of JSON when they listen: {"url": ...}; a run that trains has a form."""
OTHER = {
    "plan": ["plan gpt2 --on 1x2xa100-80gb-sxm --batch 16 --tokens 1B", schemas.FINETUNE],
    "serve": ["serve llama-3.3-70b:q4_k_m --on 4xrtx4060ti-16gb --context 16k", "serve qwen3-8b --on 1xh200 --rate 2/s --ttft 1s@p95"],
    "count": ["count qwen3-30b-a3b"],
    "audit": ["audit tests/fixtures/audit/hf-a.log --on 1xh100-sxm"],
    "check": ["check tests/fixtures/launch/llama-factory.yaml --on 8xa100-80gb-sxm"],
    "validate": ["validate megatron2021_table1"],
    "plan-answers": ["plan llama-3.1-8b --on 8xh100-sxm --objective grpo --batch 64 --seq 4k"],
    "show-chips": ["show chips", "show chips l4"],
    "show-frameworks": ["show frameworks trl"],
}  # fmt: skip
"""Commands that no schema was made from."""


def validator(name: str) -> Any:
    path = files.BUILT_IN / "schemas" / f"{name}.json"
    return jsonschema.Draft202012Validator(json.loads(path.read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the plans that other verbs read."""
    folder, before = tmp_path_factory.mktemp("json"), Path.cwd()
    os.chdir(ROOT)
    for line in schemas.SETUP:
        assert meshwise(*shlex.split(line.format(work=folder))).code == 0
    yield folder
    os.chdir(before)


def printed(line: str, work: Path) -> Any:
    done = meshwise(*shlex.split(line.format(work=work)), "--json")
    assert done.code in (0, 1), done.err
    return json.loads(done.out)


def valid(name: str, line: str, work: Path) -> None:
    fault = next(validator(name).iter_errors(printed(line, work)), None)
    assert fault is None, f"{line}: {fault.json_path}: {fault.message}"


@pytest.mark.parametrize("name", [form.name for form in schemas.FORMS if not form.slow])
def test_a_verb_prints_what_its_schema_says(name: str, work: Path) -> None:
    valid(name, FORMS[name].commands[-1], work)


@pytest.mark.parametrize(("name", "line"), [(name, line) for name, lines in OTHER.items() for line in lines])
def test_so_do_commands_that_no_schema_was_made_from(name: str, line: str, work: Path) -> None:
    valid(name, line, work)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tune-replay", "calibrate"])
def test_a_fit_prints_what_its_schema_says(name: str, work: Path) -> None:
    valid(name, FORMS[name].commands[0], work)


@pytest.mark.slow
def test_a_run_prints_its_row_alone_and_its_progress_as_lines_of_json(work: Path) -> None:
    done = meshwise("run", "llama-debug", "--steps", "2", "--out", str(work / "run"), "--json")
    assert done.code == 0
    assert next(validator("run").iter_errors(json.loads(done.out)), None) is None
    events = [json.loads(line) for line in done.err.splitlines()]
    assert {event["event"] for event in events} == {"line", "progress"}
    assert [event["done"] for event in events if event["event"] == "progress"][-1] == 2


def test_every_verb_prints_json_and_every_form_has_a_schema() -> None:
    verbs = Verbs(name="meshwise")
    options = {name: {flag for param in verbs.get_command(None, name).params for flag in param.opts} for name in ALL_VERBS}
    assert {name for name in ALL_VERBS if "--json" not in options[name]} == WITHOUT_JSON
    described = {name.partition("-")[0] for name in (*FORMS, *schemas.records_by_form())} | {"make-gguf"}
    assert set(ALL_VERBS) - described - WITHOUT_JSON - SERVERS == set()
    kept = {path.stem for path in (files.BUILT_IN / "schemas").glob("*.json")}
    assert kept == {*FORMS, *schemas.records_by_form()}


def test_schemas_of_records_are_those_of_the_code() -> None:
    """Renewed by `python tools/schemas.py`; a key that goes or changes raises VERSION there."""
    for name, (cls, title, toml) in schemas.records_by_form().items():
        assert validator(name).schema == json.loads(json.dumps(schemas.whole(name, cls, title, toml))), name


@pytest.mark.parametrize("kind", ["chip", "cluster", "framework", "engine"])
def test_every_file_of_the_catalogue_is_valid(kind: str) -> None:
    checked = validator(f"file-{kind}")
    found = sorted((files.BUILT_IN / f"{kind}s").glob("*.toml"))
    assert found
    for path in found:
        fault = next(checked.iter_errors(tomllib.loads(path.read_text(encoding="utf-8"))), None)
        assert fault is None, f"{path.name}: {fault.json_path}: {fault.message}"
    assert next(checked.iter_errors({"name": 3, "colour": "red"}), None) is not None
