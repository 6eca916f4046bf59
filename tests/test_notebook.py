"""docs/notebook.ipynb runs from its first cell to its last, and every cell shows something."""

from pathlib import Path

import pytest

pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "docs" / "notebook.ipynb"


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # those of Jupyter are not ours
def test_ten_cells_run_and_draw_themselves(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(cells) == 10
    for cell in cells:
        (result,) = [output for output in cell.outputs if output.output_type == "execute_result"]
        assert "text/html" in result.data or "(" in result.data["text/plain"], cell.source
    assert list(tmp_path.iterdir()) == []
