"""Every type of result has a view, which is imported when it is drawn."""

import importlib
import subprocess
import sys

import pytest

from meshwise import api
from meshwise.ui import views


@pytest.mark.parametrize("name", views.VIEWS)
def test_every_view_that_is_listed_exists(name: str) -> None:
    module, _, function = views.VIEWS[name].rpartition(".")
    assert callable(getattr(importlib.import_module(f"meshwise.ui.views.{module}"), function))


def test_a_view_is_found_by_the_type_of_a_result_or_of_the_first_of_a_list() -> None:
    counted = api.count("llama-debug")
    assert type(views.of([counted], 80)).__name__ == "Group"
    assert views.VIEWS[type(counted).__name__] == "count.counts_view"


def test_a_dry_run_imports_at_most_150_modules() -> None:
    """A run that starts nothing walks through no serving, no Slurm, no chat templates and no report of a failure."""
    program = (
        "import sys; from meshwise.ui.cli.main import main\n"
        "sys.argv = ['meshwise', 'run', 'llama-debug', '--tp', '2', '--dry-run']\n"
        "try: main()\n"
        "except SystemExit: print(*(name for name in sys.modules if name.startswith('meshwise')), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    names = done.stderr.split()
    assert "weights per rank" in done.stdout
    assert 50 < len(names) <= 150
    unwanted = (
        "meshwise.plan.serve",
        "meshwise.cost.serve",
        "meshwise.programs",
        "meshwise.run.text.template",
        "meshwise.calibrate",
    )
    assert [name for name in names if name.startswith((*unwanted, "meshwise.run.train.report.failure"))] == []
