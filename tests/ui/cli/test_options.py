"""Options and help: every field of a question is a flag with its help, help fits a screen, examples work, and shells complete names."""

import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from meshwise import api
from meshwise.audit.ask import AuditAsk
from meshwise.plan.ask import ServeAsk, ShapeAsk, TrainAsk
from meshwise.plan.fields import About, defaults, field_of, flag_of, spec
from meshwise.ui.cli.help import ALL_VERBS, OUTPUT, VERBS
from meshwise.ui.cli.main import app
from meshwise.ui.cli.options import completer
from support.command import once

ASKS = {"plan": [TrainAsk, ShapeAsk], "serve": [ServeAsk], "audit": [AuditAsk]}


@cache
def command(verb: str) -> Any:
    """The command of a verb, as typer made it."""
    group: Any = typer.main.get_command(app)
    return group.get_command(None, verb)


def options(verb: str) -> dict[str, Any]:
    """Its options by flag."""
    return {name: param for param in command(verb).params if param.param_type_name == "option" for name in param.opts}


FIELDS = [
    pytest.param(verb, ask, name, about, id=f"{ask.__name__}.{name}")
    for verb, asks in ASKS.items()
    for ask in asks
    for name, about in spec(ask).items()
]


@pytest.mark.parametrize(("verb", "ask", "name", "about"), FIELDS)
def test_every_field_of_a_question_is_a_flag_with_its_help_group_and_default(
    verb: str, ask: type[Any], name: str, about: About
) -> None:
    if not field_of(ask, name).kw_only:
        (argument,) = [param for param in command(verb).params if param.param_type_name == "argument" and param.name == name]
        assert argument.help.startswith(about.help)
        return
    option = options(verb)[flag_of(name, about)]
    assert option.help.startswith(about.help)
    assert (option.rich_help_panel or "") == about.group
    assert option.default is None  # so that what was not given keeps the default of the question
    value = defaults(ask)[name]
    shown = about.shown or (about.kind.write(value) if value and not isinstance(value, bool) else "")
    assert option.help == about.help + (f" [{shown}]" if shown else "")
    assert about.help[0].isupper() or about.help.startswith(("llama.cpp", "megatron"))
    assert about.help.endswith((".", "?"))


def test_a_field_with_two_flags_has_both() -> None:
    assert options("audit")["--on"] is options("audit")["--gpus"]


# Help.


def help_of(verb: str, flag: str = "--help") -> str:
    done = once(verb, flag, columns=100)
    assert (done.code, done.err) == (0, "")
    return done.out


def test_the_help_of_the_program_names_every_verb_in_a_group_and_fits_a_screen() -> None:
    text = once("--help", columns=100).out
    assert len(text.splitlines()) <= 52
    assert max(map(len, text.splitlines())) <= 100
    for group, verbs in VERBS.items():
        assert f"\n{group}:\n" in text
        assert all(f"\n  {name:<10}  {about.sentence}\n" in text for name, about in verbs.items())
    examples = re.findall(r"^  meshwise (.*)$", text, re.MULTILINE)
    assert len(examples) == 3
    assert all(example.split()[0] in ALL_VERBS for example in examples)
    assert "--install-completion" in text


@pytest.mark.parametrize("verb", ALL_VERBS)
def test_the_help_of_a_verb_fits_a_screen_with_three_examples_that_parse(verb: str) -> None:
    text = help_of(verb)
    assert len(text.splitlines()) <= 52
    assert max(map(len, text.splitlines())) <= 100
    assert text.startswith(f"Usage: meshwise {verb} ")
    assert ALL_VERBS[verb].sentence in " ".join(text.split())
    examples = examples_of(verb)
    assert len(examples) == (2 if verb == "about" else 3)  # it has one flag
    for example in examples:
        program, first, *words = shlex.split(example)
        assert (program, first) == ("meshwise", verb)
        command(verb).make_context(verb, words)  # parses and converts, and runs nothing


def examples_of(verb: str) -> list[str]:
    return [line.strip() for line in help_of(verb).split("Examples:\n")[1].split("\n\n")[0].splitlines()]


@pytest.mark.parametrize("verb", ["plan", "serve", "count", "show", "audit"])
def test_examples_without_files_run(verb: str) -> None:
    ran = 0
    for example in examples_of(verb):
        if not re.search(r"\.(json|log|csv|md|gguf)", example):
            done = once(*shlex.split(example)[1:])
            assert (done.code, done.err) == (0, ""), example
            ran += 1
    assert ran


@pytest.mark.parametrize("verb", ALL_VERBS)
def test_help_all_lists_every_option_with_its_help(verb: str) -> None:
    text, short = help_of(verb, "--help-all"), help_of(verb)
    flowing = " ".join(text.split())
    for flag, option in options(verb).items():
        if getattr(option, "hidden", False):
            continue
        assert re.search(rf"(^|[ ,]){re.escape(flag)}([ ,\n]|$)", text), flag
        assert option.opts[0] in short  # by name at least
        assert " ".join(option.help.split()) in flowing
    assert not re.search("<bool>|<str>|BOOLEAN|INTEGER|None", text + short)
    assert "[default" not in text


@pytest.mark.parametrize("verb", ALL_VERBS)
def test_every_option_that_takes_a_value_says_of_what_kind(verb: str) -> None:
    found = {flag: param.metavar for flag, param in options(verb).items() if not param.is_flag and flag not in ("--help", "-h")}
    assert [flag for flag, metavar in found.items() if not metavar] == []


@pytest.mark.parametrize("verb", ["plan", "serve", "count", "show", "validate"])
def test_json_and_csv_are_output_options(verb: str) -> None:
    assert {flag: options(verb)[flag].rich_help_panel for flag in ("--json", "--csv")} == {"--json": OUTPUT, "--csv": OUTPUT}


def test_a_narrow_terminal_gets_narrow_help() -> None:
    lines = [line for line in once("plan", "--help", columns=70).out.splitlines() if not line.startswith("  meshwise ")]
    assert max(map(len, lines)) <= 70


# Completion.


def complete(words: str, **more: str) -> list[str]:
    """Return the completions that bash gets for the last word."""
    environment = os.environ | {
        "_MESHWISE_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-m", "meshwise"], env=environment | more, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("meshwise pl", ["plan"]),
        ("meshwise plan llama-3-7", ["llama-3-70b"]),
        ("meshwise plan gpt2 --on jean", ["jean-zay"]),
        ("meshwise plan gpt2 --on 2x8xh100-s", ["2x8xh100-sxm"]),
        ("meshwise plan gpt2 --precision fp1", ["fp16"]),
        ("meshwise plan gpt2 --framework mega", ["megatron", "megatron-bridge", "megatron-deepspeed"]),
        ("meshwise serve gpt2 --engine v", ["vllm"]),
        ("meshwise serve gpt2 --per", ["--per-user"]),
        ("meshwise show chips h100-s", ["h100-sxm"]),
        ("meshwise show cl", ["clusters"]),
        ("meshwise audit --gpus 8xh100-s", ["8xh100-sxm"]),
    ],
)
def test_a_shell_completes_verbs_options_and_names(words: str, offered: list[str]) -> None:
    assert complete(words) == offered


@pytest.mark.parametrize("catalogue", ["models", "chips", "clusters", "frameworks", "engines"])
def test_every_name_of_a_catalogue_completes(catalogue: str) -> None:
    names = api.names(catalogue)
    assert len(names) >= 4
    assert [name for name in names if name not in completer(catalogue)(name[:-1])] == []
    assert set(completer(catalogue)("")) >= set(names)


def test_a_users_own_preset_completes(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "my-model.json").write_text("{}")
    assert complete("meshwise count my-", MESHWISE_HOME=str(tmp_path)) == ["my-model"]


def test_completion_is_installed_for_the_program_under_its_name(tmp_path: Path) -> None:
    """Typer asks which shell is among its parents: in a deep tree of processes there may be none, so one starts it."""
    environment = os.environ | {"HOME": str(tmp_path)}
    done = subprocess.run(
        ["bash", "-c", '"$0" -m meshwise --install-completion; exit $?', sys.executable],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "installed" in done.stdout
    script = (tmp_path / ".bash_completions" / "meshwise.sh").read_text()
    assert "_MESHWISE_COMPLETE=complete_bash" in script
    assert "meshwise.sh" in (tmp_path / ".bashrc").read_text()
