"""Pictures: that the files are whole, show what they say, come out the same each time, and hold the numbers."""

import csv
import math
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text
from scipy.stats import spearmanr

from informin.evaluation.drift import Drift
from informin.figures import drawing, plots, run_plots
from tests.conftest import ROOT, raises_usage

NAMES = ["informin, seed 42", "unsup-simcse-bert-base-uncased", "a $_b$ < c & d"]
GOLD = np.repeat(np.arange(6.0), 20)
SENTENCES = [f'sentence {i}, with a "quotation"\nand a break' for i in range(40)]
HISTORY = [
    dict(step=0, epoch=0, eval_spearman=60.5, eval_alignment=0.2, eval_uniformity=-1.5),
    {"step": 10, "loss": 0.5, "learning_rate": 3e-5, "projection_norm": 9.0}
    | {"terms/contrast": 0.25, "terms/attention_mi": 0.625, "terms/mlm": 2.5},
    dict(step=10, eval_spearman=81.25, eval_alignment=0.25, eval_uniformity=-2.5),
    {"step": 20, "loss": 0.375, "learning_rate": 1e-7, "projection_norm": 8.0}
    | {"terms/contrast": 0.125, "terms/attention_mi": 0.625, "terms/mlm": 2.25},
    dict(step=20, eval_spearman=80.0, eval_alignment=0.125, eval_uniformity=-2.25),
    dict(step=20, train_loss=0.4375, train_runtime=3.5),
]
PROBE_COLUMNS = ["checkpoint", "kind", "n", "cosine", "cosine_sd", "style_accuracy", "style_accuracy_sd"]


def score_rows(count: int = 3) -> list[dict]:
    source = np.random.default_rng(1)
    x, y, score = source.uniform([[-3], [0.1], [60]], [[-1], [0.3], [80]], (3, count)).tolist()
    names = [NAMES[i] if i < len(NAMES) else f"checkpoint number {i}" for i in range(count)]
    return [
        dict(name=names[i], alignment=y[i], uniformity=x[i], sts_average=None if i == 1 else score[i], n=338)
        for i in range(count)
    ]


def tsne_panels() -> list[tuple]:
    source = np.random.default_rng(2)
    return [(name, source.normal(size=(40, 2)), source.integers(0, 10, 40)) for name in NAMES]


def cosine_panels() -> list[tuple]:
    source = np.random.default_rng(3)
    noise = source.uniform(0, 0.3, (len(NAMES), len(GOLD)))
    return [(name, (GOLD / 8 + noise[i]).astype(np.float32), GOLD) for i, name in enumerate(NAMES)]


def probe_rows() -> list[dict]:
    """The second row has undefined measures."""
    kinds = ["stop words removed", "capitalized", "content changed"]
    numbers = np.random.default_rng(4).uniform([0.5, 0.01, 50, 1], [1, 0.1, 95, 5], (9, 4))
    numbers[1] = np.nan
    return [
        dict(zip(PROBE_COLUMNS, [NAMES[i // 3], kinds[i % 3], 100 + i, *scores]))
        for i, scores in enumerate(numbers.tolist())
    ]


def drift_panels() -> dict[str, Drift]:
    """40 sentences; the second checkpoint equals the old one."""
    source = np.random.default_rng(5)
    old = source.integers(0, 40, 40)
    moved = Drift(SENTENCES, source.integers(0, 11, 40), source.uniform(-0.2, 1, 40), old, old[::-1], {}, {})
    return {NAMES[1]: moved, NAMES[2]: Drift(SENTENCES, np.full(40, 10), np.full(40, 1 + 1e-12), old, old, {}, {})}


PICTURES = {
    "alignment_uniformity": lambda stem: plots.alignment_uniformity(score_rows(), "STS-B dev", stem),
    "tsne": lambda stem: plots.tsne(tsne_panels(), SENTENCES, stem),
    "cosine_against_gold": lambda stem: plots.cosine_against_gold(cosine_panels(), stem),
    "training_curves": lambda stem: run_plots.training_curves(HISTORY, stem),
    "redundancy": lambda stem: plots.redundancy(probe_rows(), stem),
    "drift": lambda stem: plots.drift(drift_panels(), NAMES[0], stem),
}
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
    "redundancy": [*NAMES, "stop words removed", "capitalized", "accuracy of the style probe (%), ± 1 sd"],
    "drift": [*NAMES, "number of 10 nearest neighbors kept", "(far right: hubs)"],
}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return the files of a figure, drawn on first use, and those of a second call."""
    folder = tmp_path_factory.mktemp("pictures")

    @cache
    def draw(name: str, again: bool = False) -> tuple[Path, Path, Path]:
        # The part of the stem after the dot is no suffix.
        return PICTURES[name](folder / f"{name}-{again}" / "new" / "figure.v1")

    return draw


@pytest.fixture
def figure_of(monkeypatch):
    """Return the figure that a drawing function would save."""

    def draw(function, *args) -> Figure:
        with monkeypatch.context() as patch:
            for module in (plots, run_plots):
                patch.setattr(module, "save", lambda figure, *_: figure)
            return function(*args, "unused")

    return draw


def read_csv(path: Path) -> list[dict]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def texts_in(svg: Path) -> str:
    """The texts of a picture. Their letters are outlines; beside each stands the text as a comment."""
    found = re.findall(r"<!-- (.*?) -->", svg.read_text(encoding="utf-8"), re.DOTALL)
    return re.sub("&amp;", "&", re.sub("&lt;", "<", "\n".join(found)))


@pytest.mark.parametrize("name", PICTURES)
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


@pytest.mark.parametrize("name", PICTURES)
def test_figures_are_reproducible(name, written):
    first, second = written(name), written(name, again=True)
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert b"<dc:date>" not in first[1].read_bytes()


@pytest.mark.parametrize("name", PICTURES)
def test_letters_of_9_points_or_more_and_no_formulas(name, figure_of):
    figure = figure_of(PICTURES[name])
    with matplotlib.rc_context(drawing.STYLE):  # as when it is saved, for the ticks made only now
        figure.draw_without_rendering()
    texts = figure.findobj(Text)
    assert min(text.get_fontsize() for text in texts) >= 9
    assert not any(text.get_parse_math() for text in texts), "a $ in a name is a $"
    assert not [text for text in texts if "mathdefault" in text.get_text()], "numbers on log axes are plain"


def test_numbers_of_alignment_uniformity(written):
    rows = score_rows()
    found = read_csv(written("alignment_uniformity")[2])
    assert [row["sts_average"] == "" for row in found] == [False, True, False]
    expected = [{name: "" if value is None else str(value) for name, value in row.items()} for row in rows]
    assert found == expected


def test_numbers_of_tsne(written):
    panels = tsne_panels()
    found = read_csv(written("tsne")[2])
    assert [row["checkpoint"] for row in found] == np.repeat(NAMES, 40).tolist()
    assert [row["sentence"] for row in found] == 3 * SENTENCES
    expected = np.concatenate([np.column_stack([points, clusters]) for _, points, clusters in panels])
    assert [[float(row[name]) for name in ("x", "y", "cluster")] for row in found] == expected.tolist()


def test_numbers_of_cosine_against_gold(written):
    panels = cosine_panels()
    found = read_csv(written("cosine_against_gold")[2])
    assert [row["checkpoint"] for row in found] == np.repeat(NAMES, len(GOLD)).tolist()
    assert [float(row["cosine"]) for row in found] == np.concatenate([cosine for _, cosine, _ in panels]).tolist()
    assert [float(row["gold"]) for row in found] == 3 * GOLD.tolist()


def test_numbers_of_training_curves(written):
    found = read_csv(written("training_curves")[2])
    assert [row["step"] for row in found] == ["0", "10", "20"]
    merged = [HISTORY[0], HISTORY[1] | HISTORY[2], HISTORY[3] | HISTORY[4] | HISTORY[5]]
    numbers = [{name: float(value) for name, value in row.items() if value} for row in found]
    assert numbers == merged and found[0].keys() == {name for entry in HISTORY for name in entry}


def test_numbers_of_drift(written):
    panels = drift_panels()
    found = read_csv(written("drift")[2])
    assert [(row["checkpoint"], row["sentence"]) for row in found] == [(n, s) for n in NAMES[1:] for s in SENTENCES]
    for name, get in (
        ("neighbors_kept", lambda drift: drift.kept),
        ("cosine", lambda drift: drift.cosine),
        ("old_occurrences", lambda drift: drift.old_occurrences),
        ("new_occurrences", lambda drift: drift.new_occurrences),
    ):
        assert [float(row[name]) for row in found] == np.concatenate([get(drift) for drift in panels.values()]).tolist()


def test_curves_of_drift(figure_of):
    """Each sums to all sentences; the last one is a share of sentences that are neighbors so often or more."""
    panels = drift_panels()
    left, middle, right = figure_of(plots.drift, panels, NAMES[0]).axes
    for line, drift in zip(left.lines, panels.values(), strict=True):
        assert line.get_ydata().tolist() == [2.5 * (drift.kept == count).sum() for count in range(11)]
    assert [patch.get_data().values.sum() for patch in middle.patches] == pytest.approx([100, 100])
    first = panels[NAMES[1]]
    counts = [first.old_occurrences, first.new_occurrences, first.old_occurrences]
    for line, times in zip(right.lines, counts, strict=True):
        assert line.get_ydata() == pytest.approx([2.5 * (times >= x).sum() for x in line.get_xdata()])
        assert line.get_xdata().tolist() == sorted({*times.tolist()} - {0})


def test_numbers_of_redundancy(written):
    found = read_csv(written("redundancy")[2])
    assert found == [{name: str(row[name]) for name in PROBE_COLUMNS} for row in probe_rows()]
    assert found[1]["cosine"] == "nan"


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
        with pytest.raises(OSError, match="No space left"):
            drawing.save(figure, tmp_path / stem, ["x"], rows())
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def check_names(axes, rows: list[dict]) -> None:
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
def test_names_cover_neither_one_another_nor_points(count, rise, long, figure_of):
    rows = score_rows(count)
    for i in range(count if long else 0):
        rows[i]["name"] = f"outputs/{'ro' * (i % 2)}bert-base-uncased-informin-batch-128-seed-{i}"
    for i in range(min(count, 5)):  # runs of one recipe lie close together
        rows[i] |= dict(alignment=0.15 + rise * i, uniformity=-2 + 0.06 * i)
    check_names(figure_of(plots.alignment_uniformity, rows, "STS-B dev").axes[0], rows)


def test_legend_covers_no_label(figure_of):
    """The upper right corner contains a label of four lines, but no point."""
    rows = score_rows(3)
    rows[1]["name"] = "outputs/bert-base-uncased-informin-seed42/checkpoint-15625-averaged-over-the-last-layers"
    for row, uniformity, alignment in zip(rows, (-3, -2, -1), (0.1, 0.3, 0.2)):
        row |= dict(uniformity=uniformity, alignment=alignment)
    check_names(figure_of(plots.alignment_uniformity, rows, "STS-B dev").axes[0], rows)


def drawn(axes) -> list[tuple[list, np.ndarray]]:
    """Return points and colors of a scatter plot."""
    return [(part.get_offsets().tolist(), part) for part in axes.collections]


def test_colors_follow_the_sts_average(figure_of):
    rows = score_rows(4)
    figure = figure_of(plots.alignment_uniformity, rows, "STS-B dev")
    (scored, part), (unscored, gray) = drawn(figure.axes[0])
    assert scored == [[row["uniformity"], row["alignment"]] for row in rows if row["sts_average"]]
    assert unscored == [[rows[1]["uniformity"], rows[1]["alignment"]]] and gray.get_array() is None
    scores = [row["sts_average"] for row in rows if row["sts_average"]]
    assert part.get_array().tolist() == scores and part.get_clim() == pytest.approx((min(scores), max(scores)))
    axes, bar = figure.axes
    assert axes.get_xlabel().startswith("uniformity") and axes.get_ylabel().startswith("alignment")
    assert bar.get_ylabel() == "STS average, Spearman x 100"
    assert axes.get_title() == "STS-B dev, 338 positive pairs"


def test_color_range_of_one_checkpoint(figure_of):
    figure = figure_of(plots.alignment_uniformity, score_rows(1), "STS-B dev")
    (_, part) = drawn(figure.axes[0])[0]
    score = score_rows(1)[0]["sts_average"]
    assert part.get_clim() == pytest.approx((score - 1, score + 1))


def test_no_color_bar_without_sts_averages(figure_of):
    rows = [row | dict(sts_average=None, n=i) for i, row in enumerate(score_rows(3))]
    figure = figure_of(plots.alignment_uniformity, rows, "STS-B dev")
    assert len(figure.axes) == 1 and figure.axes[0].get_title() == "STS-B dev"


def blobs(count: int, centers: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Directions around `centers` axes, with lengths that have nothing to do with them."""
    source = np.random.default_rng(0)
    label = np.arange(count) % centers
    x = np.eye(16)[label] + 0.05 * source.normal(size=(count, 16))
    return x * source.uniform(0.1, 10, (count, 1)), label


def test_project_separates_blobs_by_direction():
    x, label = blobs(200)
    points, cluster = plots.project(x)
    assert points.shape == (200, 2) and points.dtype == np.float64
    assert set(cluster) == set(range(10)) and len(set(zip(label, cluster))) == 10, "one cluster is one blob"
    centers = np.stack([points[label == i].mean(0) for i in range(10)])
    distance = np.linalg.norm(points[:, None] - centers, axis=-1)
    assert (distance.argmin(1) == label).all(), "neighbors stay neighbors"


def test_project_is_deterministic():
    x = np.random.default_rng(0).normal(size=(60, 8))
    (points, cluster), (again, cluster_again) = plots.project(x, clusters=4), plots.project(x, clusters=4)
    assert points.tolist() == again.tolist() and cluster.tolist() == cluster_again.tolist()
    assert set(cluster) == set(range(4))
    assert any(plots.project(x, clusters=4, seed=seed)[1].tolist() != cluster.tolist() for seed in (1, 2))


def test_project_of_the_fewest_sentences():
    points, cluster = plots.project(blobs(30, centers=3)[0], clusters=3)
    assert points.shape == (30, 2) and np.isfinite(points).all() and set(cluster) == {0, 1, 2}


@pytest.mark.parametrize(
    "change, found",
    [
        (lambda x: x[:29], "only 29 sentences"),
        (lambda x: np.where(np.arange(40)[:, None] == 3, np.nan, x), "1 of 40 embeddings are not finite"),
        (lambda x: np.where(np.arange(40)[:, None] < 2, np.inf, x), "2 of 40 embeddings are not finite"),
        (lambda x: np.where(np.arange(40)[:, None] == 3, 0.0, x), "1 of 40 embeddings are not finite or have length 0"),
    ],
)
def test_project_rejects_too_few_or_broken_embeddings(change, found):
    with raises_usage(found=found):
        plots.project(change(blobs(40)[0]))


@pytest.mark.parametrize("count, shape", [(1, (1, 1)), (3, (1, 3)), (4, (2, 2)), (5, (2, 3))])
def test_panels_of_tsne(count, shape, figure_of):
    points = np.random.default_rng(0).normal(size=(40, 2))
    panels = [(f"checkpoint {i}", points, np.arange(40) % 12) for i in range(count)]
    figure = figure_of(plots.tsne, panels, SENTENCES)
    assert [axes.get_title() for axes in figure.axes] == [name for name, _, _ in panels]
    assert figure.axes[0].get_gridspec().get_geometry() == shape
    for cluster, (found, _) in enumerate(drawn(figure.axes[-1])):
        assert found == points[np.arange(40) % 12 == cluster].tolist()
    parts = [part for _, part in drawn(figure.axes[0])]
    looks = {(tuple(part.get_facecolor()[0]), part.get_paths()[0].vertices.tobytes()) for part in parts}
    assert len(looks) == 12, "color and marker together tell the clusters apart"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [str(i) for i in range(12)]


def test_density_and_means_of_cosine_against_gold(figure_of):
    """Integer grades have one column each. Percentages are relative to the column."""
    gold = np.array([0.0] * 30 + [1.0] * 3 + [2.0] * 10)
    cosine = np.concatenate([np.linspace(0, 0.3, 30), [0.45, 0.5, 0.55], np.full(10, 1 + 1e-7)])
    figure = figure_of(plots.cosine_against_gold, [("a", cosine, gold), ("b", -cosine, gold)])
    left, right, *_ = figure.axes
    cells = left.collections[0].get_array().reshape(plots.COSINE_BINS, 3)
    assert cells.sum(0).tolist() == pytest.approx([100, 100, 100]) and cells[-1].tolist() == [None, None, 100]
    (means,) = left.lines
    assert means.get_xdata() == pytest.approx([1 / 3, 1, 5 / 3])
    assert means.get_ydata() == pytest.approx([0.15, 0.5, 1])
    assert left.get_xlim() == right.get_xlim() and left.get_ylim() == right.get_ylim()
    assert left.get_title() == f"a\nSpearman x 100: {100 * spearmanr(cosine, gold).statistic:.2f}"
    assert right.get_title().startswith("b\nSpearman x 100: -8")


@pytest.mark.filterwarnings("ignore:An input array is constant")
def test_collapsed_encoder_can_be_drawn(figure_of):
    figure = figure_of(plots.cosine_against_gold, [("a", np.ones(4), np.arange(4.0))])
    assert figure.axes[0].get_ylim() == pytest.approx((0.9, 1)) and figure.axes[0].get_title().endswith(": nan")


def test_panels_of_training_curves(figure_of):
    terms, spearman, alignment, uniformity = figure_of(run_plots.training_curves, HISTORY).axes
    assert {line.get_label(): list(line.get_ydata()) for line in terms.lines} == {
        "contrast": [0.25, 0.125],
        "attention mi": [0.625, 0.625],
        "mlm": [2.5, 2.25],
        "loss (weighted sum)": [0.5, 0.375],
    }
    assert terms.get_yscale() == "log"
    curve, star = spearman.lines
    assert (list(curve.get_xdata()), list(curve.get_ydata())) == ([0, 10, 20], [60.5, 81.25, 80.0])
    assert (list(star.get_xdata()), list(star.get_ydata())) == ([10], [81.25])
    assert list(alignment.lines[0].get_ydata()) == [0.2, 0.25, 0.125]
    assert list(uniformity.lines[0].get_ydata()) == [-1.5, -2.5, -2.25]


def without(*names: str) -> list[dict]:
    """Return the history without some columns and without empty entries."""
    kept = [{name: value for name, value in entry.items() if name not in names} for entry in HISTORY]
    return [entry for entry in kept if entry.keys() - {"step", "epoch"}]


def test_training_curves_of_less(figure_of):
    simcse = without("terms/attention_mi", "terms/mlm", "projection_norm")
    assert [line.get_label() for line in figure_of(run_plots.training_curves, simcse).axes[0].lines] == ["contrast"]
    unscored = without("eval_spearman", "eval_alignment", "eval_uniformity")
    assert len(figure_of(run_plots.training_curves, unscored).axes) == 1
    assert len(figure_of(run_plots.training_curves, HISTORY[:1]).axes) == 3


def test_training_curves_of_odd_numbers(figure_of):
    """A loss of 0 does not fit on a log axis, and NaN is not the best score."""
    history = [entry | {name: 0.0 for name in entry if name == "terms/contrast"} for entry in HISTORY]
    history[2] = history[2] | dict(eval_spearman=math.nan)
    terms, spearman, *_ = figure_of(run_plots.training_curves, history).axes
    assert terms.get_yscale() == "linear" and spearman.get_title() == "best: 80.00 at step 20"


def test_panels_of_redundancy(figure_of):
    rows = probe_rows()
    figure = figure_of(plots.redundancy, rows)
    left, right = figure.axes
    assert [text.get_text() for text in left.get_yticklabels()] == [
        "stop words removed",
        "capitalized",
        "content changed",
    ]
    assert left.get_ylim() == right.get_ylim() == (2.5, -0.5), "the first kind is on top"
    chance = right.lines[0]
    assert list(chance.get_xdata()) == [50, 50] and chance.get_linestyle() == "--"
    columns = {name: np.array([row[name] for row in rows]).reshape(3, 3) for name in PROBE_COLUMNS[3:]}
    np.testing.assert_array_equal([line.get_xdata() for line in left.lines], columns["cosine"])
    for i, (line, container) in enumerate(zip(left.lines, right.containers)):
        assert np.round(line.get_ydata()).tolist() == [0, 1, 2]
        points, _, (bars,) = container
        np.testing.assert_array_equal(points.get_xdata(), columns["style_accuracy"][i])
        np.testing.assert_array_equal(points.get_ydata(), line.get_ydata())
        widths = [np.ptp(segment[:, 0]) for segment in bars.get_segments() if len(segment)]
        expected = 2 * columns["style_accuracy_sd"][i]
        assert widths == pytest.approx(expected[np.isfinite(expected)])
    assert len({(line.get_color(), line.get_marker()) for line in left.lines}) == 3


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
