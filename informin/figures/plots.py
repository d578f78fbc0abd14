"""Figures of embeddings and their scores. Takes arrays and plain rows; does not import torch or transformers.

Each drawing function takes `stem`, a path without suffix, and returns the paths of the three files that it wrote:
STEM.png, STEM.svg and STEM.csv, which contains the numbers needed to draw the figure again. It raises UsageError if
there is nothing to draw or, unless stated otherwise, if a number is not finite.
"""

import math
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter
from scipy.stats import spearmanr
from sklearn.cluster import KMeans
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits

from informin.errors import UsageError
from informin.evaluation.drift import NEIGHBORS, Drift
from informin.evaluation.geometry import unit
from informin.figures.drawing import (
    COLORS,
    STYLE,
    Files,
    Panel,
    appearance,
    make_panels,
    numbers,
    require,
    require_finite,
    save,
)
from informin.figures.label_layout import place_labels

SMALLEST_TSNE = 30  # points; with fewer, a perplexity of a third of them is meaningless
MOST_LABELS = 20  # with a color of their own in t-SNE
OTHERS = -1  # group of all other labels
GOLD_BINS, COSINE_BINS = 10, 25
MEANS: dict[str, Any] = dict(color="#D55E00", marker="o", markersize=5, markeredgecolor="white", markeredgewidth=0.8)


@matplotlib.rc_context(STYLE)
def alignment_uniformity(rows: Sequence[Mapping], title: str, stem: str | Path) -> Files:
    """Plot the alignment and uniformity of checkpoints, colored by STS average.

    Args:
        rows: One row per checkpoint with `name`, `alignment`, `uniformity`, `sts_average` (Spearman x 100, or None,
            which is drawn gray) and `n`, the number of positive pairs.
        title: Name of the data, for example "STS-B dev".

    Source:
        Chen et al. (2022), figure 3; Gao et al. (2021), figure 3.
    """
    require(rows, "checkpoint")
    for row in rows:
        require_finite(row["name"], "alignment and uniformity", [row["alignment"], row["uniformity"]])
    figure = Figure(figsize=(7, 4.8) if len(rows) <= 6 else (9, 6.5))
    axes = figure.add_subplot()
    x, y, color = (numbers(rows, name) for name in ("uniformity", "alignment", "sts_average"))
    scored = np.isfinite(color)
    marks: dict[str, Any] = dict(s=60, edgecolors="black", linewidths=0.6, zorder=3)
    if scored.any():
        # Use a color range of at least two points of Spearman x 100.
        middle, half = (color[scored].min() + color[scored].max()) / 2, max(np.ptp(color[scored]) / 2, 1)
        drawn = axes.scatter(x[scored], y[scored], c=color[scored], cmap="viridis", **marks)
        drawn.set_clim(middle - half, middle + half)
        figure.colorbar(drawn, label="STS average, Spearman x 100")
    if not scored.all():
        axes.scatter(x[~scored], y[~scored], color="#999999", label="no STS average", **marks)
        axes.legend()  # is placed away from points and names when drawn
    pairs = {row["n"] for row in rows}
    axes.set_title(f"{title}, {pairs.pop():,} positive pairs" if len(pairs) == 1 else title)
    # The label is rotated, so the second arrow points down.
    axes.set_xlabel("uniformity: log mean exp(-2 squared distance)\n← lower is better")
    axes.set_ylabel("alignment: mean squared distance of positive pairs\n← lower is better")
    axes.margins(0.15)
    place_labels(axes, x, y, [textwrap.fill(row["name"], 28) for row in rows])
    header = ["name", "alignment", "uniformity", "sts_average", "n"]
    return save(figure, stem, header, ([row[name] for name in header] for row in rows))


def project(embeddings: np.ndarray, clusters: int = 10, seed: int = 42) -> tuple[np.ndarray, np.ndarray]:
    """Project embeddings to two dimensions with t-SNE, and cluster them in all dimensions with K-means.

    Both use unit vectors. The result is deterministic on one machine.

    Args:
        embeddings: Embeddings (N, d).

    Returns:
        Points (N, 2), whose distances have no unit and are meaningful only between neighbors, and unordered cluster
        ids (N,) from 0.

    Raises:
        UsageError: N < 30, or a row is not finite or has length 0.

    Source:
        Chen et al. (2022), figure 2.
    """
    if len(embeddings) < SMALLEST_TSNE:
        raise UsageError(f"t-SNE has only {len(embeddings)} sentences", needed=f"at least {SMALLEST_TSNE}")
    lengths = np.linalg.norm(np.asarray(embeddings, dtype=np.float64), axis=-1)
    broken = (~np.isfinite(lengths) | (lengths == 0)).sum()
    if broken:
        raise UsageError(
            f"{broken} of {len(lengths)} embeddings are not finite or have length 0",
            needed="finite embeddings for t-SNE",
        )
    if not 1 <= clusters <= len(embeddings):
        raise UsageError(f"is {clusters}", option="clusters", needed=f"1 to {len(embeddings)}, the number of sentences")
    x = unit(embeddings)
    # A perplexity of 30 uses about 3 x 30 neighbors, and there must be that many.
    perplexity = min(30, (len(x) - 1) / 3)
    with threadpool_limits(limits=1):  # the order of sums over threads varies, and t-SNE is chaotic
        cluster = KMeans(clusters, n_init=10, random_state=seed).fit_predict(x)
        points = TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(x)
    return points.astype(np.float64), cluster


@matplotlib.rc_context(STYLE)
def tsne(panels: Sequence[Panel], sentences: Sequence[str], stem: str | Path, labels: Sequence[str] = ()) -> Files:
    """Plot the same sentences in two dimensions, one panel per checkpoint, colored by label or by cluster.

    Args:
        panels: Name, points (N, 2) and cluster ids (N,) of each checkpoint, from `project`. Cluster ids are not
            comparable across panels.
        sentences: The N sentences.
        labels: The N labels, which then color all panels. Those after the `MOST_LABELS` most frequent are gray.
    """
    require(panels, "checkpoint")
    titles = [name for name, _, _ in panels]
    figure, grid = make_panels(titles, size=(3.4, 3.4) if len(panels) > 1 else (5, 5), shared=False)
    ids, names = _label_ids(labels)
    for axes, (name, points, clusters) in zip(grid, panels):
        require_finite(name, "points", points)
        groups = np.asarray(ids if labels else clusters)
        for group in np.unique(groups):
            x, y = np.asarray(points)[groups == group].T
            size = np.clip(6000 / len(points), 6, 24)
            axes.scatter(x, y, s=size, linewidths=0, **_appearance(group))
        axes.set(xlabel="t-SNE 1 (no unit)", ylabel="t-SNE 2 (no unit)", xticks=[], yticks=[])
        axes.set_aspect("equal", adjustable="datalim")
    shown = names or {int(cluster): str(cluster) for _, _, clusters in panels for cluster in clusters}
    used = sorted(shown, key=lambda i: (i == OTHERS, i))
    handles = [Line2D([], [], linestyle="", label=shown[i], **_appearance(i)) for i in used]
    title = "K-means\ncluster" if len(panels) == 1 else "K-means\ncluster of\neach panel"
    columns = 1 if labels else 1 + (len(handles) - 1) // 10  # more rows would not fit in the figure
    how: dict[str, Any] = dict(fontsize="x-small", labelspacing=0.2) if labels else {}
    title = "label" if labels else title
    figure.legend(handles=handles, loc="outside right center", title=title, ncols=columns, columnspacing=0.5, **how)
    rows = (
        (name, sentence, float(x), float(y), group)
        for name, points, clusters in panels
        for sentence, (x, y), group in zip(sentences, points, labels or map(int, clusters), strict=True)
    )
    return save(figure, stem, ["checkpoint", "sentence", "x", "y", "label" if labels else "cluster"], rows)


def _label_ids(labels: Sequence[str]) -> tuple[list[int], dict[int, str]]:
    """Return the id of each label, `OTHERS` for the less frequent ones, and the names of the ids."""
    common = [label for label, _ in Counter(labels).most_common(MOST_LABELS)]
    ids = {label: i for i, label in enumerate(sorted(common))}
    names = {i: textwrap.shorten(label, 24, placeholder="...") or "(none)" for label, i in ids.items()}
    others = len(set(labels)) - len(common)
    found = [ids.get(label, OTHERS) for label in labels]
    return found, names | ({OTHERS: f"{others} others"} if others else {})


def _appearance(group: int) -> dict:
    return dict(color="#bbbbbb", marker=".") if group == OTHERS else appearance(group)


@matplotlib.rc_context(STYLE)
def cosine_against_gold(panels: Sequence[Panel], stem: str | Path) -> Files:
    """Plot the distribution of the cosine of graded pairs for each grade, one panel per checkpoint.

    Args:
        panels: Name, cosines (N,) and gold scores (N,) of each checkpoint; N may differ.

    Raises:
        UsageError: All gold scores are equal.

    Source:
        After miCSE (Klein & Nabi, ACL 2023), figure 7.
    """
    require(panels, "checkpoint")
    for name, cosine, gold in panels:
        require_finite(name, "cosines and gold scores", [*cosine, *gold])
    golds = np.unique(np.concatenate([gold for _, _, gold in panels]))
    if len(golds) < 2:
        raise UsageError("All gold scores are equal", needed="at least two different gold scores")
    lowest = min(np.min(cosine) for _, cosine, _ in panels)
    gold_edges = np.linspace(golds[0], golds[-1], min(GOLD_BINS, len(golds)) + 1)
    cosine_edges = np.linspace(math.ceil(10 * lowest) / 10 - 0.1, 1, COSINE_BINS + 1)
    # Normalize each column to its own pairs. Gold scores lie on a grid with uneven counts: hexagons or
    # kernels would show that grid, and a joint density would show which grades are common.
    counts = [np.histogram2d(gold, np.minimum(cosine, 1), [gold_edges, cosine_edges])[0] for _, cosine, gold in panels]
    percentages = [100 * count / np.maximum(count.sum(1, keepdims=True), 1) for count in counts]
    titles = [f"{name}\nSpearman x 100: {100 * spearmanr(cosine, gold).statistic:.2f}" for name, cosine, gold in panels]
    figure, grid = make_panels(titles, size=(3.3, 3.3) if len(panels) > 1 else (5, 4), shared=True)
    top = max(column.max() for column in percentages)
    for axes, column, (_, cosine, gold) in zip(grid, percentages, panels):
        cells = np.ma.masked_equal(column.T, 0)
        drawn = axes.pcolormesh(gold_edges, cosine_edges, cells, cmap="viridis_r", vmin=0, vmax=top, edgecolors="face")
        count, total = (np.histogram(gold, gold_edges, weights=weights)[0] for weights in (None, cosine))
        middles = (gold_edges[:-1] + gold_edges[1:])[count > 0] / 2
        axes.plot(middles, total[count > 0] / count[count > 0], **MEANS)
    figure.supxlabel("gold score", fontsize=STYLE["axes.labelsize"])
    figure.supylabel("cosine (dots: mean of a column)", fontsize=STYLE["axes.labelsize"])
    figure.colorbar(drawn, ax=grid, label="fraction of the column's pairs (%)")
    rows = (
        (name, float(grade), float(value))
        for name, cosine, gold in panels
        for value, grade in zip(cosine, gold, strict=True)
    )
    return save(figure, stem, ["checkpoint", "gold", "cosine"], rows)


@matplotlib.rc_context(STYLE)
def redundancy(rows: Sequence[Mapping], stem: str | Path) -> Files:
    """Plot how much of a sentence's style its embedding keeps, by kind of rewrite.

    Args:
        rows: One row per checkpoint and kind with `checkpoint` and the fields of `redundancy.VariantScore`. NaN is not
            drawn.
    """
    require(rows, "row")
    checkpoints, kinds = (list(dict.fromkeys(row[name] for row in rows)) for name in ("checkpoint", "kind"))
    figure = Figure(figsize=(9, 1.2 + len(kinds) * (0.25 + 0.11 * len(checkpoints)) + 0.1 * len(checkpoints)))
    left, right = figure.subplots(1, 2, sharey=True)
    right.axvline(50, color="black", linestyle="--", linewidth=1, label="chance (50%): style forgotten", zorder=1)
    for i, checkpoint in enumerate(checkpoints):
        own = [row for row in rows if row["checkpoint"] == checkpoint]
        # Within a kind, checkpoints are drawn from top to bottom in the order of the legend.
        y = [kinds.index(row["kind"]) + 0.8 * ((i + 0.5) / len(checkpoints) - 0.5) for row in own]
        look = dict(linestyle="", markeredgecolor="black", markeredgewidth=0.4, markersize=6, **appearance(i))
        left.plot(numbers(own, "cosine"), y, **look)
        spread = numbers(own, "style_accuracy_sd")
        name = textwrap.fill(checkpoint, 50)
        right.errorbar(numbers(own, "style_accuracy"), y, xerr=spread, capsize=2, label=name, **look)
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
    return save(figure, stem, header, ([row[name] for name in header] for row in rows))


@matplotlib.rc_context(STYLE)
def drift(panels: Mapping[str, Drift], old: str, stem: str | Path) -> Files:
    """Plot how far training moved sentences: neighbors kept, cosine to the old embedding, and neighbor counts.

    The CSV has one row per checkpoint and sentence.

    Args:
        panels: Drift by name of the new checkpoint, all from the same old checkpoint and sentences.
        old: Name of the old checkpoint.
    """
    require(list(panels), "checkpoint")
    figure = Figure(figsize=(11, 3.8))
    left, middle, right = figure.subplots(1, 3)
    lowest = min(1, *(drift.cosine.min() for drift in panels.values()))
    edges = np.linspace(math.ceil(10 * lowest) / 10 - 0.1, 1, COSINE_BINS + 1)
    for i, (name, drift) in enumerate(panels.items(), start=1):
        counts = np.bincount(drift.kept, minlength=NEIGHBORS + 1)
        left.plot(range(NEIGHBORS + 1), 100 * counts / len(drift.kept), markersize=5, **appearance(i))
        percentages = 100 * np.histogram(np.minimum(drift.cosine, 1), edges)[0] / len(drift.cosine)
        middle.stairs(percentages, edges, color=COLORS[i % 10], linewidth=1.5)
        if i == 1:
            draw_occurrences(right, drift.old_occurrences, label=textwrap.fill(old, 40), **appearance(0))
        draw_occurrences(right, drift.new_occurrences, label=textwrap.fill(name, 40), **appearance(i))
    left.set(xlabel=f"number of {NEIGHBORS} nearest neighbors kept", ylabel="sentences (%)", ylim=(0, None))
    left.set_xticks(range(0, NEIGHBORS + 1, 2))
    middle.set(xlabel="cosine to the old embedding after the best rotation", ylabel="sentences (%)")
    right.set(xlabel="neighbor of at least x other sentences\n(far right: hubs)", ylabel="sentences (%)")
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
    return save(figure, stem, header, rows)


def draw_occurrences(axes: Axes, counts: np.ndarray, **look) -> None:
    """Draw the percentage of sentences that are a neighbor of at least x others; 0 does not fit on the log axis."""
    values = np.unique(counts[counts > 0])
    percentages = [100 * (counts >= value).mean() for value in values]
    axes.plot(values, percentages, markersize=3, markevery=math.ceil(len(values) / 25), **look)
