"""Pictures of embeddings, scores and runs. Takes arrays and plain rows, knows no model.

Each function that draws takes `stem`, a path without suffix, and returns the paths of the three files that it wrote:
STEM.png, STEM.svg and STEM.csv, the numbers from which the picture can be drawn again. It raises UsageError where there
is nothing to draw, and where a number is not finite, but for those of which it is said.
"""

import csv
import itertools
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter
from scipy.stats import spearmanr
from sklearn.cluster import KMeans
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits

from informin.errors import UsageError
from informin.evaluation.drift import NEIGHBORS, Drift
from informin.evaluation.geometry import unit
from informin.temporary import TemporaryFolder
from informin.training.history import logged_terms

Files = tuple[Path, Path, Path]  # PNG, SVG, CSV
Panel = tuple[str, np.ndarray, np.ndarray]  # the name of a checkpoint, and two arrays of N rows

STYLE = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.labelsize": 10,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9,
    "legend.title_fontsize": 9,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E5E5E5",
    "figure.constrained_layout.use": True,
    "savefig.dpi": 200,
    "text.parse_math": False,  # a $ in the name of a checkpoint is a $
    "svg.hashsalt": "informin",  # the ids in the file, which are random otherwise
    # Letters as outlines: the same everywhere, in the widths that the labels were placed with. Each text also stands in
    # the file as a comment.
    "svg.fonttype": "path",
}
# Okabe & Ito (2008), told apart by the color-blind; black and yellow late. Two more for ten clusters.
COLORS = "#0072B2 #D55E00 #009E73 #CC79A7 #56B4E9 #E69F00 #000000 #F0E442 #882255 #999999".split()
MARKERS = "o s ^ D v P X p < *".split()
MEAN_LOOK = dict(color="black", marker="|", markersize=11, markeredgewidth=1.6)
SMALLEST_TSNE = 30  # points; with fewer, a neighborhood of a third of them says nothing
GOLD_BINS, COSINE_BINS = 10, 25
LABEL_RINGS = (7, 12, 18, 25, 33, 42, 53, 66, 82, 100)  # distances of a name from its point, in typographic points


@matplotlib.rc_context(STYLE)
def alignment_uniformity(rows: Sequence[Mapping], title: str, stem: str | Path) -> Files:
    """Where checkpoints lie between alignment and uniformity, colored by their STS average.

    Args:
        rows: one a checkpoint: `name`, `alignment`, `uniformity`, `sts_average` (Spearman x 100; None is drawn gray)
            and `n`, the number of positive pairs.
        title: what they were measured on, "STS-B dev" for instance.

    Source:
        Chen et al. (2022), figure 3; Gao et al. (2021), figure 3.
    """
    _require(rows, "checkpoint")
    for row in rows:
        _require_finite(row["name"], "alignment and uniformity", [row["alignment"], row["uniformity"]])
    figure = Figure(figsize=(7, 4.8) if len(rows) <= 6 else (9, 6.5))
    axes = figure.add_subplot()
    x, y, color = (_numbers(rows, name) for name in ("uniformity", "alignment", "sts_average"))
    scored = np.isfinite(color)
    marks = dict(s=60, edgecolors="black", linewidths=0.6, zorder=3)
    if scored.any():
        # One point alone, or points much alike, still get a range: two points of Spearman x 100.
        middle, half = (color[scored].min() + color[scored].max()) / 2, max(np.ptp(color[scored]) / 2, 1)
        drawn = axes.scatter(x[scored], y[scored], c=color[scored], cmap="viridis", **marks)
        drawn.set_clim(middle - half, middle + half)
        figure.colorbar(drawn, label="STS average, Spearman x 100")
    if not scored.all():
        axes.scatter(x[~scored], y[~scored], color="#999999", label="no STS average", **marks)
        axes.legend()  # finds a place clear of points and names when it is drawn
    pairs = {row["n"] for row in rows}
    axes.set_title(f"{title}, {pairs.pop():,} positive pairs" if len(pairs) == 1 else title)
    # Turned to stand along the axis, the second arrow points down.
    axes.set_xlabel("uniformity: log mean exp(-2 squared distance)\n← lower is better")
    axes.set_ylabel("alignment: mean squared distance of positive pairs\n← lower is better")
    axes.margins(0.15)
    _place_labels(axes, x, y, [textwrap.fill(row["name"], 28) for row in rows])
    header = ["name", "alignment", "uniformity", "sts_average", "n"]
    return _save(figure, stem, header, ([row[name] for name in header] for row in rows))


def project(embeddings: np.ndarray, clusters: int = 10, seed: int = 42) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings in two dimensions by t-SNE, and their K-means clusters in all dimensions; both on unit vectors.

    Args:
        embeddings: (N, d).

    Returns:
        (N, 2) points, whose distances have no unit and mean something only between neighbors, and (N,) cluster ids
        from 0, in no order. The same in every call on one machine.

    Raises:
        UsageError: N < 30, or a row that is not finite or has length 0.

    Source:
        Chen et al. (2022), figure 2.
    """
    if len(embeddings) < SMALLEST_TSNE:
        raise UsageError(f"t-SNE: found {len(embeddings)} sentences; needed at least {SMALLEST_TSNE}.")
    lengths = np.linalg.norm(np.asarray(embeddings, dtype=np.float64), axis=-1)
    broken = (~np.isfinite(lengths) | (lengths == 0)).sum()
    if broken:
        raise UsageError(f"t-SNE: {broken} of {len(lengths)} embeddings are not finite or have length 0; needed none.")
    x = unit(embeddings)
    # A perplexity of 30 looks at some 3 x 30 neighbors, which there must be.
    perplexity = min(30, (len(x) - 1) / 3)
    with threadpool_limits(limits=1):  # the order of sums over threads is not fixed, and t-SNE is chaotic
        cluster = KMeans(clusters, n_init=10, random_state=seed).fit_predict(x)
        points = TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(x)
    return points.astype(np.float64), cluster


@matplotlib.rc_context(STYLE)
def tsne(panels: Sequence[Panel], sentences: Sequence[str], stem: str | Path) -> Files:
    """The same sentences in two dimensions, a panel a checkpoint, colored by cluster.

    Args:
        panels: name, (N, 2) points and (N,) cluster ids of each checkpoint, as from `project`. The ids of one panel
            have nothing to do with those of another.
        sentences: N.
    """
    _require(panels, "checkpoint")
    titles = [name for name, _, _ in panels]
    figure, grid = _panels(titles, size=(3.4, 3.4) if len(panels) > 1 else (5, 5), shared=False)
    for axes, (name, points, clusters) in zip(grid, panels):
        _require_finite(name, "points", points)
        for cluster in np.unique(clusters):
            x, y = np.asarray(points)[np.asarray(clusters) == cluster].T
            size = np.clip(6000 / len(points), 6, 24)
            axes.scatter(x, y, s=size, linewidths=0, **_look(cluster))
        axes.set(xlabel="t-SNE 1 (no unit)", ylabel="t-SNE 2 (no unit)", xticks=[], yticks=[])
        axes.set_aspect("equal", adjustable="datalim")
    used = sorted({int(cluster) for _, _, clusters in panels for cluster in clusters})
    handles = [Line2D([], [], linestyle="", label=str(cluster), **_look(cluster)) for cluster in used]
    title = "K-means\ncluster" if len(panels) == 1 else "K-means\ncluster of\neach panel"
    columns = 1 + (len(handles) - 1) // 10  # more rows would leave the picture
    figure.legend(handles=handles, loc="outside right center", title=title, ncols=columns, columnspacing=0.5)
    rows = (
        (name, sentence, float(x), float(y), int(cluster))
        for name, points, clusters in panels
        for sentence, (x, y), cluster in zip(sentences, points, clusters, strict=True)
    )
    return _save(figure, stem, ["checkpoint", "sentence", "x", "y", "cluster"], rows)


@matplotlib.rc_context(STYLE)
def cosine_against_gold(panels: Sequence[Panel], stem: str | Path) -> Files:
    """How the cosine of graded pairs is distributed at each grade, a panel a checkpoint.

    Args:
        panels: name, (N,) cosines and (N,) gold scores of each checkpoint; N may differ.

    Raises:
        UsageError: gold scores all alike.

    Source:
        After miCSE (Klein & Nabi, ACL 2023), figure 7.
    """
    _require(panels, "checkpoint")
    for name, cosine, gold in panels:
        _require_finite(name, "cosines and gold scores", [*cosine, *gold])
    golds = np.unique(np.concatenate([gold for _, _, gold in panels]))
    if len(golds) < 2:
        raise UsageError("Cosine against gold: all gold scores are alike; needed at least two different ones.")
    lowest = min(np.min(cosine) for _, cosine, _ in panels)
    gold_edges = np.linspace(golds[0], golds[-1], min(GOLD_BINS, len(golds)) + 1)
    cosine_edges = np.linspace(math.ceil(10 * lowest) / 10 - 0.1, 1, COSINE_BINS + 1)
    # A histogram, with each column in shares of its own pairs. Gold scores come on a grid and unevenly often: hexagons
    # and kernels would show that grid, and the density of all pairs would show which grades are common, not how the
    # cosine depends on them.
    counts = [np.histogram2d(gold, np.minimum(cosine, 1), [gold_edges, cosine_edges])[0] for _, cosine, gold in panels]
    shares = [100 * count / np.maximum(count.sum(1, keepdims=True), 1) for count in counts]
    titles = [f"{name}\nSpearman x 100: {100 * spearmanr(cosine, gold).statistic:.2f}" for name, cosine, gold in panels]
    figure, grid = _panels(titles, size=(3.3, 3.3) if len(panels) > 1 else (5, 4), shared=True)
    top = max(share.max() for share in shares)
    for axes, share, (_, cosine, gold) in zip(grid, shares, panels):
        cells = np.ma.masked_equal(share.T, 0)
        drawn = axes.pcolormesh(gold_edges, cosine_edges, cells, cmap="viridis_r", vmin=0, vmax=top, edgecolors="face")
        _draw_means(axes, gold_edges, cosine, gold)
    figure.supxlabel("gold score", fontsize=STYLE["axes.labelsize"])
    figure.supylabel("cosine (dots: mean of a column)", fontsize=STYLE["axes.labelsize"])
    figure.colorbar(drawn, ax=grid, label="share of the column's pairs (%)")
    rows = (
        (name, float(grade), float(value))
        for name, cosine, gold in panels
        for value, grade in zip(cosine, gold, strict=True)
    )
    return _save(figure, stem, ["checkpoint", "gold", "cosine"], rows)


@matplotlib.rc_context(STYLE)
def training_curves(log_history: Sequence[Mapping], stem: str | Path) -> Files:
    """The terms of the loss over the steps of a run, unweighted, and its evaluations.

    The CSV has a row a step and every column of the log.

    Args:
        log_history: as in trainer_state.json; see `checkpoints.read_history`.
    """
    by_step: dict[int, dict] = {}
    for entry in log_history:
        by_step.setdefault(entry["step"], {}).update(entry)
    steps = [by_step[step] for step in sorted(by_step)]
    logged, scored = (any(name in row for row in steps) for name in ("loss", "eval_spearman"))
    if not (logged or scored):
        raise UsageError("Training curves: the log holds neither a loss nor an evaluation.")
    columns = logged + 2 * scored
    figure = Figure(figsize=(3.6 * columns, 4.2))
    grid = figure.add_gridspec(2, columns)
    if logged:
        _draw_terms(figure.add_subplot(grid[:, 0]), steps)
    if scored:
        _draw_spearman(figure.add_subplot(grid[:, -2]), steps)
        upper = figure.add_subplot(grid[0, -1], ylabel="alignment\n← lower is better")
        lower = figure.add_subplot(grid[1, -1], ylabel="uniformity\n← lower is better", sharex=upper)
        _draw_curve(upper, *_series(steps, "eval_alignment"), **_look(0))
        _draw_curve(lower, *_series(steps, "eval_uniformity"), **_look(0))
        upper.set_xlabel("")
        figure.align_ylabels([upper, lower])
    header = list(dict.fromkeys(["step", *(name for row in steps for name in row)]))
    return _save(figure, stem, header, ([row.get(name) for name in header] for row in steps))


@matplotlib.rc_context(STYLE)
def redundancy(rows: Sequence[Mapping], stem: str | Path) -> Files:
    """How much of a sentence's style its embedding keeps, by the kind of change made to the sentence.

    Args:
        rows: one a checkpoint and kind: `checkpoint` and what `redundancy.VariantScore` has. NaN is not drawn.
    """
    _require(rows, "row")
    checkpoints, kinds = (list(dict.fromkeys(row[name] for row in rows)) for name in ("checkpoint", "kind"))
    figure = Figure(figsize=(9, 1.2 + len(kinds) * (0.25 + 0.11 * len(checkpoints)) + 0.1 * len(checkpoints)))
    left, right = figure.subplots(1, 2, sharey=True)
    right.axvline(50, color="black", linestyle="--", linewidth=1, label="chance (50%): style forgotten", zorder=1)
    for i, checkpoint in enumerate(checkpoints):
        own = [row for row in rows if row["checkpoint"] == checkpoint]
        # The checkpoints of one kind stand below one another, in the order of the legend.
        y = [kinds.index(row["kind"]) + 0.8 * ((i + 0.5) / len(checkpoints) - 0.5) for row in own]
        look = dict(linestyle="", markeredgecolor="black", markeredgewidth=0.4, markersize=6, **_look(i))
        left.plot(_numbers(own, "cosine"), y, **look)
        spread = _numbers(own, "style_accuracy_sd")
        name = textwrap.fill(checkpoint, 50)
        right.errorbar(_numbers(own, "style_accuracy"), y, xerr=spread, capsize=2, label=name, **look)
    left.set(xlabel="cosine to the original sentence, mean", yticks=range(len(kinds)))
    left.set_yticklabels([textwrap.fill(kind, 20) for kind in kinds])
    left.set_ylim(len(kinds) - 0.5, -0.5)
    right.set(xlabel="accuracy of the style probe (%), ± 1 sd")
    between = np.arange(len(kinds) - 1) + 0.5
    for axes in (left, right):
        axes.grid(axis="y", visible=False)
        axes.hlines(between, 0, 1, transform=axes.get_yaxis_transform(), color="#CCCCCC", lw=0.8)
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    header = ["checkpoint", "kind", "n", "cosine", "cosine_sd", "style_accuracy", "style_accuracy_sd"]
    return _save(figure, stem, header, ([row[name] for name in header] for row in rows))


@matplotlib.rc_context(STYLE)
def drift(panels: Mapping[str, Drift], old: str, stem: str | Path) -> Files:
    """How far sentences moved: neighbors that they kept, cosine to where they were, and how often they are neighbors.

    The CSV has a row a checkpoint and sentence.

    Args:
        panels: by the name of the new checkpoint; all against the same old one, on the same sentences.
        old: the name of the old one.
    """
    _require(list(panels), "checkpoint")
    figure = Figure(figsize=(11, 3.8))
    left, middle, right = figure.subplots(1, 3)
    lowest = min(1, *(drift.cosine.min() for drift in panels.values()))
    edges = np.linspace(math.ceil(10 * lowest) / 10 - 0.1, 1, COSINE_BINS + 1)
    for i, (name, drift) in enumerate(panels.items(), start=1):
        counts = np.bincount(drift.kept, minlength=NEIGHBORS + 1)
        left.plot(range(NEIGHBORS + 1), 100 * counts / len(drift.kept), markersize=5, **_look(i))
        shares = 100 * np.histogram(np.minimum(drift.cosine, 1), edges)[0] / len(drift.cosine)
        middle.stairs(shares, edges, color=COLORS[i % 10], linewidth=1.5)
        if i == 1:
            _draw_occurrences(right, drift.old_occurrences, label=textwrap.fill(old, 40), **_look(0))
        _draw_occurrences(right, drift.new_occurrences, label=textwrap.fill(name, 40), **_look(i))
    left.set(xlabel=f"of its {NEIGHBORS} nearest neighbors a sentence kept", ylabel="sentences (%)", ylim=(0, None))
    left.set_xticks(range(0, NEIGHBORS + 1, 2))
    middle.set(xlabel="cosine to its old embedding, after the best rotation", ylabel="sentences (%)")
    right.set(xlabel="is a neighbor of at least so many others\n(far right: hubs)", ylabel="sentences (%)")
    right.set(xscale="log", yscale="log")
    for axis in (right.xaxis, right.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    header = ["checkpoint", "sentence", "neighbors_kept", "cosine", "old_occurrences", "new_occurrences"]
    rows = (
        (name, *row)
        for name, drift in panels.items()
        for row in zip(
            drift.sentences,
            *(x.tolist() for x in (drift.kept, drift.cosine, drift.old_occurrences, drift.new_occurrences)),
            strict=True,
        )
    )
    return _save(figure, stem, header, rows)


@matplotlib.rc_context(STYLE)
def seeds(rows: Sequence[Mapping], title: str, stem: str | Path) -> Files:
    """What each seed of each setting scored, with their mean and standard deviation, a panel a measure.

    Args:
        rows: one a measure, setting and seed: `measure`, `setting`, `seed`, `value` (x 100) and `baseline_mean`, that
            of the setting it is compared with (None without).
        title: of the study.
    """
    _require(rows, "run")
    measures, settings = (list(dict.fromkeys(row[name] for row in rows)) for name in ("measure", "setting"))
    for setting in settings:
        _require_finite(setting, "scores", [row["value"] for row in rows if row["setting"] == setting])
    figure = Figure(figsize=(3 + 3.6 * len(measures), 1.6 + 0.42 * len(settings)))
    grid = figure.subplots(1, len(measures), sharey=True, squeeze=False)[0]
    for axes, measure in zip(grid, measures):
        for i, setting in enumerate(settings):
            own = [row for row in rows if (row["measure"], row["setting"]) == (measure, setting)]
            _draw_seeds(axes, i, own)
        axes.set(xlabel=f"{measure}, x 100", yticks=range(len(settings)), ylim=(len(settings) - 0.5, -0.5))
        axes.set_yticklabels([textwrap.fill(setting, 36) for setting in settings])
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        axes.grid(axis="y", visible=False)
    figure.suptitle(title, fontsize=STYLE["axes.titlesize"])
    handles = [
        Line2D([], [], linestyle="", label="a seed", alpha=0.7, **_look(0)),
        Line2D([], [], label="mean ± sd", **MEAN_LOOK),
    ]
    if any(row["baseline_mean"] is not None for row in rows):
        handles.append(Line2D([], [], color=COLORS[1], linestyle="--", label="mean of its baseline"))
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    header = ["measure", "setting", "seed", "value", "baseline_mean"]
    return _save(figure, stem, header, ([row[name] for name in header] for row in rows))


def _require(rows: Sequence, what: str) -> None:
    if not rows:
        raise UsageError(f"Nothing to draw: needed at least one {what}.")


def _require_finite(name: str, what: str, numbers) -> None:
    if not np.isfinite(np.asarray(numbers, dtype=np.float64)).all():
        raise UsageError(f"{name}: {what} must be finite numbers; found NaN or infinity.")


def _numbers(rows: Iterable[Mapping], name: str) -> np.ndarray:
    """A column in float64; NaN for None."""
    return np.array([row[name] for row in rows], dtype=np.float64)


def _series(rows: Iterable[Mapping], name: str) -> tuple[list, list]:
    """The steps at which a column was logged, and its values there."""
    logged = [row for row in rows if name in row]
    return [row["step"] for row in logged], [row[name] for row in logged]


def _look(i: int) -> dict:
    """Color and marker of the i-th category; the pairs come back after 100."""
    return dict(color=COLORS[i % 10], marker=MARKERS[(i + i // 10) % 10])


def _panels(titles: Sequence[str], size: tuple[float, float], shared: bool) -> tuple[Figure, list[Axes]]:
    """A figure with an axes of about that size in inches for each title: up to three in a row, more in a square."""
    titles = ["\n".join(textwrap.fill(line, 32) for line in title.splitlines()) for title in titles]
    columns = len(titles) if len(titles) <= 3 else math.ceil(math.sqrt(len(titles)))
    lines = math.ceil(len(titles) / columns)
    height = size[1] + 0.17 * max(title.count("\n") for title in titles)
    figure = Figure(figsize=(size[0] * columns + 1, height * lines))
    grid = figure.subplots(lines, columns, sharex=shared, sharey=shared, squeeze=False).ravel()
    for axes, title in zip(grid, titles):
        axes.set_title(title)
    for axes in grid[len(titles) :]:
        axes.remove()
    return figure, list(grid[: len(titles)])


def _draw_means(axes: Axes, edges: np.ndarray, cosine: np.ndarray, gold: np.ndarray) -> None:
    """The mean cosine of each bin of gold scores that has pairs."""
    count, total = np.histogram(gold, edges)[0], np.histogram(gold, edges, weights=cosine)[0]
    middles = (edges[:-1] + edges[1:])[count > 0] / 2
    look = dict(color="#D55E00", marker="o", markersize=5, markeredgecolor="white", markeredgewidth=0.8)
    axes.plot(middles, total[count > 0] / count[count > 0], **look)


def _draw_seeds(axes: Axes, y: int, rows: Sequence[Mapping]) -> None:
    """The values of one setting at a height, the points a little above their mean, which would hide them."""
    values = _numbers(rows, "value")
    axes.plot(values, np.full(len(values), y - 0.14), linestyle="", alpha=0.7, markersize=5, **_look(0))
    if len(values) > 1:
        axes.errorbar(values.mean(), y + 0.14, xerr=np.std(values, ddof=1), **MEAN_LOOK)
    line = rows[0]["baseline_mean"] if rows else None
    if line is not None:
        axes.vlines(line, y - 0.45, y + 0.45, color=COLORS[1], linestyle="--", linewidth=1.2, zorder=1)


def _draw_occurrences(axes: Axes, counts: np.ndarray, **look) -> None:
    """The share of sentences that are a neighbor of so many others or more; those of none are not on a log axis."""
    values = np.unique(counts[counts > 0])
    shares = [100 * (counts >= value).mean() for value in values]
    axes.plot(values, shares, markersize=3, markevery=math.ceil(len(values) / 25), **look)


def _draw_terms(axes: Axes, steps: Sequence[Mapping]) -> None:
    terms = [{"step": row["step"], **logged_terms(row)} for row in steps]
    names = list(dict.fromkeys(name for row in terms for name in row if name != "step"))
    for i, name in enumerate(names):
        _draw_curve(axes, *_series(terms, name), label=name.replace("_", " "), **_look(i))
    if len(names) != 1:  # else the loss is the term
        axes.plot(*_series(steps, "loss"), "--", color="black", linewidth=1, label="loss (weighted sum)")
    # The terms differ by orders of magnitude, and contrast falls by as much; a log axis shows each.
    if all(np.min(line.get_ydata()) > 0 for line in axes.lines):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("terms, unweighted")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, columnspacing=1)


def _draw_curve(axes: Axes, steps: Sequence[int], values: Sequence[float], **look) -> None:
    """A line over the steps, with a marker at each value, or at some of them where they are many."""
    axes.plot(steps, values, markersize=4, markevery=math.ceil(len(steps) / 25), **look)
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10], integer=True))
    axes.set_xlabel("step")


def _draw_spearman(axes: Axes, steps: Sequence[Mapping]) -> None:
    at, scores = _series(steps, "eval_spearman")
    _draw_curve(axes, at, scores, **_look(0))
    if np.isfinite(scores).any():
        best = int(np.nanargmax(scores))
        axes.plot(at[best], scores[best], "*", markersize=14, color=COLORS[1], markeredgecolor="black")
        axes.set_title(f"best: {scores[best]:.2f} at step {at[best]}")
    axes.set_ylabel("development pairs, Spearman x 100")  # STS-B dev or the user's own: the log does not say


def _place_labels(axes: Axes, x: np.ndarray, y: np.ndarray, names: Sequence[str]) -> None:
    """Writes a name at each point so that names cover neither one another nor points, where there is room.

    Names that find no room at their point go further off, with a line to it. The layout of the figure is fixed by this.
    (The package adjustText leaves names on points, or over the edge, in half of the crowded pictures of the tests.)
    """
    figure = axes.figure
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    renderer, scale = FigureCanvasAgg(figure).get_renderer(), 72 / figure.dpi
    points = axes.transData.transform(np.column_stack([x, y])) * scale  # (N, 2), in typographic points
    inside = axes.get_window_extent(renderer).extents * scale
    taken = np.hstack([points - 8, points + 8])  # (N, 4): left, bottom, right, top
    line = dict(arrowstyle="-", color="#777777", linewidth=0.7, shrinkA=0, shrinkB=4)
    look = dict(textcoords="offset points", ha="center", va="center", size=9, arrowprops=line)
    labels = [axes.annotate(name, place, (0, 0), **look) for name, place in zip(names, zip(x, y))]
    extents = [Text.get_window_extent(label, renderer) for label in labels]  # without the line
    halves = np.array([(extent.width, extent.height) for extent in extents]) * scale / 2 + 1
    orders = [order[::step] for order in (np.arange(len(x)), np.argsort(x), np.argsort(y)) for step in (1, -1)]
    tried = [_arrange(order, points, halves, inside, taken) for order in orders]
    _, places = min(tried, key=lambda arrangement: arrangement[0])
    for i, (radius, offset) in places.items():
        labels[i].set_in_layout(False)
        labels[i].xyann = tuple(offset)
        labels[i].arrow_patch.set_visible(radius > LABEL_RINGS[0])


def _arrange(order, points, halves, inside, taken) -> tuple[tuple[float, float], dict[int, tuple]]:
    """Gives each label in turn the nearest free place, or the least covered one.

    Args:
        order: of the N labels.
        points, halves: (N, 2), where the labels belong, and half their widths and heights.
        inside: (4,) the box to stay in.
        taken: (N, 4) boxes around the points, to keep off.

    Returns:
        The area covered and the distances, summed, both better when lower; distance and offset of each label.
    """
    places, area, distance = {}, 0.0, 0
    for i in order:
        best = None
        others = np.delete(taken, i, axis=0)
        own = np.concatenate([points[i] - 5, points[i] + 5])[None]  # a name may be nearer to its own point
        for radius, angle in itertools.product(LABEL_RINGS, np.deg2rad(np.arange(0, 360, 15))):
            offset = (halves[i] + radius) * [math.cos(angle), math.sin(angle)]
            box = np.concatenate([points[i] + offset - halves[i], points[i] + offset + halves[i]])[None]
            outside = np.prod(2 * halves[i]) - _covered(box, inside[None])
            covered = _covered(box, others) + _covered(box, own) + outside
            if best and covered >= best[0]:
                continue
            # Small boxes stand for the line.
            steps = points[i] + offset * np.linspace(0.1, 0.9, 40 * (radius > LABEL_RINGS[0]))[:, None]
            line = np.hstack([steps - 1, steps + 1])
            covered += _covered(line, others)
            if not best or covered < best[0]:
                best = (covered, radius, offset, np.vstack([box, line]))
            if covered < 1e-6:  # none, but for rounding
                break
        covered, radius, offset, boxes = best
        places[i], area, distance = (radius, offset), area + covered, distance + radius
        taken = np.vstack([taken, boxes])
    return (area, distance), places


def _covered(boxes: np.ndarray, others: np.ndarray) -> float:
    """The area that (K, 4) boxes share with (M, 4) others, summed over all pairs."""
    sides = np.minimum(boxes[:, None, 2:], others[:, 2:]) - np.maximum(boxes[:, None, :2], others[:, :2])  # (K, M, 2)
    return float(sides.clip(min=0).prod(-1).sum())


def _save(figure: Figure, stem: str | Path, header: Sequence[str], rows: Iterable) -> Files:
    """Writes STEM.png, STEM.svg and STEM.csv, each moved to its place once all are complete."""
    folder, name = Path(stem).parent, Path(stem).name
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryFolder(folder) as unfinished:
        png, svg, numbers = (Path(unfinished) / f"{name}.{suffix}" for suffix in ("png", "svg", "csv"))
        figure.savefig(png)
        figure.savefig(svg, metadata={"Date": None})
        with open(numbers, "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([header, *rows])
        return tuple(path.replace(folder / path.name) for path in (png, svg, numbers))
