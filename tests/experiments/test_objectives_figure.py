"""The figure of README: what each objective gains over SimCSE."""

from experiments.figures.objectives import Difference, draw, read_differences
from tests.conftest import ROOT


def test_cells_with_a_difference_are_read(tmp_path):
    table = tmp_path / "page.md"
    table.write_text(
        "| | all-MiniLM-L6-v2, 40 to 80 steps | 200 steps | minilm-mlm-wiki, 40 steps |\n|---|---:|---:|---:|\n"
        "| simcse | 76.10 ± 0.53 | | |\n| scd | +1.63 (+1.14 to +2.12) | | -2.61 (-4.09 to -1.13) |\n\n| x | y |\n"
    )
    assert read_differences(table) == [
        Difference("scd", "all-MiniLM-L6-v2", False, 1.63, 1.14, 2.12),
        Difference("scd", "minilm-mlm-wiki", False, -2.61, -4.09, -1.13),
    ]


def test_table_of_the_docs_is_drawn():
    found = read_differences(ROOT / "docs" / "results.md")
    assert len(found) > 20
    panels = draw(found).axes
    assert [axes.get_title() for axes in panels] == list(dict.fromkeys(one.encoder for one in found))
