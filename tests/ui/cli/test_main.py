"""The program itself, `count` and `show`: the output for people and for scripts, and the errors for mistakes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from meshwise.version import VERSION
from support.command import Done, Run, meshwise, once, refused, rows
from support.gguf_files import LLAMA
from support.small_configs import small

GOLDEN = Path(__file__).parents[2] / "golden"
THREE = ["llama-3-8b", "mixtral-8x7b", "ttt-linear-125m"]


def line(table: str, name: str) -> str:
    """The cells of the row of a table that begins with `name`."""
    (found,) = [text.strip() for text in table.splitlines() if text.strip().startswith(name)]
    return found.removeprefix(name).strip()


@pytest.mark.parametrize(
    ("arguments", "golden"), [(["llama-3-70b"], "count-llama-3-70b.txt"), (THREE, "count-three.txt")], ids=["one", "three"]
)
def test_the_table_of_count_is_the_one_people_know(arguments: list[str], golden: str) -> None:
    """When the table is meant to change:

    meshwise count llama-3-70b > tests/golden/count-llama-3-70b.txt
    meshwise count llama-3-8b mixtral-8x7b ttt-linear-125m > tests/golden/count-three.txt
    """
    assert once("count", *arguments) == Done(0, (GOLDEN / golden).read_text(encoding="utf-8"), "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["count", "lama-3-70b"], "unknown model 'lama-3-70b'; did you mean 'llama-3-70b'?"),
        (["coutn", "gpt2"], "unknown verb 'coutn'; did you mean 'count'? (meshwise --help)"),
        (["wash", "gpt2"], "unknown verb 'wash' (meshwise --help)"),
        (["count", "gpt2", "--sqe", "4k"], "unknown option --sqe; did you mean '--seq'? (meshwise count --help)"),
        (["plan", "gpt2", "--btach", "64"], "unknown option --btach; did you mean '--batch'? (meshwise plan --help)"),
        (["plan", "gpt2", "--foo", "64"], "unknown option --foo (meshwise plan --help)"),
        (["plan", "gpt2", "-x"], "unknown option -x (meshwise plan --help)"),
        (["calibrate", "bloom_prequel", "--foo"], "unknown option --foo (meshwise calibrate --help)"),
        (["serve", "gpt2", "--batch", "64"], "unknown option --batch; 'meshwise plan' has it (meshwise serve --help)"),
        (["plan", "gpt2", "--users", "4"], "unknown option --users; 'meshwise serve' has it (meshwise plan --help)"),
        (["plan", "gpt2", "--tune", "lora:8"], "unknown option --tune; did you mean '--finetune'? (meshwise plan --help)"),
        (["plan", "gpt2", "--serve"], "unknown option --serve; it is a verb: 'meshwise serve' (meshwise plan --help)"),
        (["--nope"], "unknown option --nope (meshwise --help)"),
        (["--versoin"], "unknown option --versoin; did you mean '--version'? (meshwise --help)"),
        (["count", "gpt2", "--seq", "4q"], "'4q' is not a length in tokens: unknown unit 'q'"),
        (["count", "gpt2", "--seq", "0"], "'0' is not a sequence length"),
        (["count", "gpt2", "--seq", "1.5"], "'1.5' is not a sequence length"),
        (["count", "gpt2", "--seq", "-4"], "must be finite and not negative"),
        (["count", "gpt2", "--seq"], "--seq needs a value (meshwise count --help)"),
        (["count", "gpt2", "--tokens", "15X"], "'15X' is not a count: unknown unit 'X'"),
        (["count", "gpt2", "--tokens", "15GB"], "'15GB' is not a count but a size in bytes"),
        (["count", "gpt2", "--tokens", "1e300", "--json"], "too many tokens to train on"),
        (["count"], "missing MODEL..."),
        (["plan", "gpt2", "gpt2-xl"], "unexpected extra argument"),
        (["show"], "missing chips|clusters|models|frameworks"),
        (["show", "chipz"], "there is no catalogue 'chipz'; did you mean 'chips'?"),
        (["show", "models", "gtp2"], "unknown model 'gtp2'; did you mean 'gpt2'?"),
        (["show", "chips", "h100x"], "unknown chip 'h100x'; did you mean"),
        (["show", "clusters", "8xh100x"], "h100x"),
        (["count", "gpt2", "nowhere.gguf"], "cannot read 'nowhere.gguf': no such file"),
        (["count", "gpt2", "nowhere.json"], "cannot read 'nowhere.json'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_on_standard_error_and_exit_code_2(run: Run, arguments: list[str], words: str) -> None:
    assert words in refused(run(*arguments))


def test_a_users_broken_chip_is_named(run: Run, home: Path) -> None:
    (home / "chips" / "mine.toml").write_text("memory = 80GB")
    assert "mine.toml: not valid TOML" in refused(run("show", "chips"))


def test_json_and_csv_of_count_agree() -> None:
    tallies: list[dict[str, Any]] = json.loads(once("count", *THREE, "--json").out)
    lines = rows(once("count", *THREE, "--csv").out)
    assert [tally["model"] for tally in tallies] == [row["model"] for row in lines] == THREE
    for tally, row in zip(tallies, lines, strict=True):
        assert row["parameters.total"] == str(tally["parameters"]["total"])
        assert float(row["training_flops.per_token"]) == tally["training_flops"]["per_token"]
        assert {key: int(row[f"hyperparameters.{key}"]) for key in tally["hyperparameters"]} == tally["hyperparameters"]


@pytest.mark.parametrize("catalogue", ["chips", "clusters", "models"])
def test_json_and_csv_of_show_agree(catalogue: str) -> None:
    entries: list[dict[str, Any]] = json.loads(once("show", catalogue, "--json").out)
    lines = rows(once("show", catalogue, "--csv").out)
    key = catalogue.removesuffix("s")
    assert [entry[key] for entry in entries] == [row[key] for row in lines]
    for entry, row in zip(entries, lines, strict=True):
        plain = {name: str(value) for name, value in entry.items() if isinstance(value, str | int | float)}
        assert {name: row[name] for name in plain} == plain


@pytest.mark.parametrize(("catalogue", "name"), [("models", "Llama3 70B"), ("chips", "h100-sxm"), ("clusters", "2x8xh100-sxm")])
def test_one_entry_is_shown_as_a_table_json_or_csv(catalogue: str, name: str) -> None:
    table, as_json, as_csv = (once("show", catalogue, name, *flag) for flag in ([], ["--json"], ["--csv"]))
    key = catalogue.removesuffix("s")
    (row,) = rows(as_csv.out)
    assert json.loads(as_json.out)[key] == row[key]
    assert (table.code, as_json.code, as_csv.code) == (0, 0, 0)
    assert row[key] in table.out


def test_part_of_a_name_lists_every_entry_that_has_it() -> None:
    found = [row["model"] for row in rows(once("show", "models", "qwen3", "--csv").out)]
    every = [row["model"] for row in rows(once("show", "models", "--csv").out)]
    assert len(found) > 1
    assert found == [name for name in every if "qwen3" in name]
    assert all(name in once("show", "models", "qwen3").out for name in found)


def test_a_longer_sequence_changes_attention_and_the_cache_alone() -> None:
    short, long = (json.loads(once("count", "llama-3-70b", "--seq", seq, "--json").out)[0] for seq in ("4k", "128k"))
    assert (short["training_flops"]["seq"], long["training_flops"]["seq"]) == (4096, 131072)
    assert long["cache"]["kv_bytes"] == 32 * short["cache"]["kv_bytes"]
    assert long["training_flops"]["per_token_attention"] > 31 * short["training_flops"]["per_token_attention"]
    for kept in ("parameters", "weight_bytes", "hyperparameters", "training_bytes"):
        assert long[kept] == short[kept]


def test_more_tokens_change_the_totals_alone() -> None:
    few, many = (json.loads(once("count", "gpt2", "--tokens", tokens, "--json").out)[0] for tokens in ("1T", "2T tokens"))
    assert many["training_flops"]["total"] == 2 * few["training_flops"]["total"]
    assert many["training_flops"]["per_token"] == few["training_flops"]["per_token"]
    assert many["cache"] == few["cache"]


def test_several_models_stand_side_by_side() -> None:
    table = once("count", "gpt2", "gpt2-xl").out
    assert "gpt2" in table.splitlines()[1]
    assert line(table, "layers").split() == ["12", "48"]
    assert line(table, "total").split()[::2] == ["124,439,808", "1,557,611,200"]  # as published


def test_a_mixture_shows_how_much_of_it_is_active() -> None:
    shown = once("count", "mixtral-8x7b").out
    assert line(shown, "active per token").startswith("12,748,853,248")
    assert line(shown, "with the embedding").startswith("12,879,925,248")
    assert "active per token" not in once("count", "llama-3-8b").out


@pytest.mark.parametrize("name", ["ttt-linear-125m", "mamba2-130m"])
def test_a_recurrent_model_shows_its_state_and_no_kv_cache(name: str) -> None:
    table = once("count", name).out
    assert line(table, "state, any length")
    assert "KV per token" not in table
    assert "state, any length" not in once("count", "gpt2").out


def test_a_gguf_file_shows_its_own_bytes(run: Run, tmp_path: Path) -> None:
    path = LLAMA.write(tmp_path / "tiny.gguf")
    done = run("count", str(path), "--json")
    assert json.loads(done.out)[0]["weight_bytes"]["file"] == 4 * LLAMA.elements
    assert "file" in run("count", str(path)).out


def test_notes_stand_below_the_table_whatever_they_hold(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "m[red]:x:" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"text_config": small("llama"), "[/b]_config": {}}))
    done = run("count", str(path))
    assert done.code == 0
    assert done.out.splitlines()[-1] == "m[red]:x:: only the language model is counted, not [/b]_config"


def test_a_users_broken_preset_does_not_spoil_the_list(run: Run, home: Path) -> None:
    (home / "models" / "broken.json").write_text('{"model_type": "[/x]"}')
    done = run("show", "models")
    assert done.code == 0
    assert "model_type '[/x]'" in " ".join(done.out.split())


def test_tiers_of_a_cluster_are_shown_with_the_bandwidth_that_leaves_them(run: Run, tmp_path: Path) -> None:
    done = run("show", "clusters", "2x(4x8xh100-sxm)@800Gbps,20ms")
    assert line(done.out, "out of 4 nodes") == "800Gbps,20ms, 100 GB/s, 20 ms"
    path = tmp_path / "rig.toml"
    path.write_text(
        'name = "Rig"\nnodes = 4\nchips = "8xh100-sxm"\n[network]\nname = "IB"\nbandwidth = "100GB/s"\n'
        '[[tiers]]\nname = "leaf"\nnodes = 2\noversubscription = 2\n'
    )
    assert line(run("show", "clusters", str(path)).out, "out of 2 nodes") == "leaf, 100 GB/s, 2 times oversubscribed"


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["count", "--help"], ["show", "-h"]], ids=" ".join)
def test_help_is_printed(arguments: list[str]) -> None:
    done = once(*arguments)
    assert (done.code, done.err) == (0, "")
    assert "Usage: meshwise" in done.out


def test_the_version_is_printed_with_the_commit_and_the_day_of_the_data() -> None:
    done = once("--version")
    assert (done.code, done.err) == (0, "")
    assert re.fullmatch(rf"meshwise {re.escape(VERSION)} \(commit (\w+), data of ([\d-]+|unknown)\)\n", done.out)


def test_about_says_what_is_installed_and_where_data_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "chips").mkdir()
    (tmp_path / "chips" / "mine.toml").write_text("", encoding="utf-8")
    monkeypatch.setenv("MESHWISE_HOME", str(tmp_path))
    done = meshwise("about")
    assert (done.code, done.err) == (0, "")
    assert f"{tmp_path} (1 files: chips/mine.toml)" in done.out
    assert VERSION in done.out


def test_a_skill_is_written_with_examples_and_without_the_marks_of_cog(tmp_path: Path) -> None:
    assert meshwise("skill", "--out", str(tmp_path)).code == 0
    text = (tmp_path / "meshwise" / "SKILL.md").read_text(encoding="utf-8")
    assert text.startswith("---\nname: meshwise\n")
    assert "reproduce: meshwise plan" in text
    assert "[[[" not in text


# Checks that need a process of its own.


def shell(script: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """A shell script in which $MESHWISE is the command."""
    command = f"{sys.executable} -m meshwise"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"} | settings
    return subprocess.run(
        ["bash", "-c", script.replace("$MESHWISE", command)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("arguments", ["count gpt2", "count gpt2 --json", "--version", "show models --csv", "show chips"])
def test_a_reader_that_leaves_early_is_no_error_to_print(arguments: str) -> None:
    done = shell(f"$MESHWISE {arguments} | true")
    assert (done.stdout, done.stderr) == ("", "")


def test_head_gets_its_lines() -> None:
    done = shell("$MESHWISE show models --json | head -1")
    assert (done.stdout, done.stderr) == ("[\n", "")


def test_the_exit_code_reaches_the_shell() -> None:
    assert shell("$MESHWISE count lama-3-70b").returncode == 2
    assert shell("$MESHWISE count gpt2").returncode == 0


def test_a_name_that_is_no_text_is_still_one_line() -> None:
    done = shell(r"$MESHWISE count $'caf\xe9'")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_python_m_meshwise_is_the_program() -> None:
    done = shell("$MESHWISE --version")
    assert (done.returncode, done.stdout.split()[:2], done.stderr) == (0, ["meshwise", VERSION], "")
    assert shell("$MESHWISE --help").stdout.startswith("Usage: meshwise VERB")


HEAVY = ("torch", "transformers", "numpy", "scipy", "gguf", "huggingface_hub", "rich")
SERVE = "serve llama-3.3-70b:q4_k_m --on 4xrtx4060ti-16gb --context 16k"


@pytest.mark.parametrize(
    ("arguments", "needed"),
    [
        ("--help", []),
        ("plan --help", []),
        ("explain --help-all", []),
        ("--version", []),
        ("count gpt2", ["rich"]),
        (SERVE, ["rich"]),
        (f"{SERVE} --json", ["rich"]),
        ("plan llama-debug --on 8xh100-sxm --batch 64", ["numpy", "rich"]),
    ],
)
def test_a_command_imports_nothing_that_it_does_not_need(arguments: str, needed: list[str]) -> None:
    script = (
        f"import sys; sys.argv = ['meshwise', *{arguments.split()!r}]\nfrom meshwise.ui.cli.main import main\n"
        f"try: main()\nexcept SystemExit as stop: assert not stop.code\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stderr.replace("'", '"')) == needed
