"""The notebook in examples/ is saved with its outputs and without paths of a machine."""

import sysconfig
import warnings

import nbformat
import pytest

from tools.notebooks import NOTEBOOKS, last_state, path_in


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_complete_and_name_no_path(path):
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert path_in(notebook) is None and [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    assert not [out for cell in cells for out in cell.outputs if out.output_type == "error"]


def test_the_sample_is_what_functions_and_classes_do(tmp_path, monkeypatch):
    for file in ("library/json/decoder.py", "library/test/test_json.py", "library/site-packages/a.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        of = "documents" if file.endswith("decoder.py") else "others"
        docstring = f'"""Read {of} from\n    a file.\n\n    More."""'
        (tmp_path / file).write_text(
            f"class A:\n    {docstring}\n    def f():\n        {docstring}\n    def g(): pass\n"
        )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: "library")
    (notebook,) = NOTEBOOKS
    first = next(cell for cell in nbformat.read(notebook, as_version=4).cells if cell.cell_type == "code")
    with warnings.catch_warnings():
        exec(first.source, {})
    assert (tmp_path / "texts.txt").read_text() == "Read documents from a file."


def test_a_progress_bar_shows_its_last_state():
    assert last_state("a: 10%\ra: 100%") == "a: 100%" and last_state("a: 10%\ra: 90%\r        \r") == "a: 90%"
