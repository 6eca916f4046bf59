"""Texts of a stranger (names of folders, every field of a plan.json) through every program and launcher: the scripts are run with
programs of ours in place of theirs, and nothing of a text is ever executed; every file can still be read by its format's own parser."""

import ast
import configparser
import json
import re
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from meshwise import api
from meshwise.errors import UserError
from meshwise.plan.rl.plan import RolloutPlan
from meshwise.plan.serve.plan import ServePlan
from meshwise.plan.train.plan import TrainPlan
from meshwise.programs import setup as setups
from meshwise.programs.program import Job, Setup, launchers, programs
from meshwise.programs.rl import facts as rollout_facts
from meshwise.programs.serve import setup as serve_setups
from meshwise.programs.write import export

BREAKS = (
    "a\ntouch OWNED\n#b",
    "a\r\ntouch OWNED\r\n",
    "a\u2028touch OWNED\u2028",
    "a\x85touch OWNED\x85- b: [",
    "a\x1b]0;x\x07\x7f",
)
"""Texts with line breaks or control characters, of shells, YAML and terminals."""
PRINTABLE = (
    "a$(touch OWNED)`touch OWNED`", "a';touch OWNED;'", 'a";touch OWNED;"', "$NNODES$(touch OWNED)", "${A:?$(touch OWNED)}",
    "${A:?`touch OWNED`}", "a\\", "a\\\";touch OWNED;'", 'a""" + __import__("os").system("touch OWNED") + r"""',
    "a: [b, {{c}} # &d *e !f %s",
)  # fmt: skip
FRAMEWORKS = {
    "megatron": "megatron", "megatron-bridge": "megatron-bridge", "megatron-deepspeed": "megatron-deepspeed",
    "torchtitan": "torchtitan", "torchtitan-0.2": "torchtitan", "accelerate": "fsdp", "axolotl": "fsdp", "torchtune": "fsdp",
    "trainer": "deepspeed", "deepspeed": "deepspeed", "llama-factory": "deepspeed", "nanotron": "nanotron", "maxtext": "maxtext",
    "meshwise": "meshwise",
}  # fmt: skip
FIX = {
    "deepspeed": ("tp=1", "pp=1", "recompute=none", "mbs=1"),
    "fsdp": ("tp=1", "cp=1", "pp=1", "recompute=full"),
    "maxtext": ("cp=1",),
}
TUNED = {"unsloth": "1xh100-sxm", "mlx-lm": "1xm3-ultra", "ms-swift": "8xh100-sxm", "automodel": "8xh100-sxm"}
"""Machines on which programs for adapters are planned."""
ROLLOUTS = ("verl", "nemo-rl", "openrlhf", "trl")
ENGINES = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "tensorrt-llm", "dynamo": "vllm", "llama.cpp": "llama.cpp",
           "ollama": "ollama", "mlx": "mlx"}  # fmt: skip
WRITTEN = sorted(name for name, program in programs().items() if program.write is not None)
QUICK = ("megatron", "torchtitan-0.2", "unsloth", "verl", "vllm", "llama.cpp")
"""Programs of every kind of file, tried in each run of the tests."""
LAUNCHERS = sorted(launchers())


@cache
def plan_for(program: str) -> TrainPlan | ServePlan | RolloutPlan:
    """Return a plan that a program can write."""
    if program in TUNED:
        return api.plan("llama-3.1-8b", on=TUNED[program], batch="16x2048", framework=program, finetune="lora:16", top=20)
    if program in ROLLOUTS:
        mode = "colocated" if program == "trl" else "split"
        return api.rollouts(
            "qwen2.5-7b", on="2x8xh100-sxm", batch=64, seq=4096, answer="900:3072", objective="grpo", framework=program, mode=mode
        )
    if program in ENGINES:
        on = "1xm3-ultra" if program == "mlx" else "1xh100-sxm"
        return api.serve("llama-3.1-8b", on=on, engine=ENGINES[program])
    framework = FRAMEWORKS[program]
    model = "bloom-7b1" if framework == "megatron-deepspeed" else "llama-3.1-8b"
    fix = FIX.get(program, FIX.get(framework, ()))
    return api.plan(model, on="2x8xh100-sxm", batch="512x2048", framework=framework, fix=fix, top=20)


@cache
def row_for(program: str) -> int:
    """Return the number of the first layout that a program can write."""
    plan = plan_for(program)
    for number in range(1, len(plan.splits if isinstance(plan, RolloutPlan) else plan.choices) + 1):
        try:
            export(plan_for(program), program, row=number)
            return number
        except UserError:
            continue
    raise AssertionError(f"{program} can say no layout of its own plan")


@cache
def setup_for(program: str) -> Setup:
    """Return the facts of the layout that a program can write."""
    plan, row = plan_for(program), row_for(program)
    if isinstance(plan, RolloutPlan):
        return rollout_facts.of_plan(plan, row)
    return serve_setups.of_plan(plan, row) if isinstance(plan, ServePlan) else setups.of_plan(plan, row)


def of_text(program: str, launcher: str, text: str) -> dict[str, str]:
    """Return the files where a text is the model's name, a line of the header, and the job's name."""
    setup = setup_for(program)
    setup = replace(setup, model=text, header=(*setup.header, text), values=_named(setup, text))
    writer = programs()[program].write
    assert writer is not None
    written = writer(setup)
    job = Job(
        name=text, nodes=setup.whole("nodes"), devices_per_node=setup.whole("devices_per_node"), command=written.command,
        starter=written.starter, environment=written.environment, others=written.others, header=setup.header,
        files=written.files, chip=setup.text("chip"),
    )  # fmt: skip
    return {**written.files, **launchers()[launcher].write(job)}


def _named(setup: Setup, text: str) -> Mapping[str, Any]:
    return {**setup.values, "model": text} if "model" in setup.values else setup.values


def test_every_program_that_is_written_is_tried() -> None:
    assert set(WRITTEN) == {*FRAMEWORKS, *TUNED, *ROLLOUTS, *ENGINES}


@pytest.mark.parametrize("program", [pytest.param(one, marks=[] if one in QUICK else pytest.mark.slow) for one in WRITTEN])
def test_no_text_is_executed_and_every_file_is_read_by_its_parser(program: str, tmp_path: Path) -> None:
    for launcher in LAUNCHERS:
        plain = of_text(program, launcher, "plain")
        for number, text in enumerate((*BREAKS, *PRINTABLE)):
            made = of_text(program, launcher, text)
            folder = tmp_path / f"{launcher}-{number}"
            for name, content in made.items():
                assert shape(name, content) == shape(name, plain[name]), (launcher, text, content)
            run_all(made, folder)
            assert not list(folder.rglob("OWNED")), (launcher, text)


@pytest.mark.parametrize("program", ["megatron", "vllm", "llama.cpp"])
def test_a_plan_with_line_breaks_or_control_characters_in_any_text_is_refused(program: str, tmp_path: Path) -> None:
    table = plan_for(program).to_json()
    for path, value in texts(table):
        for text in BREAKS:
            (tmp_path / "plan.json").write_text(json.dumps(changed(table, path, value + text)))
            with pytest.raises(UserError, match=r"line breaks or control characters|a plan for"):
                api.load(tmp_path / "plan.json")


@pytest.mark.parametrize("program", QUICK)
def test_no_field_of_a_plan_is_executed(program: str, tmp_path: Path) -> None:
    plan, row = plan_for(program), row_for(program)
    table = plan.to_json()
    plain = dict(export(plan, program, "torchrun", row).files)
    for path, value in texts(table):
        for number, text in enumerate(PRINTABLE):
            (tmp_path / "plan.json").write_text(json.dumps(changed(table, path, value + text)))
            try:
                made = api.export(tmp_path / "plan.json", to=program, row=row).files
            except UserError:
                break  # no name of anything: refused
            if made == plain:
                break  # a field that no file states
            folder = tmp_path / f"{'.'.join(map(str, path))}-{number}"
            run_all(made, folder)
            assert not list(folder.rglob("OWNED")), (path, text)


def test_a_note_of_several_lines_is_one_in_the_file(tmp_path: Path) -> None:
    plan = plan_for("megatron")
    assert isinstance(plan, TrainPlan)
    loaded = api.load(replace(plan, notes=("of a cluster's file:\n  two lines\n",)).save(tmp_path / "plan.json"))
    assert isinstance(loaded, TrainPlan)
    assert loaded.notes == ("of a cluster's file: two lines",)


def test_a_model_folder_with_a_line_break_in_its_name_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model\ntouch OWNED\n#"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    for name in (str(folder), str(folder / "config.json"), str(folder / "a.gguf")):
        with pytest.raises(UserError, match="line breaks and control characters"):
            api.count(name)


# Fields of a plan.


def texts(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Yield the texts of a JSON value with their places; of a list only those of its first item."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, item in cast(dict[str, Any], value).items():
            yield from texts(item, (*path, key))
    elif isinstance(value, list) and value:
        yield from texts(value[0], (*path, 0))


def changed(table: Any, path: tuple[Any, ...], text: str) -> Any:
    """Return a JSON value with another text in one place."""
    copy = json.loads(json.dumps(table))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = text
    return copy


# Files.


def shape(name: str, text: str) -> object:
    """Return what a file holds beside texts: keys and numbers of settings, statements of Python, words at the head of lines."""
    if name.endswith((".yaml", ".yml")):
        return [_keys(one) for one in yaml.safe_load_all(text)]
    if name.endswith(".toml"):
        return _keys(tomllib.loads(text))
    if name.endswith(".json"):
        return _keys(json.loads(text))
    if name.endswith(".ini"):
        preset = configparser.RawConfigParser()
        preset.read_string(text.replace("version = 1\n", "", 1))
        return [list(preset[section]) for section in preset.sections()]
    if name.endswith(".py"):
        return [type(one).__name__ for one in ast.parse(text).body]
    if name.endswith((".sh", ".sbatch")):
        return None  # run instead
    assert name == "Modelfile", name
    return [line.split()[0] for line in text.splitlines() if line]


def _keys(value: Any) -> object:
    if isinstance(value, dict):
        return {key: _keys(item) for key, item in cast(dict[str, Any], value).items()}
    if isinstance(value, list):
        return [_keys(item) for item in cast(list[Any], value)]
    return "text" if isinstance(value, str) else value


def run_all(made: Mapping[str, str], folder: Path) -> None:
    """Run every script of an export in a folder with programs that do nothing."""
    for number, script in enumerate(one for name, text in made.items() for one in scripts(name, text)):
        place = folder / str(number)
        place.mkdir(parents=True)
        names = re.findall(r"\$\{([A-Z][A-Z0-9_]*):\?", script)
        slurm = {"SLURM_NNODES": "2", "SLURM_JOB_ID": "7", "SLURM_NODEID": "0", "SLURMD_NODENAME": "n", "SLURM_CPUS_ON_NODE": "1"}
        more = {"SLURM_JOB_NODELIST": "n", "NODE_RANK": "0", "MASTER_ADDR": "n", "MASTER_PORT": "1", "NNODES": "2"}
        given = {**dict.fromkeys(names, "x"), **slurm, **more, "PATH": str(stubs(folder.parent))}
        subprocess.run(["/bin/bash", "-c", script], cwd=place, env=given, capture_output=True, timeout=20)


def scripts(name: str, text: str) -> list[str]:
    """Return the scripts that a file holds."""
    if name.endswith((".sh", ".sbatch")):
        return [text]
    if name.endswith(".py"):
        values = [one.value for one in ast.parse(text).body if isinstance(one, ast.Assign)]
        return [one.value for one in values if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    if name.endswith((".yaml", ".yml")):
        return [one for document in yaml.safe_load_all(text) for _, one in texts_of(document) if "set -euo pipefail" in one]
    return []


def texts_of(value: Any) -> Iterator[tuple[tuple[Any, ...], str]]:
    items = cast(dict[Any, Any], value).values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for item in cast(Any, items):
        yield from texts_of(item)
    if isinstance(value, str):
        yield (), value


def stubs(folder: Path) -> Path:
    """Return a folder with programs that do nothing, but srun, which starts its command, and the real touch."""
    path = folder / "stubs"
    if not path.exists():
        path.mkdir()
        for name, body in {"srun": 'while [[ $1 == --* ]]; do shift; done; exec "$@"', "scontrol": "echo n"}.items():
            (path / name).write_text(f"#!/bin/bash\n{body}\n")
        for name in ("torchrun", "python", "meshwise", "vllm", "trtllm-serve", "llama-server", "ollama", "mlx_lm.server", "kubectl",
                     "accelerate", "llamafactory-cli", "cp", "head"):  # fmt: skip
            (path / name).write_text("#!/bin/bash\n:\n")
        for one in path.iterdir():
            one.chmod(0o755)
        for name in ("bash", "touch"):
            (path / name).symlink_to(f"/usr/bin/{name}")
    return path
