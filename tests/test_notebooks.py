"""The notebook in examples/ is saved with its outputs and without paths of a machine."""

import nbformat
import pytest

from tools.notebooks import NOTEBOOKS, last_state, path_in


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_complete_and_name_no_path(path):
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert path_in(notebook) is None and [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    assert not [out for cell in cells for out in cell.outputs if out.output_type == "error"]


def test_a_progress_bar_shows_its_last_state():
    assert last_state("a: 10%\ra: 100%") == "a: 100%" and last_state("a: 10%\ra: 90%\r        \r") == "a: 90%"
