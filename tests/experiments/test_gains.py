"""The figure of README."""

from experiments.figures.gains import draw, read_gains
from tests.conftest import ROOT


def test_rows_of_the_table_are_read(tmp_path):
    table = tmp_path / "page.md"
    table.write_text(
        "Text | with | bars\n\n| | vectors | **the index** | other |\n|---|---:|---:|---:|\n"
        "| CISI, E5 | 33.44 | +7.02 ± 1.22 | +9.87 ± 1.88 |\n| NPL, E5 | 43.23 | -0.14 ± 1.14 | |\n\n| x | y |\n"
    )
    rows = [(row.label, row.vectors, row.gain, row.error) for row in read_gains(table)]
    assert rows == [("CISI, E5", 33.44, 7.02, 1.22), ("NPL, E5", 43.23, -0.14, 1.14)]


def test_table_of_the_docs_is_drawn():
    rows = read_gains(ROOT / "docs" / "search.md")
    assert len(rows) == 9
    (axes,) = draw(rows).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [row.label for row in rows]
