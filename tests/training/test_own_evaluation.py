"""Evaluation with functions, evaluators of sentence-transformers, and named sets."""

import math
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers.sentence_transformer.evaluation import (
    EmbeddingSimilarityEvaluator,
    InformationRetrievalEvaluator,
)
from transformers import EarlyStoppingCallback

from informin.errors import UndefinedScoreError
from informin.evaluation.development import as_development
from informin.evaluation.labels import LabeledSentences, score_labels
from informin.evaluation.own import EncodingModel
from informin.evaluation.pairs import GradedPairs, score_pairs
from informin.report.page import page
from informin.training.options import InforMinTrainingArguments
from tests.conftest import FOUR_STEPS, make_sentences, raises_usage
from trainer_informin import InforMinTrainer

SENTENCES = make_sentences(64)
TITLES = LabeledSentences("titles.tsv", SENTENCES, [sentence.split()[0] for sentence in SENTENCES])
GRADED = GradedPairs("graded", SENTENCES[:20], SENTENCES[20:40], [float(i % 6) for i in range(20)])


def spread(encode) -> float:
    """A score of the user's own: how far apart the embeddings are."""
    return float(encode(SENTENCES[:10]).std())


@pytest.fixture
def trainer(bert, tmp_path):
    def make(data, callbacks=None, **options):
        args = InforMinTrainingArguments(str(tmp_path / "run"), **(FOUR_STEPS | {"measure_drift": False} | options))
        return InforMinTrainer(str(bert), args, SENTENCES, data, callbacks=callbacks)

    return make


def test_a_function_selects_the_checkpoint(trainer, capsys):
    run = trainer(spread)
    assert run.args.metric_for_best_model == "eval_spread" and run.args.greater_is_better
    before = run.evaluate()["eval_spread"]
    assert before == pytest.approx(spread(run.encode))
    run.train()
    logged = {entry["step"]: entry["eval_spread"] for entry in run.state.log_history if "eval_spread" in entry}
    assert run.state.best_metric == max(logged[2], logged[4]) and logged[0] == before
    assert f"spread {logged[4]:.4g}" in capsys.readouterr().out
    assert run.record()["development"] == "spread" and run.record()["development_sets"] == []


def test_lower_can_be_better(trainer):
    run = trainer([GRADED, spread], metric_for_best_model="spread", greater_is_better=False)
    run.train()
    logged = {entry["step"]: entry["eval_spread"] for entry in run.state.log_history if "eval_spread" in entry}
    assert run.state.best_metric == min(logged[2], logged[4])


def test_named_sets_and_functions(trainer):
    data = {"titles": TITLES, "sts": GRADED, "one": lambda encode: 3}
    data["own"] = lambda encode: {"a": 1, "b": np.float32(2)}
    scores = trainer(data, metric_for_best_model="eval_titles_v_measure").evaluate()
    assert [scores[f"eval_{name}"] for name in ("own_a", "own_b", "one")] == [1, 2, 3]
    assert {"eval_titles_v_measure", "eval_titles_few_shot", "eval_sts_spearman", "eval_sts_alignment"} <= scores.keys()


def test_scores_of_named_sets_are_those_of_the_sets(trainer):
    run = trainer({"titles": TITLES, "sts": GRADED}, metric_for_best_model="sts_spearman")
    scores = run.evaluate()
    expected = score_labels(run.encode, TITLES)
    for name in TITLES.measures:
        assert scores[f"eval_titles_{name}"] == pytest.approx(expected[name])
    assert scores["eval_sts_spearman"] == pytest.approx(score_pairs(run.encode, GRADED)["spearman"])


def test_named_sets_have_known_measures(trainer):
    run = trainer({"titles": TITLES, "sts": GRADED})
    assert run.args.metric_for_best_model == "eval_titles_v_measure" and run.args.greater_is_better
    assert not trainer({"sts": GRADED}, metric_for_best_model="sts_alignment").args.greater_is_better
    other = LabeledSentences("titles.tsv", TITLES.texts()[::-1], TITLES.labels)
    assert as_development({"a": TITLES}).sha256 != as_development({"a": other}).sha256


def test_an_undefined_score_of_a_named_set_is_nan(trainer, monkeypatch):
    run = trainer({"sts": GRADED})
    monkeypatch.setattr(run, "encode", lambda texts: np.ones((len(texts), 3), np.float32))
    assert math.isnan(run.evaluate()["eval_sts_spearman"])


def test_own_scores_are_recorded_and_printed(trainer, capsys):
    run = trainer({"titles": TITLES, "spread": spread}, save_steps=2)
    run.train()
    run.export()
    scores = {entry["step"]: entry for entry in run.record()["history"]}
    assert list(scores) == [0, 2, 4] and {"titles_v_measure", "titles_few_shot", "spread"} <= scores[4].keys()
    kept = run.record()["kept_step"]
    printed = capsys.readouterr().out
    after = f"{scores[0]['spread']:.4g} before, {scores[kept]['spread']:.4g} after (step {kept})"
    assert any(line.startswith("spread ") and line.endswith(after) for line in printed.splitlines())
    folder = Path(run.args.output_dir)
    card = (folder / "README.md").read_text()
    own = [line for line in card.splitlines() if line.startswith("| Own evaluation |")]
    assert own == [
        "| Own evaluation | titles_v_measure | titles_nearest_neighbor | titles_nearest_10 | titles_few_shot | spread |"
    ]
    assert "Development data" in card
    assert "titles_v_measure" in page(folder)


def test_a_resumed_run_checks_the_names_of_functions(trainer):
    def other(encode):
        return spread(encode)

    run = trainer(spread, save_steps=2, max_steps=2)
    run.train()
    with raises_usage(option="resume_from_checkpoint", found="evaluation data spread, now other"):
        trainer(other, save_steps=2).train(resume_from_checkpoint="last")
    again = trainer(spread, save_steps=2, resume_with_changes=True)
    again.train(resume_from_checkpoint="last")
    assert [entry["step"] for entry in again.record()["history"]] == [0, 2, 4]


def test_training_stops_early(trainer):
    values = iter([5.0, 4.0, 3.0, 2.0, 1.0])
    stop = EarlyStoppingCallback(early_stopping_patience=1)
    run = trainer(lambda encode: {"quality": next(values)}, [stop], metric_for_best_model="quality", max_steps=40)
    run.train()
    assert run.state.global_step == 4 and run.state.best_metric == 4.0  # at step 2; the first is from before training


def test_evaluators_of_sentence_transformers(trainer):
    graded = EmbeddingSimilarityEvaluator(GRADED.sentences1, GRADED.sentences2, GRADED.scores, name="dev")
    documents = {f"d{i}": text for i, text in enumerate(SENTENCES[:20])}
    search = InformationRetrievalEvaluator({"q": SENTENCES[30]}, documents, {"q": {"d0"}}, name="search")
    run = trainer([graded, search], metric_for_best_model="eval_dev_spearman_cosine")
    scores = run.evaluate()
    expected = score_pairs(run.encode, GRADED)["spearman"] / 100
    assert scores["eval_dev_spearman_cosine"] == pytest.approx(expected, abs=1e-6)
    assert "eval_search_cosine_mrr@10" in scores
    run.train()
    assert run.state.best_model_checkpoint


def test_a_metric_that_is_not_logged_is_named(trainer):
    run = trainer(lambda encode: {"quality": 1.0}, metric_for_best_model="eval_qualty")
    with raises_usage(option="metric_for_best_model", found="is qualty, which the evaluation", needed="quality"):
        run.train()
    with raises_usage(option="metric_for_best_model", needed="one of: spearman, "):
        trainer(GRADED, metric_for_best_model="eval_qualty")
    with raises_usage(option="metric_for_best_model", fix="give `eval_dataset` a function"):
        trainer(GRADED, metric_for_best_model="eval_qualty")


@pytest.mark.parametrize("result", ["good", None, [1.0], {"a": "b"}])
def test_other_results_are_refused(trainer, result):
    def mine(encode):
        return result

    with raises_usage(option="eval_dataset", found="an evaluation mine that returned a", needed="a number, or a"):
        trainer(mine).evaluate()


def test_undefined_scores_are_nan(trainer):
    def mine(encode):
        raise UndefinedScoreError("nothing to compare")

    assert math.isnan(trainer(mine).evaluate()["eval_mine"])


def test_scores_have_one_name_each(trainer):
    def spearman(encode):
        return 1.0

    with raises_usage(option="eval_dataset", found="two scores with the name spearman", fix="in a dictionary"):
        trainer([GRADED, spearman]).evaluate()


@pytest.mark.parametrize("given", [5, [5], {"a": 5}, {}, float])
def test_other_data_are_refused(given):
    with raises_usage(option="eval_dataset", needed="a function from `encode` to scores"):
        as_development(given)


def test_the_model_of_an_evaluator():
    model = EncodingModel(lambda texts: np.array([[3.0, 4.0]] * len(texts)))
    assert model.encode("a").tolist() == [3, 4] and model.encode_query(["a"], normalize_embeddings=True).shape == (1, 2)
    both = model.encode(["a", "b"], convert_to_tensor=True)
    assert model.similarity(both, both).allclose(both.new_ones(2, 2))
    assert model.similarity_pairwise(both, both).shape == (2,)
    with raises_usage(option="eval_dataset", found="truncate_dim"):
        model.truncate_embeddings(2)


SHORT = [(8, {}, [2, 4, 6, 8]), (3, {}, [1, 2, 3]), (8, {"logging_steps": 3}, [3, 6])]


@pytest.mark.parametrize("steps, given, expected", SHORT)
def test_losses_of_short_runs_are_logged(bert, tmp_path, capfd, steps, given, expected):
    options = {name: value for name, value in FOUR_STEPS.items() if name != "logging_steps"} | {"max_steps": steps}
    args = InforMinTrainingArguments(str(tmp_path / "run"), eval_strategy="no", **(options | given))
    run = InforMinTrainer(str(bert), args, SENTENCES)
    capfd.readouterr()
    run.train()
    run.export()
    assert [entry["step"] for entry in run.state.log_history if "loss" in entry] == expected
    assert "Writing model shards" not in capfd.readouterr().err
