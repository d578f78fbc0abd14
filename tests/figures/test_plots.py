"""Files of figures: formats, reproducibility, labels, and errors."""

import math
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text

from informin.figures import drawing, plots, run_plots
from tests.conftest import ROOT, raises_usage
from tests.figures.plots_helpers import FIGURES, NAMES, SENTENCES, score_rows, tsne_panels

LABELS = {
    "alignment_uniformity": ["informin, seed 42", "a $_b$ < c & d", "no STS average", "← lower is better"],
    "tsne": [*NAMES, "t-SNE 1 (no unit)", "9"],
    "cosine_against_gold": [*NAMES, "gold score", "Spearman x 100: 9"],
    "training_curves": [
        "contrast",
        "attention mi",
        "best: 81.25 at step 10",
        "development pairs, Spearman x 100",
        "step",
    ],
    "information": [f"{NAMES[0]}: 83.00", NAMES[1], f"{NAMES[2]}: 83.00", "run: development pairs,"],
    "redundancy": [*NAMES, "stop words removed", "capitalized", "accuracy of the style probe (%), ± 1 sd"],
    "drift": [*NAMES, "number of 10 nearest neighbors kept", "(far right: hubs)"],
}


def texts_in(svg: Path) -> str:
    """Return the texts of an SVG file. Letters are outlines, each with its text in a comment."""
    found = re.findall(r"<!-- (.*?) -->", svg.read_text(encoding="utf-8"), re.DOTALL)
    return re.sub("&amp;", "&", re.sub("&lt;", "<", "\n".join(found)))


@pytest.mark.parametrize("name", FIGURES)
def test_figure_has_png_svg_and_csv(name, written):
    png, svg, numbers = written(name)
    assert [path.name for path in (png, svg, numbers)] == ["figure.v1.png", "figure.v1.svg", "figure.v1.csv"]
    assert set(png.parent.iterdir()) == {png, svg, numbers}

    pixels = imread(png)[..., :3]
    assert pixels.shape[1] >= 1000 and (pixels < 0.9).any(-1).mean() > 0.01, "not blank"
    border = [pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]]
    assert all((side == 1).all() for side in border), "nothing is cut off at the edges"

    root = ElementTree.parse(svg).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    found = texts_in(svg)
    assert [label for label in LABELS[name] if label not in found] == []
    assert "<text" not in svg.read_text(encoding="utf-8"), "needs no font"


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_reproducible(name, written):
    first, second = written(name), written(name, again=True)
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert b"<dc:date>" not in first[1].read_bytes()


@pytest.mark.parametrize("name", FIGURES)
def test_fonts_have_9_points_or_more_and_no_formulas(name, figure_of):
    figure = figure_of(FIGURES[name])
    with matplotlib.rc_context(drawing.STYLE):  # as when it is saved, for the ticks made only now
        figure.draw_without_rendering()
    texts = figure.findobj(Text)
    assert min(text.get_fontsize() for text in texts) >= 9
    assert not any(text.get_parse_math() for text in texts), "a $ in a name is a $"
    assert not [text for text in texts if "mathdefault" in text.get_text()], "numbers on log axes are plain"


@pytest.mark.parametrize("part", ["svg", "csv"])
def test_failed_save_keeps_earlier_files(part, tmp_path, monkeypatch):
    before = {path: path.read_bytes() for path in drawing.save(Figure(), tmp_path / "kept", ["x"], [[2.0]])}
    save = Figure.savefig

    def fail(self, path, **options):
        save(self, path, **options)
        if Path(path).suffix == ".svg":
            raise OSError("No space left on device")

    def rows():
        yield [1.0]
        raise OSError("No space left on device")

    figure = Figure()
    if part == "svg":
        monkeypatch.setattr(Figure, "savefig", fail)
    for stem in ("kept", "new"):
        with raises_usage(option="output", found="cannot be written: No space left"):
            drawing.save(figure, tmp_path / stem, ["x"], rows())
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def check_labels(axes, rows: list[dict]) -> None:
    """Every label is inside the axes, and covers no other label, point or legend."""
    axes.figure.draw_without_rendering()
    renderer = FigureCanvasAgg(axes.figure).get_renderer()
    assert [text.get_text().replace("-\n", "-") for text in axes.texts] == [row["name"] for row in rows]
    boxes = [Text.get_window_extent(text, renderer) for text in axes.texts]  # without the line to the point
    frame = axes.get_window_extent(renderer)
    assert all(frame.contains(*corner) for box in boxes for corner in box.corners())
    points = axes.transData.transform([(row["uniformity"], row["alignment"]) for row in rows])
    marker = 4 * axes.figure.dpi / 72  # its radius
    assert not [box for box in boxes for point in points if box.padded(marker).contains(*point)]
    boxes += [legend.get_window_extent(renderer) for legend in [axes.get_legend()] if legend]
    assert not [(i, j) for i, a in enumerate(boxes) for j, b in enumerate(boxes) if i < j and a.overlaps(b)]


@pytest.mark.parametrize(
    "count, rise, long",
    [
        *((count, rise, False) for count in (1, 2, 12, 20) for rise in (0.0005, 0.006)),
        *((count, 0.006, True) for count in (2, 6, 12)),
    ],
)
def test_labels_overlap_neither_labels_nor_points(count, rise, long, figure_of):
    rows = score_rows(count)
    for i in range(count if long else 0):
        rows[i]["name"] = f"outputs/{'ro' * (i % 2)}bert-base-uncased-informin-batch-128-seed-{i}"
    for i in range(min(count, 5)):  # runs of one recipe lie close together
        rows[i] |= dict(alignment=0.15 + rise * i, uniformity=-2 + 0.06 * i)
    check_labels(figure_of(plots.alignment_uniformity, rows, "STS-B dev").axes[0], rows)


def test_legend_covers_no_label(figure_of):
    """The upper right corner contains a label of four lines, but no point."""
    rows = score_rows(3)
    rows[1]["name"] = "outputs/bert-base-uncased-informin-seed42/checkpoint-15625-averaged-over-the-last-layers"
    for row, uniformity, alignment in zip(rows, (-3, -2, -1), (0.1, 0.3, 0.2)):
        row |= dict(uniformity=uniformity, alignment=alignment)
    check_labels(figure_of(plots.alignment_uniformity, rows, "STS-B dev").axes[0], rows)


@pytest.mark.parametrize(
    "draw, found",
    [
        (lambda stem: plots.alignment_uniformity([], "STS-B dev", stem), "There is nothing to draw"),
        (lambda stem: plots.tsne([], [], stem), "There is nothing to draw"),
        (lambda stem: plots.cosine_against_gold([], stem), "There is nothing to draw"),
        (lambda stem: plots.redundancy([], stem), "There is nothing to draw"),
        (lambda stem: run_plots.training_curves([], stem), "neither a loss nor an evaluation"),
        (lambda stem: run_plots.training_curves([dict(step=1, train_loss=1.0)], stem), "neither a loss nor"),
        (
            lambda stem: plots.alignment_uniformity([score_rows()[0] | dict(uniformity=math.nan)], "STS-B", stem),
            "informin, seed 42: alignment and uniformity contain NaN",
        ),
        (lambda stem: plots.tsne([("a", np.full((1, 2), np.inf), [0])], ["s"], stem), "a: points contain NaN"),
        (
            lambda stem: plots.cosine_against_gold([("a", np.array([0.5, np.nan]), np.arange(2.0))], stem),
            "a: cosines and gold scores contain NaN",
        ),
        (
            lambda stem: plots.cosine_against_gold([("a", np.array([0.5, 0.6]), np.ones(2))], stem),
            "All gold scores are equal",
        ),
    ],
)
def test_invalid_data_is_rejected(draw, found, tmp_path):
    with raises_usage(found=found):
        draw(tmp_path / "figure")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "draw",
    [
        lambda stem: plots.tsne(tsne_panels(), SENTENCES[1:], stem),
        lambda stem: plots.cosine_against_gold([("a", np.full(3, 0.5), np.arange(2.0))], stem),
    ],
)
def test_mismatched_lengths_leave_no_files(draw, tmp_path):
    with pytest.raises(ValueError):
        draw(tmp_path / "figure")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_drawing_imports_neither_torch_nor_pyplot():
    heavy = "{'torch', 'transformers', 'matplotlib.pyplot'}"
    code = f"import sys, informin.figures.plots, informin.figures.run_plots; print(*sys.modules.keys() & {heavy})"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ""


@pytest.mark.parametrize("clusters", [0, 41])
def test_a_number_of_clusters_that_does_not_fit(clusters):
    with raises_usage(option="clusters", found=f"is {clusters}", needed="1 to 40"):
        plots.project(np.random.default_rng(0).normal(size=(40, 8)), clusters, 0)
