"""The verb `ui`, and `--html` on other verbs."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.command import BLOOM, SMALL, Run, refused

pytest.importorskip("starlette", reason="the extra [ui] is not installed")


def test_an_address_that_others_reach_needs_a_token(run: Run) -> None:
    assert "give --token too" in refused(run("ui", "--host", "0.0.0.0", "--no-browser"))
    assert "at least 16" in refused(run("ui", "--host", "0.0.0.0", "--token", "short", "--no-browser"))


def test_what_is_named_must_be_something_to_show(run: Run, tmp_path: Path) -> None:
    assert "is neither a file nor a folder" in refused(run("ui", str(tmp_path / "nothing")))
    assert "holds no run" in refused(run("ui", str(tmp_path)))
    (tmp_path / "plan.json").write_text("{}")
    refused(run("ui", str(tmp_path / "plan.json")))


def test_a_report_is_one_file_under_a_megabyte(run: Run, tmp_path: Path) -> None:
    cards = ["serve", "llama-3.3-70b:q4_k_m", "--on", "4xrtx4060ti-16gb"]
    figures = ["audit", "--params", "124M", "--seq", "128", "--batch", "16", "--on", "8xh100-sxm", "--step", "7.5s"]
    for words, told in ((BLOOM, "dp8 tp4 pp12"), (cards, "llama-server"), (figures, "Findings")):
        file = tmp_path / f"{words[0]}.html"
        assert run(*words, "--html", str(file)).code in (0, 1)
        text = file.read_text(encoding="utf-8")
        assert told in text
        assert 'http-equiv="Content-Security-Policy" content="default-src &#39;none&#39;' in text
        assert file.stat().st_size < 1_000_000


def test_a_report_needs_a_single_plan(run: Run, tmp_path: Path) -> None:
    file = str(tmp_path / "report.html")
    assert "need a single plan" in refused(run(*SMALL, "--vary", "batch=64,128", "--html", file))
    assert "drop --dry-run" in refused(run("run", "llama-debug", "--dry-run", "--html", file))
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_starts_without_the_server() -> None:
    script = "import sys; sys.argv = ['meshwise', '--help']\ntry:\n import meshwise.ui.cli.main as m; m.main()\nexcept SystemExit: pass\n"
    script += "import meshwise.ui.cli.web, meshwise.ui.cli.plan, meshwise.ui.cli.run\n"
    script += "print([name for name in ('starlette', 'uvicorn', 'jinja2', 'anyio', 'numpy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
