"""Figures of embeddings: what they draw, the redundancy probe, and the estimate of information."""

import csv
import math

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from sentence_transformers import SentenceTransformer

from experiments.figures import __main__ as figures
from experiments.figures import plots
from experiments.figures.attention import attention_by_layer, distance_to_normal
from experiments.figures.information import conditional_entropy, infonce_bound, shrink
from experiments.figures.redundancy import (
    CONTENT_CHANGED,
    VARIANTS,
    capitalized,
    clause_order_restated,
    content_replaced,
    hyphen_joined,
    probe,
    stop_words_removed,
)
from experiments.figures.similar_pairs import kept_together, measure_pairs, scatter
from experiments.published import figure
from informin.evaluation.pairs import GradedPairs
from tests.conftest import ROOT, raises_usage

PEOPLE = "painter doctor farmer sailor teacher driver gardener writer".split()
SENTENCES = [f"The {person} of number {i} left because it rained." for i in range(5) for person in PEOPLE]


def rows_of(stem):
    with open(f"{stem}.csv", encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_plane_colors_models_only_if_all_have_a_score(tmp_path):
    rows = [{"name": f"m{i}", "x": i, "y": -i, "sts_average": 70.0 + i} for i in range(3)]
    plots.plane(rows, "x", "y", ("x", "y"), "title", tmp_path / "a")
    plots.plane([rows[0] | {"sts_average": None}, rows[1]], "x", "y", ("x", "y"), "title", tmp_path / "b")
    assert rows_of(tmp_path / "a")[1] == ["m0", "0", "0", "70.0"] and (tmp_path / "b.png").stat().st_size > 1000


def test_projection_keeps_separate_clusters_apart(tmp_path):
    source = np.random.default_rng(0)
    x = np.repeat(np.eye(8)[:2], 30, axis=0) + 0.05 * source.normal(size=(60, 8))
    points, cluster = plots.project(x, clusters=2)
    assert len(set(cluster[:30])) == len(set(cluster[30:])) == 1 and cluster[0] != cluster[-1]
    middles = points[:30].mean(0), points[30:].mean(0)
    assert np.linalg.norm(middles[0] - middles[1]) > 3 * points[:30].std()
    plots.tsne([("m", points, cluster)], [str(i) for i in range(60)], tmp_path / "tsne", ["a"] * 30 + ["b"] * 30)
    assert [row[-1] for row in rows_of(tmp_path / "tsne")] == ["label", *["a"] * 30, *["b"] * 30]


def test_other_figures_save_their_numbers(tmp_path):
    gold = np.linspace(0, 5, 50)
    plots.cosine_against_gold([("m", gold / 5, gold)], tmp_path / "cosines")
    assert len(rows_of(tmp_path / "cosines")) == 51
    log = [
        {"step": 1, "loss": 2.0, "terms/contrast": 2.0},
        {"step": 2, "loss": 1.0},
        {"step": 2, "eval_spearman": 70.0},
    ]
    plots.training_curves(log, tmp_path / "curves")
    assert rows_of(tmp_path / "curves")[2] == ["2", "1.0", "", "70.0"]
    plots.drift({"m": np.array([3, 10])}, {"m": np.array([0.5, 1.0])}, tmp_path / "drift")
    assert rows_of(tmp_path / "drift")[1:] == [["m", "3", "0.5"], ["m", "10", "1.0"]]


def test_histograms_of_drift_have_the_same_bins(tmp_path, monkeypatch):
    """Otherwise, the heights of two models cannot be compared."""
    seen = []
    monkeypatch.setattr(Axes, "hist", lambda self, values, bins, **how: seen.append(bins))
    kept = {"near": np.array([9, 10]), "far": np.array([1, 2])}
    plots.drift(kept, {"near": np.array([0.98, 1.0]), "far": np.array([0.5, 0.7])}, tmp_path / "drift")
    assert np.array_equal(*seen) and np.ptp(seen[0]) == pytest.approx(0.5)


def test_geometry_draws_what_the_papers_print_beside_a_study(tmp_path, monkeypatch):
    study = ROOT / "experiments/results/studies/main-small/summary.json"
    monkeypatch.setattr("sys.argv", ["figures", "geometry", "--study", str(study), "--output", f"{tmp_path}/geometry"])
    figures.main()
    rows = {(source, name): numbers for name, source, *numbers in rows_of(tmp_path / "geometry")[1:]}
    assert len([name for source, name in rows if source == "main-small"]) == 4
    scd = [figure(f"SCD, figure 2, {measure}, SCD") for measure in ("alignment", "uniformity")]
    assert [float(number) for number in rows["SCD, figure 2", "SCD"]] == scd
    assert rows["InforMin-CL, figure 3", "InforMin-CL"] == [
        str(figure("InforMin-CL, figure 3, alignment, InforMin-CL")),
        "",
    ]


class TestSimilarPairs:
    def test_pairs_in_separate_groups_stay_together(self):
        source = np.random.default_rng(0)
        centers = np.eye(4)[source.integers(0, 4, 80)]
        x, y = (centers + 0.01 * source.normal(size=centers.shape) for _ in range(2))
        together, chance = kept_together(x, 7 * y, clusters=4)  # lengths do not matter
        assert together == 100 and 25 <= chance < 35
        assert kept_together(x, y[::-1], clusters=4)[0] < 60

    def test_scatter_by_hand(self):
        """Two grades of two pairs each, 0.1 from their mean, the means 0.4 apart: 0.01 of 0.05 is left."""
        spread, left = scatter(np.array([0.1, 0.3, 0.5, 0.7]), np.array([0.0, 0.0, 5.0, 5.0]))
        assert (spread, left) == (pytest.approx(0.1), pytest.approx(20))

    def test_only_similar_pairs_are_clustered(self):
        x = np.repeat(np.eye(12), 5, axis=0) + 1e-4 * np.random.default_rng(0).normal(size=(60, 12))
        grades = np.repeat([5.0, 0.0], 30)
        y = np.concatenate([x[:30], x[30:][::-1]])
        pairs = GradedPairs("toy", ["a"] * 60, ["b"] * 60, grades)
        measured = measure_pairs(x, y, (x * y).sum(-1), pairs)
        assert measured["one cluster, %"] == 100


class TestAttention:
    def test_distance_to_normal(self):
        normal = torch.randn(20_000, generator=torch.Generator().manual_seed(0))
        assert distance_to_normal(normal) < 0.02 < 0.1 < distance_to_normal(normal.exp())

    def test_views_without_dropout_share_all(self, st_mean):
        """Then the mutual information has its upper bound, 6.9078 nats."""
        model = SentenceTransformer(str(st_mean), device="cpu")
        usual = attention_by_layer(model, SENTENCES[:8])
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        equal = attention_by_layer(model, SENTENCES[:8])
        assert [row["layer"] for row in equal] == [1, 2]
        assert [row["mutual_information"] for row in equal] == pytest.approx([6.9078] * 2, abs=1e-3)
        assert all(0 < row["mutual_information"] < 6 for row in usual)


class TestRedundancy:
    @pytest.mark.parametrize(
        "rewrite, sentence, expected",
        [
            (stop_words_removed, "The dog of the house sleeps.", "dog house sleeps."),
            (stop_words_removed, "Dogs sleep.", None),
            (clause_order_restated, "The dog barked because it was cold.", "Because it was cold, the dog barked."),
            (
                clause_order_restated,
                "In the old town, the dog barked loudly.",
                "The dog barked loudly, in the old town.",
            ),
            (clause_order_restated, "The dog barked and the cat slept.", None),
            (capitalized, "The dog sleeps.", "The Dog Sleeps."),
            (hyphen_joined, "The dog sleeps.", "The-dog-sleeps."),
            (hyphen_joined, "Dogs.", None),
        ],
    )
    def test_rewrites(self, rewrite, sentence, expected):
        assert rewrite(sentence) == expected

    def test_one_content_word_is_replaced(self):
        source = np.random.default_rng(0)
        changed = content_replaced("The painter left.", ["garden", "painter"], source)
        assert changed in ("The garden left.", "The painter garden.")

    def test_an_encoder_that_ignores_case_forgets_it_and_keeps_content(self):
        def encode(texts):
            rows = [np.bincount([ord(letter) % 64 for letter in text.lower()], minlength=64) for text in texts]
            return np.array(rows, float)

        scores = {score.kind: score for score in probe(encode, SENTENCES)}
        assert scores["capitalized"].cosine == 1 and scores["capitalized"].style_accuracy == 50
        assert scores["hyphen-joined"].style_accuracy > 95 and scores[CONTENT_CHANGED].cosine < 1
        assert list(scores) == [*VARIANTS, CONTENT_CHANGED] and scores["capitalized"].n == 40

    def test_too_few_sentences(self):
        with raises_usage():
            probe(lambda texts: np.eye(len(texts)), SENTENCES[:3])


class TestInformation:
    def test_bound_of_identical_orthogonal_views_is_log_n(self):
        z = torch.eye(16)
        assert infonce_bound(z, z, 0.01).item() == pytest.approx(math.log(16), abs=1e-5)
        assert infonce_bound(torch.ones(16, 4), torch.ones(16, 4)).item() == pytest.approx(0, abs=1e-5)

    def test_entropy_of_correlated_gaussians_in_closed_form(self):
        """Two numbers with correlation r: h(x | y) = log(2 pi e (1 - r^2)) / 2."""
        covariance = torch.tensor([[1.0, 0.8], [0.8, 1.0]], dtype=torch.float64)
        assert conditional_entropy(covariance) == pytest.approx(0.5 * math.log(2 * math.pi * math.e * 0.36))
        independent = torch.eye(6, dtype=torch.float64)
        assert conditional_entropy(independent) == pytest.approx(0.5 * math.log(2 * math.pi * math.e))

    def test_shrinking_makes_small_samples_positive_definite_and_leaves_large_ones(self):
        rows = torch.randn(5, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        small = shrink(torch.cov(rows.T, correction=0), 5)
        assert torch.linalg.eigvalsh(small).min() > 0
        exact = torch.diag(torch.arange(1.0, 5.0, dtype=torch.float64))
        torch.testing.assert_close(shrink(exact, 10**7), exact, rtol=1e-5, atol=1e-5)
