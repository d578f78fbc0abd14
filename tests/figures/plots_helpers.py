"""Data for one figure of each kind."""

import numpy as np

from informin.evaluation.drift import Drift
from informin.figures import plots, run_plots

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


def information_rows() -> list[dict]:
    """Three runs over four log entries; the second has no score."""
    source = np.random.default_rng(6)
    return [
        dict(run=name, step=10 * step, infonce_bound=bound, conditional_entropy=entropy)
        | dict(spearman=None if i == 1 else 80 + step)
        for i, name in enumerate(NAMES)
        for step, (bound, entropy) in enumerate(source.uniform([3, -3], [4.8, -2], (4, 2)).tolist())
    ]


def drift_panels() -> dict[str, Drift]:
    """40 sentences; the second checkpoint equals the old one."""
    source = np.random.default_rng(5)
    old = source.integers(0, 40, 40)
    moved = Drift(SENTENCES, source.integers(0, 11, 40), source.uniform(-0.2, 1, 40), old, old[::-1], {}, {})
    return {NAMES[1]: moved, NAMES[2]: Drift(SENTENCES, np.full(40, 10), np.full(40, 1 + 1e-12), old, old, {}, {})}


FIGURES = {
    "alignment_uniformity": lambda stem: plots.alignment_uniformity(score_rows(), "STS-B dev", stem),
    "tsne": lambda stem: plots.tsne(tsne_panels(), SENTENCES, stem),
    "cosine_against_gold": lambda stem: plots.cosine_against_gold(cosine_panels(), stem),
    "training_curves": lambda stem: run_plots.training_curves(HISTORY, stem),
    "information": lambda stem: run_plots.information(information_rows(), stem),
    "redundancy": lambda stem: plots.redundancy(probe_rows(), stem),
    "drift": lambda stem: plots.drift(drift_panels(), NAMES[0], stem),
}
