"""Parsers that need little of what their programs depend on: each runs in a process of its own and says what it takes a file for.

`make referees` unpacks the programs and names their folders in variables; `parsers/` has a script for each.
"""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from meshwise.plan.ask import ServeAsk
from meshwise.plan.serve import lookup
from meshwise.plan.serve.search import search
from meshwise.programs.engines import commands
from meshwise.programs.program import Written, programs
from support.launch_layouts import samples

PARSERS = Path(__file__).parent / "parsers"
SERVED: dict[str, dict[str, Any]] = {
    "tp": {"fix": ("tp=8",)},
    "copies": {"fix": ("tp=2", "pp=1", "replicas=4"), "users": 64},
    "fp8 cache": {"kv": "fp8", "fix": ("tp=8",)},
    "fp8": {"model": "llama-3-8b:fp8", "fix": ("tp=4", "replicas=1", "pp=1")},
    "experts": {"model": "gpt-oss-20b", "fix": ("tp=2", "pp=1")},
    "hosts": {"on": "2x8xh100-sxm", "fix": ("tp=8", "pp=2")},
}


def judged(parser: str, variables: tuple[str, ...], cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what a parser takes some cases for; skip where its program is not unpacked."""
    folders = [os.environ.get(name, "") for name in variables]
    if not all(folders):
        pytest.skip(f"{', '.join(variables)} name the folders of the program; 'make referees' sets them")
    command = [sys.executable, "-W", "ignore", str(PARSERS / f"{parser}.py")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    done = subprocess.run(
        command, input=json.dumps(cases), capture_output=True, text=True, env=environment, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def filled(written: Written) -> list[str]:
    """Return the words of a command with a number for each placeholder that counts, and a name for the others."""
    found: list[str] = []
    for word in written.command:
        front, opened, rest = word.partition("${")
        found.append(f"{front}{'10' if rest.startswith(('STEPS', 'TRAIN_ITERS', 'LR')) else 'x'}" if opened else word)
    return found


def laid(program: str, tmp_path: Path) -> tuple[list[dict[str, Any]], list[Any]]:
    """Write every layout that a program does not refuse; return cases for its parser, and the layouts."""
    own, cases, setups = programs()[program], [], []
    assert own.write is not None
    for number, (name, setup) in enumerate(samples(own)):
        written = own.write(setup)
        folder = tmp_path / str(number)
        folder.mkdir()
        for file, text in written.files.items():
            (folder / file).write_text(text)
        words = filled(written)
        cases.append({"name": name, "program": program, "folder": str(folder), "words": words, "filled": True})
        setups.append(setup)
    return cases, setups


def compare(cases: list[dict[str, Any]], setups: list[Any], found: list[dict[str, Any]]) -> None:
    """The parser takes every layout for what it is."""
    for case, setup, read in zip(cases, setups, found, strict=True):
        assert "error" not in read, (case["name"], read["error"])
        assert read == {name: setup.whole(name) for name in read}, case["name"]


@pytest.mark.parametrize(
    ("program", "parser", "variables", "file"),
    [
        ("axolotl", "axolotl_config", ("AXOLOTL",), "axolotl.yaml"),
        ("llama-factory", "llamafactory_arguments", ("LLAMAFACTORY",), "llama_factory.yaml"),
        ("torchtune", "torchtune_config", ("TORCHAO", "TORCHTUNE"), "torchtune.yaml"),
    ],
)
def test_a_configuration_is_taken(program: str, parser: str, variables: tuple[str, ...], file: str, tmp_path: Path) -> None:
    """Not so one with placeholders, or with a misspelt key."""
    cases, setups = laid(program, tmp_path)
    wrong = tmp_path / "wrong"
    wrong.mkdir()
    text = (Path(cases[0]["folder"]) / file).read_text()
    misspelt = text.replace("max_seq_len:", "max_seq_lem:") if program == "torchtune" else f"{text}sequence_lem: 1\n"
    (wrong / file).write_text(misspelt)
    found = judged(parser, variables, [*cases, {**cases[0], "filled": False}, {**cases[0], "folder": str(wrong)}])
    compare(cases, setups, found[:-2])
    assert "error" in found[-2], "placeholders must stop it"
    assert "error" in found[-1], "a misspelt key must stop it"


def test_trl_takes_the_arguments(tmp_path: Path) -> None:
    cases, setups = laid("trainer", tmp_path)
    cases = [{**case, "words": case["words"][1:]} for case in cases]
    found = judged("trl_arguments", ("TRL",), [*cases, {**cases[0], "words": [*cases[0]["words"], "--max_lengths", "1"]}])
    compare(cases, setups, found[:-1])
    assert "error" in found[-1], "a misspelt flag must stop it"


def test_maxtext_takes_the_keys(tmp_path: Path) -> None:
    cases, setups = laid("maxtext", tmp_path)
    cases = [{**case, "words": case["words"][4:]} for case in cases]
    found = judged("maxtext_config", ("MAXTEXT",), [*cases, {**cases[0], "words": [*cases[0]["words"], "max_target_lenght=1"]}])
    compare(cases, setups, found[:-1])
    assert "error" in found[-1], "a misspelt key must stop it"


def served(engine: str, tmp_path: Path, asks: dict[str, dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, int]]]:
    """Return the commands of a server as cases, and what they must mean."""
    cases, meant = [], []
    for name, ask in asks.items():
        usual = {"model": "llama-3-8b:bf16", "on": "8xh100-sxm", "users": 16, "context": 8192, "engine": engine}
        q = lookup.question(ServeAsk(**(usual | ask)))
        layout = search(q).options[0].layout
        for line in commands(q, layout)[engine]:
            words = shlex.split(line, comments=True)
            if words:
                cases.append({"name": name, "program": engine, "folder": str(tmp_path), "words": words, "filled": True})
                meant.append({"tp": layout.tp, "pp": layout.pp, "context": q.work.context})
    return cases, meant


def test_sglang_takes_every_command(tmp_path: Path) -> None:
    cases, meant = served("sglang", tmp_path, SERVED)
    at = [case["words"].index("sglang.launch_server") + 1 for case in cases]
    cases = [
        {**case, "words": [word.replace("$NODE_RANK", "0") for word in case["words"][start:]]}
        for case, start in zip(cases, at, strict=True)
    ]
    found = judged("sglang_arguments", ("SGLANG",), [*cases, {**cases[0], "words": [*cases[0]["words"], "--tpp-size", "2"]}])
    assert found[:-1] == meant, [case["words"] for case in cases]
    assert "error" in found[-1], "a misspelt flag must stop it"


def test_ms_swift_takes_the_arguments(tmp_path: Path) -> None:
    cases, setups = laid("ms-swift", tmp_path)
    cases = [{**case, "words": case["words"][2:]} for case in cases]
    found = judged(
        "swift_arguments", ("MS_SWIFT", "TRL"), [*cases, {**cases[0], "words": [*cases[0]["words"], "--max_lengths", "1"]}]
    )
    compare(cases, setups, found[:-1])
    assert "error" in found[-1], "a misspelt flag must stop it"


def test_mlx_takes_its_server_and_its_adapters(tmp_path: Path) -> None:
    server, _ = served("mlx", tmp_path, {"one": {"on": "m3-ultra"}, "4 bits": {"on": "m3-ultra", "model": "llama-3-8b:mlx-4bit"}})
    cases = [
        {**case, "words": case["words"][1:]} for case in server if case["words"][0] == "mlx_lm.server"
    ]  # not: mlx_lm.convert
    lora = {**cases[0], "program": "mlx-lm", "words": ["--config", "mlx_lora.yaml"]}
    found = judged("mlx_arguments", ("MLX_LM",), [*cases, lora, {**cases[0], "words": [*cases[0]["words"], "--modell", "x"]}])
    assert all("error" not in read for read in found[:-1]), found
    assert "error" in found[-1], "a misspelt flag must stop it"
