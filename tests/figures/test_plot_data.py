"""The numbers in figures and their CSV files."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from informin.figures import plots, run_plots
from tests.conftest import raises_usage
from tests.figures.plots_helpers import (
    GOLD,
    HISTORY,
    NAMES,
    PROBE_COLUMNS,
    SENTENCES,
    cosine_panels,
    drift_panels,
    probe_rows,
    score_rows,
    tsne_panels,
)


def read_csv(path: Path) -> list[dict]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


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
    """Each histogram sums to all sentences. The last curve is the share with that many occurrences or more."""
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
    """Directions around `centers` axes, with independent lengths."""
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


def test_labels_of_tsne_color_all_panels(figure_of):
    points = np.random.default_rng(0).normal(size=(40, 2))
    names = [f"label {i}" for i in range(24)]
    labels = [*names, *names[:16]]  # the last four are less frequent than the others
    panels = [(f"checkpoint {i}", points, np.arange(40) % 12) for i in range(2)]
    figure = figure_of(plots.tsne, panels, SENTENCES, labels=labels)
    shown = [text.get_text() for text in figure.legends[0].get_texts()]
    assert shown == [*sorted(names[:20]), "4 others"] and figure.legends[0].get_title().get_text() == "label"
    for axes in figure.axes:
        others, *parts = [found for found, _ in drawn(axes)]
        assert others == points[20:24].tolist()
        for label, found in zip(shown[:-1], parts, strict=True):
            assert found == points[np.asarray(labels) == label].tolist()


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


def test_training_curves_with_missing_columns(figure_of):
    simcse = without("terms/attention_mi", "terms/mlm", "projection_norm")
    assert [line.get_label() for line in figure_of(run_plots.training_curves, simcse).axes[0].lines] == ["contrast"]
    unscored = without("eval_spearman", "eval_alignment", "eval_uniformity")
    assert len(figure_of(run_plots.training_curves, unscored).axes) == 1
    assert len(figure_of(run_plots.training_curves, HISTORY[:1]).axes) == 3


def test_training_curves_with_zero_and_nan(figure_of):
    """A loss of 0 does not fit on a log axis, and NaN is not the best score."""
    history = [entry | {name: 0.0 for name in entry if name == "terms/contrast"} for entry in HISTORY]
    history[2] = history[2] | dict(eval_spearman=math.nan)
    terms, spearman, *_ = figure_of(run_plots.training_curves, history).axes
    assert terms.get_yscale() == "linear" and spearman.get_title() == "best: 80.00 at step 20"


def test_training_curves_with_null(figure_of):
    """report.json has null for a number that is not finite."""
    history = [entry | {name: None for name in entry if name in ("terms/mlm", "eval_uniformity")} for entry in HISTORY]
    history[2] = history[2] | dict(eval_spearman=None, loss=None)
    terms, spearman, _, uniformity = figure_of(run_plots.training_curves, history).axes
    assert "mlm" not in [line.get_label() for line in terms.lines] and len(uniformity.lines[0].get_xdata()) == 0
    assert spearman.get_title() == "best: 80.00 at step 20"


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
