"""Figures of embeddings, runs and scores. Each function writes STEM.png, .svg and .csv and returns their paths."""

import math
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.stats import spearmanr
from sklearn.cluster import KMeans
from sklearn.manifold import TSNE

from experiments.figures.drawing import COLORS, STYLE, appearance, column, make_panels, save

MOST_LABELS = 20  # with a color of their own in t-SNE
GOLD_BINS, COSINE_BINS = 10, 25
Panel = tuple[str, np.ndarray, np.ndarray]  # name of a checkpoint, and two arrays of N rows


@matplotlib.rc_context(STYLE)
def plane(rows: Sequence[Mapping], x: str, y: str, labels: tuple[str, str], title: str, stem: str | Path) -> list[Path]:
    """Plot checkpoints in the plane of two measures, colored by `sts_average` (Spearman x 100) if all have one.

    Args:
        rows: One row per checkpoint with `name`, the two measures and `sts_average` or None.
        x, y: Names of the measures.
        labels: Labels of the axes.

    Source:
        Chen et al. (2022), figure 3; Gao et al. (2021), figure 3.
    """
    figure = Figure(figsize=(7, 4.8))
    axes = figure.add_subplot(title=title, xlabel=labels[0], ylabel=labels[1])
    scored = all(row["sts_average"] is not None for row in rows)
    colors = column(rows, "sts_average") if scored else COLORS[0]
    drawn = axes.scatter(column(rows, x), column(rows, y), c=colors, s=60, edgecolors="black", zorder=3)
    if scored:
        figure.colorbar(drawn, label="STS average, Spearman x 100")
    for row in rows:
        axes.annotate(textwrap.fill(row["name"], 28), (row[x], row[y]), xytext=(6, 6), textcoords="offset points")
    axes.margins(0.2)
    header = ["name", x, y, "sts_average"]
    return save(figure, stem, header, ([row[name] for name in header] for row in rows))


@matplotlib.rc_context(STYLE)
def geometry(ours: Sequence[Mapping], theirs: Sequence[Mapping], stem: str | Path) -> list[Path]:
    """Plot alignment and uniformity of our models beside published ones.

    Args:
        ours: Rows with `name`, `source`, `alignment` and `uniformity`.
        theirs: The same of the papers. One without `uniformity` becomes a line.

    Source:
        Chen et al. (2022), figure 3; Klein and Nabi (2022), figure 2.
    """
    figure = Figure(figsize=(8, 5.2))
    axes = figure.add_subplot(xlabel="uniformity, lower is better", ylabel="alignment, lower is better")
    for side, rows, color, marker in (("here", ours, COLORS[0], "o"), ("published", theirs, COLORS[1], "D")):
        for i, row in enumerate(rows):
            if "uniformity" not in row:
                axes.axhline(row["alignment"], color=color, linestyle="--", linewidth=1)
                at, aligned = (0.01, row["alignment"]), dict(xycoords=("axes fraction", "data"), xytext=(0, 3))
            else:
                axes.scatter(row["uniformity"], row["alignment"], s=45, zorder=3, color=color, marker=marker)
                at, offset = (row["uniformity"], row["alignment"]), (7, 4)
                if side == "here":  # to the left, in turns above and below, so that no name covers a neighbor's
                    offset = (-7, -13) if i % 2 else (-7, 6)
                aligned = dict(xytext=offset, ha="right" if side == "here" else "left")
            axes.annotate(row["name"], at, textcoords="offset points", **aligned)
    axes.margins(0.15)
    handles = [Line2D([], [], linestyle="", label="all-MiniLM-L6-v2 at [CLS], here", color=COLORS[0], marker="o")]
    handles += [Line2D([], [], linestyle="", label="BERT-base, published", color=COLORS[1], marker="D")]
    figure.legend(handles=handles, loc="outside upper center", ncols=2)
    header = ["name", "source", "alignment", "uniformity"]
    return save(figure, stem, header, ([row.get(name) for name in header] for row in [*ours, *theirs]))


@matplotlib.rc_context(STYLE)
def attention(rows: Sequence[Mapping], stem: str | Path) -> list[Path]:
    """Plot by layer what two dropout views' attention maps share, and how far the maps are from log-normal.

    Args:
        rows: One row per checkpoint and layer with `name` and the fields of `attention.attention_by_layer`.
    """
    figure = Figure(figsize=(9, 3.8))
    left, right = figure.subplots(1, 2)
    for i, name in enumerate(dict.fromkeys(row["name"] for row in rows)):
        own = [row for row in rows if row["name"] == name]
        left.plot(column(own, "layer"), column(own, "mutual_information"), label=name, **appearance(i))
        right.plot(column(own, "layer"), column(own, "logarithms"), **appearance(i))
        right.plot(column(own, "layer"), column(own, "probabilities"), linestyle=":", **appearance(i))
    left.set(xlabel="layer", ylabel="mutual information of two views, nats")
    right.set(xlabel="layer", ylabel="distance to normal:\nlogarithms; dotted: probabilities")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    header = ["name", "layer", "mutual_information", "probabilities", "logarithms"]
    return save(figure, stem, header, ([row[name] for name in header] for row in rows))


def project(embeddings: np.ndarray, clusters: int = 10, seed: int = 42) -> tuple[np.ndarray, np.ndarray]:
    """Project unit vectors (N, d) to two dimensions with t-SNE, and cluster them in all dimensions with K-means.

    Returns:
        Points (N, 2), whose distances are meaningful only between neighbors, and cluster ids (N,).

    Source:
        Chen et al. (2022), figure 2.
    """
    x = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    cluster = KMeans(clusters, n_init=10, random_state=seed).fit_predict(x)
    perplexity = min(30, (len(x) - 1) / 3)  # t-SNE uses about three times as many neighbors
    return TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(x), cluster


@matplotlib.rc_context(STYLE)
def tsne(panels: Sequence[Panel], sentences: Sequence[str], stem: str | Path, labels: Sequence[str] = ()) -> list[Path]:
    """Plot the same N sentences in two dimensions, one panel per checkpoint, colored by label or by cluster.

    Args:
        panels: Name, points (N, 2) and cluster ids (N,) of each checkpoint, from `project`.
        labels: N labels. Those after the `MOST_LABELS` most frequent are gray.
    """
    figure, grid = make_panels([name for name, _, _ in panels], size=3.4, shared=False)
    common = sorted(label for label, _ in Counter(labels).most_common(MOST_LABELS))
    shown: dict[str, dict] = {}
    for axes, (_, points, clusters) in zip(grid, panels):
        groups = np.array([label if label in common else "others" for label in labels] or [str(i) for i in clusters])
        for i, group in enumerate(sorted(set(groups) - {"others"})):
            shown[group] = appearance(i)
            axes.scatter(*points[groups == group].T, s=12, linewidths=0, **shown[group])
        axes.scatter(*points[groups == "others"].T, s=12, linewidths=0, color="#bbbbbb", zorder=1)
        axes.set(xlabel="t-SNE 1 (no unit)", ylabel="t-SNE 2 (no unit)", xticks=[], yticks=[])
    handles = [Line2D([], [], linestyle="", label=textwrap.shorten(name, 24), **look) for name, look in shown.items()]
    figure.legend(handles=handles, loc="outside right center", title="label" if labels else "cluster of\neach panel")
    rows = (
        (name, sentence, *point, group)
        for name, points, clusters in panels
        for sentence, point, group in zip(sentences, points, labels or clusters, strict=True)
    )
    return save(figure, stem, ["checkpoint", "sentence", "x", "y", "label" if labels else "cluster"], rows)


@matplotlib.rc_context(STYLE)
def cosine_against_gold(panels: Sequence[Panel], stem: str | Path) -> list[Path]:
    """Plot the distribution of the cosine of graded pairs for each grade, one panel per checkpoint.

    Args:
        panels: Name, cosines (N,) and gold scores (N,) of each checkpoint.

    Source:
        After miCSE (Klein & Nabi, ACL 2023), figure 7.
    """
    golds = np.concatenate([gold for _, _, gold in panels])
    lowest = min(cosine.min() for _, cosine, _ in panels)
    gold_edges = np.linspace(golds.min(), golds.max(), GOLD_BINS + 1)
    cosine_edges = np.linspace(math.ceil(10 * lowest) / 10 - 0.1, 1, COSINE_BINS + 1)
    titles = [f"{name}\nSpearman x 100: {100 * spearmanr(cosine, gold).statistic:.2f}" for name, cosine, gold in panels]
    figure, grid = make_panels(titles, size=3.3, shared=True)
    for axes, (_, cosine, gold) in zip(grid, panels):
        # Each column is normalized to its own pairs: a joint density would show which grades are common.
        count = np.histogram2d(gold, np.minimum(cosine, 1), [gold_edges, cosine_edges])[0]
        percentages = 100 * count / np.maximum(count.sum(1, keepdims=True), 1)
        cells = np.ma.masked_equal(percentages.T, 0)
        drawn = axes.pcolormesh(gold_edges, cosine_edges, cells, cmap="viridis_r", vmin=0, vmax=50)
    figure.supxlabel("gold score")
    figure.supylabel("cosine")
    figure.colorbar(drawn, ax=grid, label="fraction of the column's pairs (%)")
    rows = ((name, *pair) for name, cosine, gold in panels for pair in zip(gold, cosine, strict=True))
    return save(figure, stem, ["checkpoint", "gold", "cosine"], rows)


@matplotlib.rc_context(STYLE)
def redundancy(rows: Sequence[Mapping], stem: str | Path) -> list[Path]:
    """Plot how much of a sentence's style its embedding keeps, by kind of rewrite.

    Args:
        rows: One row per checkpoint and kind with `checkpoint` and the fields of `redundancy.VariantScore`.
    """
    checkpoints, kinds = (list(dict.fromkeys(row[name] for row in rows)) for name in ("checkpoint", "kind"))
    figure = Figure(figsize=(9, 1.2 + len(kinds) * (0.25 + 0.15 * len(checkpoints))))
    left, right = figure.subplots(1, 2, sharey=True)
    right.axvline(50, color="black", linestyle="--", linewidth=1, label="chance (50%): style forgotten", zorder=1)
    for i, checkpoint in enumerate(checkpoints):
        scores = [row for row in rows if row["checkpoint"] == checkpoint]
        y = [kinds.index(row["kind"]) + 0.8 * ((i + 0.5) / len(checkpoints) - 0.5) for row in scores]
        left.plot(column(scores, "cosine"), y, linestyle="", **appearance(i))
        spread = column(scores, "style_accuracy_sd")
        look = dict(linestyle="", capsize=2, label=checkpoint, **appearance(i))
        right.errorbar(column(scores, "style_accuracy"), y, xerr=spread, **look)
    left.set(xlabel="cosine to the original sentence, mean", yticks=range(len(kinds)), yticklabels=kinds)
    left.invert_yaxis()
    right.set(xlabel="accuracy of the style probe (%), ± 1 sd")
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    header = ["checkpoint", "kind", "n", "cosine", "cosine_sd", "style_accuracy", "style_accuracy_sd"]
    return save(figure, stem, header, ([row[name] for name in header] for row in rows))


@matplotlib.rc_context(STYLE)
def training_curves(log: Sequence[Mapping], stem: str | Path) -> list[Path]:
    """Plot everything that a run logged over its steps, one panel per quantity; `terms/...` are unweighted.

    Args:
        log: `log_history` of trainer_state.json.
    """
    by_step: dict[int, dict] = {}
    for entry in log:
        by_step.setdefault(entry["step"], {}).update(entry)
    steps = [by_step[step] for step in sorted(by_step)]
    header = list(dict.fromkeys(["step", *(name for row in steps for name in row)]))
    drawn = [
        n
        for n in header
        if n == "loss" or n.startswith("terms/") or n in ("eval_spearman", "eval_alignment", "eval_uniformity")
    ]
    figure, grid = make_panels(drawn, size=3, shared=False)
    for axes, name in zip(grid, drawn):
        rows = [row for row in steps if row.get(name) is not None]
        axes.plot(column(rows, "step"), column(rows, name), markersize=4, **appearance(0))
        axes.set_xlabel("step")
    return save(figure, stem, header, ([row.get(name) for name in header] for row in steps))


@matplotlib.rc_context(STYLE)
def drift(kept: Mapping[str, np.ndarray], cosines: Mapping[str, np.ndarray], stem: str | Path) -> list[Path]:
    """Plot how far training moved N sentences.

    Args:
        kept: (N,) number of the 10 nearest neighbors that each sentence kept, by name of the checkpoint.
        cosines: (N,) cosine of each sentence to its old embedding after the best rotation, by name.
    """
    figure = Figure(figsize=(8, 3.8))
    left, right = figure.subplots(1, 2)
    bins = np.histogram_bin_edges(np.concatenate(list(cosines.values())), COSINE_BINS)  # the same for all checkpoints
    for i, name in enumerate(kept):
        counts = np.bincount(kept[name], minlength=11)
        left.plot(range(11), 100 * counts / len(kept[name]), **appearance(i), label=name)
        right.hist(cosines[name], bins, histtype="step", color=COLORS[i % 10])
    left.set(xlabel="nearest neighbors kept, of 10", ylabel="sentences (%)")
    right.set(xlabel="cosine to the old embedding, rotated", ylabel="sentences")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    rows = ((name, *row) for name in kept for row in zip(kept[name], cosines[name], strict=True))
    return save(figure, stem, ["checkpoint", "neighbors_kept", "cosine"], rows)


@matplotlib.rc_context(STYLE)
def seeds(rows: Sequence[Mapping], title: str, stem: str | Path) -> list[Path]:
    """Plot the score of each seed of each setting, with mean and standard deviation, in one panel per measure.

    Args:
        rows: One row per measure, setting and seed with `measure`, `setting`, `seed`, `value` (x 100) and
            `baseline_mean`, the mean of the setting it is compared with, or None.
    """
    measures, settings = (list(dict.fromkeys(row[name] for row in rows)) for name in ("measure", "setting"))
    figure = Figure(figsize=(3 + 3.6 * len(measures), 1.6 + 0.42 * len(settings)))
    grid = figure.subplots(1, len(measures), sharey=True, squeeze=False)[0]
    for axes, measure in zip(grid, measures):
        for y, setting in enumerate(settings):
            chosen = [row for row in rows if (row["measure"], row["setting"]) == (measure, setting)]
            values = column(chosen, "value")
            axes.plot(values, np.full(len(values), y - 0.14), linestyle="", alpha=0.7, **appearance(0))
            if len(values) > 1:
                spread = np.std(values, ddof=1)
                axes.errorbar(values.mean(), y + 0.14, xerr=spread, color="black", marker="|", markersize=11)
            if chosen and chosen[0]["baseline_mean"] is not None:
                axes.vlines(chosen[0]["baseline_mean"], y - 0.45, y + 0.45, color=COLORS[1], linestyle="--", zorder=1)
        axes.set(xlabel=f"{measure}, x 100", yticks=range(len(settings)), ylim=(len(settings) - 0.5, -0.5))
        axes.set_yticklabels([textwrap.fill(setting, 36) for setting in settings])
    figure.suptitle(f"{title}\ndots: seeds; black: mean ± sd; dashed: mean of the baseline", fontsize=11)
    header = ["measure", "setting", "seed", "value", "baseline_mean"]
    return save(figure, stem, header, ([row[name] for name in header] for row in rows))
