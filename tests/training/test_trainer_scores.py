"""Evaluation during training: when it runs, what it scores, and which checkpoint is kept."""

import math
import shutil
import signal
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from transformers import TrainerCallback

from informin.errors import UndefinedScoreError
from informin.evaluation import pairs as pairs_module
from informin.evaluation.labels import LabeledSentences, score_labels
from informin.evaluation.measures import ALL, LABELS, PAIRS
from informin.evaluation.pairs import load_pairs
from informin.evaluation.retrieval import Collection
from informin.training.checkpoints import StopOnSignal
from informin.training.record import summary
from tests.conftest import make_sentences, raises_usage
from tests.training.helpers import WeightsAtEvaluation, assert_same, logged, weights_of
from trainer_informin import InforMinTrainer


def table_of(trainer, folder: str) -> str:
    return summary(folder, trainer.args, trainer.state, trainer.record(), trainer.eval_dataset)


def test_evaluation_before_the_first_step_and_every_eval_steps(build):
    trainer = build()
    trainer.train()
    scored = [entry for entry in trainer.state.log_history if "eval_spearman" in entry]
    assert [entry["step"] for entry in scored] == [0, 2, 4]
    assert all({"eval_alignment", "eval_uniformity"} <= entry.keys() for entry in scored)


def test_evaluation_scores_the_cls_vector(build, pairs_file):
    from scipy.stats import spearmanr

    trainer, pairs = build(), load_pairs(pairs_file)
    model = trainer.model.eval()

    def cls(sentence):
        with torch.no_grad():
            return model(**trainer.processing_class(sentence, return_tensors="pt")).last_hidden_state[0, 0]

    cosines = [
        torch.cosine_similarity(cls(a), cls(b), dim=0).item() for a, b in zip(pairs.sentences1, pairs.sentences2)
    ]
    expected = 100 * spearmanr(cosines, pairs.scores).statistic
    assert trainer.evaluate()["eval_spearman"] == pytest.approx(expected, abs=1e-4)


def test_best_checkpoint_is_kept_and_loaded(build, monkeypatch):
    trainer = build(eval_steps=1, save_total_limit=2, callbacks=[weights := WeightsAtEvaluation()])
    scores = iter([10.0, 40.0, 90.0, 50.0, 20.0])  # before, and after each step
    monkeypatch.setattr(
        pairs_module,
        "score_pairs",
        lambda encode, pairs: {"spearman": next(scores), "alignment": 0.0, "uniformity": 0.0},
    )
    trainer.train()
    assert trainer.state.best_global_step == 2
    kept = sorted(path.name for path in Path(trainer.args.output_dir).glob("checkpoint-*"))
    assert kept == ["checkpoint-2", "checkpoint-4"]
    for name, value in trainer.model.state_dict().items():
        torch.testing.assert_close(value, weights.at[2][name])
    assert any(not torch.equal(weights.at[2][name], weights.at[4][name]) for name in weights.at[2])


BETWEEN = dict(eval_steps=1, save_steps=2, metric_for_best_model="own", greater_is_better=True, save_total_limit=9)


@pytest.mark.parametrize(
    "scores, kept", [([0.1, 0.2, 0.5, 0.9, 0.3], 2), ([0.1, 0.9, 0.3, 0.2, 0.5], 4), ([0.1, 0.5, 0.5, 0.2, 0.5], 2)]
)
def test_the_best_of_the_checkpoints_is_kept_if_a_step_between_them_was_better(bert, arguments, caplog, scores, kept):
    """Its step and its score are those of the record and of the summary, and a resumed run keeps it, too."""

    def train(resume=None, stop=()) -> InforMinTrainer:
        weights, data = WeightsAtEvaluation(), lambda encode: {"own": scores[trainer.state.global_step]}
        how = dict(train_dataset=SENTENCES, eval_dataset=data, callbacks=[weights, *stop])
        trainer = InforMinTrainer(str(bert), arguments(**BETWEEN), **how)
        trainer.train(resume)
        if stop:
            return trainer
        record = trainer.record()
        assert record.chosen and record.kept_step == kept
        assert f"{scores[kept]:.4g} after (step {kept})" in table_of(trainer, "run")
        assert resume or all(torch.equal(value, weights.at[kept][name]) for name, value in weights_of(trainer).items())
        return trainer

    whole = train()
    assert f"The weights of step {kept} are kept" in caplog.text
    assert_same(weights_of(train("last")), weights_of(whole))
    shutil.rmtree(whole.args.output_dir)
    stop = StopOnSignal()
    stop.received = signal.SIGTERM
    assert train(stop=[stop]).state.global_step == 1  # with a checkpoint that the whole run does not have
    assert_same(weights_of(train("last")), weights_of(whole))


def test_without_the_best_checkpoint_at_the_end_the_last_step_is_named(bert, arguments):
    scores = iter([0.1, 0.2, 0.9, 0.4, 0.3])
    args = arguments(**BETWEEN, load_best_model_at_end=False)
    trainer = InforMinTrainer(
        str(bert), args, train_dataset=SENTENCES, eval_dataset=lambda encode: {"own": next(scores)}
    )
    trainer.train()
    assert trainer.record().kept_step == 4 and not trainer.record().chosen
    assert "0.3 after (step 4)" in table_of(trainer, "run")


class EvaluatesOther(TrainerCallback):
    """Scores other data at the end of step 1, and may then interrupt the run, as Ctrl-C does in a notebook."""

    def __init__(self, error=None, **how):
        self.trainer: InforMinTrainer
        self.error, self.how = error, how

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 1:
            self.trainer.evaluate(lambda encode: {"other": 0.5}, **self.how)
            if self.error:
                raise self.error


@pytest.mark.parametrize("prefix", ["eval", "test"])
@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_other_data_may_be_scored_in_training_and_after_an_interruption(build, prefix, error):
    trainer = build(callbacks=[callback := EvaluatesOther(error, metric_key_prefix=prefix)])
    callback.trainer = trainer
    with pytest.raises(error) if error else nullcontext():
        trainer.train()
    assert logged(trainer, f"{prefix}_other") == [0.5]
    assert trainer.evaluate(lambda encode: {"other": 0.7}, metric_key_prefix=prefix)[f"{prefix}_other"] == 0.7
    record = trainer.record()
    assert [entry["step"] for entry in record.history] == ([0] if error else [0, 2, 4])
    assert all("other" not in entry for entry in record.history)
    assert record.chosen is (error is None)


def test_training_continues_with_an_undefined_score(build, monkeypatch, caplog):
    """A warning is logged, the other scores select the checkpoint, and the final table shows no NaN."""

    def score(encode, pairs):
        if trainer.state.global_step == 1:
            raise UndefinedScoreError("all cosines are equal")
        return {"spearman": 10.0 + trainer.state.global_step, "alignment": 0.5, "uniformity": -1.0}

    monkeypatch.setattr(pairs_module, "score_pairs", score)
    trainer = build(max_steps=3, eval_steps=1, save_total_limit=2)
    trainer.train()
    assert "No score of pairs.tsv at step 1: all cosines are equal." in caplog.text
    found = {entry["step"]: entry["eval_spearman"] for entry in trainer.state.log_history if "eval_spearman" in entry}
    assert math.isnan(found.pop(1)) and found == {0: 10.0, 2: 12.0, 3: 13.0}
    assert trainer.state.best_global_step == 3
    table = table_of(trainer, "folder")
    assert "10.00 before, 13.00 after (step 3)" in table and "nan" not in table


def test_loading_the_best_checkpoint_logs_no_warning(build, monkeypatch):
    """The tied weights of the LM head are not in the file, and are not missing either."""
    import transformers.trainer

    warnings = []
    monkeypatch.setattr(transformers.trainer.logger, "warning", lambda message, *args: warnings.append(message))
    trainer = build(mlm_weight=0.1, max_steps=1, eval_steps=1)
    trainer.train()
    assert trainer.state.best_model_checkpoint
    assert [message for message in warnings if "keys" in message] == []


SENTENCES = make_sentences(64)
TITLES = LabeledSentences("titles.tsv", SENTENCES[:24], [sentence.split()[0] for sentence in SENTENCES[:24]])
SEARCH_PAIRS = Collection.of_pairs("faq.tsv", SENTENCES[:8], SENTENCES[8:16], SENTENCES[16:30])


def test_all_evaluation_sets_are_scored_logged_and_recorded(bert, arguments, pairs_file, capsys):
    """Any of their metrics can select the checkpoint."""
    args = arguments(metric_for_best_model="recall_10", max_steps=2, eval_steps=1)
    trainer = InforMinTrainer(str(bert), args, train_dataset=SENTENCES, eval_dataset=[TITLES, SEARCH_PAIRS, pairs_file])
    before = trainer.evaluate()
    expected = score_labels(trainer.encode, TITLES)
    assert [before[f"eval_{name}"] for name in LABELS] == pytest.approx([expected[name] for name in LABELS])
    trainer.train()
    record = trainer.record()
    assert [entry["step"] for entry in record.history] == [0, 1, 2]
    assert all(entry.keys() == {"step", *ALL} for entry in record.history)
    assert record.history[0]["v_measure"] == before["eval_v_measure"]
    kept = max(record.history[1:], key=lambda entry: entry["recall_10"])["step"]
    assert record.kept_step == kept and record.options["metric_for_best_model"] == "eval_recall_10"
    assert record.development == "pairs.tsv, titles.tsv, faq.tsv"
    names = {"pairs": "pairs.tsv", "labels": "titles.tsv", "retrieval": "faq.tsv"}
    assert record.development_sets == [{"kind": kind, "name": name} for kind, name in names.items()]
    table = " ".join(table_of(trainer, "folder").split())
    assert f"titles.tsv, V-measure {before['eval_v_measure']:.2f} before, " in table
    assert "faq.tsv, recall@10" in table and "titles.tsv V-measure" in capsys.readouterr().out


def test_without_pairs_the_first_metric_selects_the_checkpoint(bert, arguments):
    how = dict(train_dataset=SENTENCES, eval_dataset=[SEARCH_PAIRS, TITLES])
    trainer = InforMinTrainer(str(bert), arguments(max_steps=2, eval_steps=1), **how)
    args, metric = trainer.args, "eval_v_measure"
    assert args.metric_for_best_model == metric and args.greater_is_better
    trainer.train()
    scored = {entry["step"]: entry[metric] for entry in trainer.state.log_history if metric in entry}
    assert trainer.state.best_metric == max(scored[1], scored[2]) and "eval_spearman" not in str(trainer.state)
    with raises_usage(option="greater_is_better"):
        InforMinTrainer(str(bert), arguments(greater_is_better=False), **how)


@pytest.mark.parametrize("metric", ["mrr_10", "eval_spearman"])
def test_metric_that_is_not_scored_is_rejected(bert, arguments, metric):
    with raises_usage(option="metric_for_best_model", needed="v_measure, "):
        InforMinTrainer(
            str(bert), arguments(metric_for_best_model=metric), train_dataset=SENTENCES, eval_dataset=TITLES
        )


def test_the_summary_of_a_resumed_run_has_the_same_order(build):
    """Trainer sorts the entries of the log by name when it saves them."""
    trainer = build(max_steps=1, eval_steps=1)
    trainer.train()
    table = table_of(trainer, "run")
    trainer.state.log_history = [dict(sorted(entry.items())) for entry in trainer.state.log_history]
    assert table_of(trainer, "run") == table and table.index("Spearman") < table.index("alignment")
    assert list(trainer.record().history[0])[:3] == list(PAIRS)


def test_the_summary_says_that_training_lowered_the_score(build, monkeypatch):
    scores = iter([50.0, 49.0])
    flat = {"alignment": 0.0, "uniformity": 0.0}
    monkeypatch.setattr(pairs_module, "score_pairs", lambda encode, pairs: flat | {"spearman": next(scores)})
    trainer = build(max_steps=1, eval_steps=1)
    trainer.train()
    assert "made this encoder worse" in table_of(trainer, "run")


def test_an_evaluation_on_other_data_in_a_callback_does_not_replace_that_of_the_run(build):
    class EvaluatesAfterEachStep(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            trainer.evaluate(lambda encode: {"gap": 1.0}, metric_key_prefix="test")

    trainer = build(callbacks=[EvaluatesAfterEachStep()])
    trainer.train()
    assert [entry["step"] for entry in trainer.record().history] == [0, 2, 4]
    assert trainer.state.best_metric is not None
    assert trainer.record().chosen
