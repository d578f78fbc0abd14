"""InforMinTrainer: terms, logging, gradient accumulation, NaN losses, and Trainer's own features."""

import json
import math
from pathlib import Path

import pytest
import torch
from transformers import TrainerCallback, TrainerState

from informin.errors import NonFiniteLossError, UndefinedScoreError, UsageError
from informin.evaluation import load_pairs
from informin.evaluation import pairs as pairs_module
from informin.evaluation.development import as_development
from informin.evaluation.labels import LabeledSentences, score_labels
from informin.evaluation.measures import ALL, LABELS, SEARCH
from informin.evaluation.retrieval import RetrievalPairs
from informin.objectives.contrast import contrast
from informin.objectives.masked_lm import masked_lm
from informin.objectives.reconstruction import reconstruction
from informin.objectives.terms import Masking
from informin.training.history import logged_terms
from informin.training.report import summary
from informin.views.stacking import StackedViews, step_seed
from tests.conftest import make_sentences, raises_usage
from trainer_informin import InforMinTrainer


@pytest.fixture
def build(encoder, pairs_file, arguments):
    """Build a trainer on 64 sentences; keywords are training arguments."""

    def make(callbacks=None, **options):
        args = arguments(**options)
        return InforMinTrainer(str(encoder), args, make_sentences(64), pairs_file, callbacks=callbacks)

    return make


def logged(trainer, key):
    return [entry[key] for entry in trainer.state.log_history if key in entry]


class Gradients(TrainerCallback):
    """Store the gradients of the first optimizer step."""

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        if state.global_step == 0:
            self.kept = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    "options",
    [
        dict(objective="simcse"),
        dict(objective="simcse", projection_head="none"),
        dict(objective="informin"),
        dict(objective="informin", mlm_weight=0.1),
        dict(objective="informin", mlm_weight=0.1, masked_views=True, projection_head="none"),
        dict(objective="scd", projector_size=16, projection_head="none", decorrelation_weight=0.1),
        dict(objective="scd", projector_size=16, projection_head="none", mlm_weight=0.1),
        dict(objective="micse", queue_size=24),
        dict(
            objective="micse",
            queue_size=24,
            attention_mi_form="reference",
            projection_head="none",
            view_dropout=[0.1, 0.2],
        ),
        dict(objective="informin", attention_mi_weight=0.1, queue_size=16, decorrelation_weight=0.1, projector_size=8),
    ],
    ids=lambda options: "-".join(str(value) for value in options.values()),
)
def test_training_moves_every_parameter(build, options):
    trainer = build(**options)
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    trainer.args.load_best_model_at_end = False
    trainer.train()
    # Positions past the longest sentence and words that no sentence has get no gradient; the tables move elsewhere.
    still = [name for name, p in trainer.model.named_parameters() if torch.equal(p, before[name])]
    assert still == []


def test_terms_are_logged_unweighted_and_sum_to_the_loss(build):
    trainer = build(reconstruction_weight=3.0, mlm_weight=0.1, include_num_input_tokens_seen="all")
    trainer.train()
    entries = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(entries) == 4
    for entry in entries:
        terms = logged_terms(entry)
        assert list(terms) == ["contrast", "reconstruction", "mlm"] and entry["num_input_tokens_seen"]
        total = terms["contrast"] + 3.0 * terms["reconstruction"] + 0.1 * terms["mlm"]
        assert entry["loss"] == pytest.approx(total, rel=1e-5)


def test_simcse_has_only_the_contrast_term(build):
    trainer = build(objective="simcse", max_steps=1)
    trainer.train()
    assert logged(trainer, "loss") == pytest.approx(logged(trainer, "terms/contrast"))
    assert not logged(trainer, "terms/reconstruction") and not logged(trainer, "terms/mlm")


def test_first_loss_is_the_objective_on_the_first_batch(build):
    """Compare with the pure functions, using the same random state."""
    trainer = build(objective="informin", reconstruction_weight=0.7, mlm_weight=0.2, temperature=0.1)
    seen = {}

    def watch(module, args, kwargs):
        seen.setdefault("rng", torch.get_rng_state())
        tensors = {name: value.clone() for name, value in kwargs.items() if isinstance(value, torch.Tensor)}
        seen.setdefault("inputs", tensors)

    hook = trainer.model.register_forward_pre_hook(watch, with_kwargs=True)
    trainer.args.eval_on_start = False
    weights = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.train()
    hook.remove()
    trainer.model.load_state_dict(weights)
    inputs = seen["inputs"]
    rows = {name: inputs[name][:16] for name in ("input_ids", "attention_mask")}
    rows = StackedViews(trainer.processing_class, Masking(0.15, of_views=False))(rows, step_seed(42, 0, 0, 0))
    assert torch.equal(rows["input_ids"], inputs["input_ids"])
    torch.set_rng_state(seen["rng"])
    outputs = trainer.model.train()(**inputs)
    z1, z2, _ = outputs.projection.chunk(3)
    assert len(outputs.lm_losses) == (rows["lm_labels"] >= 0).sum()
    expected = contrast(z1, z2, 0.1) + 0.7 * reconstruction(z1, z2) + 0.2 * masked_lm(outputs.lm_losses)
    assert logged(trainer, "loss")[0] == pytest.approx(expected.item(), rel=1e-5)


def test_raw_distances_log_the_norm_of_the_projection(build):
    trainer = build(reconstruction_form="squared_l2", reconstruction_weight=0.4, max_steps=1)
    trainer.train()
    assert logged(trainer, "projection_norm")[0] > 0
    assert logged(trainer, "loss")[0] == pytest.approx(
        logged(trainer, "terms/contrast")[0] + 0.4 * logged(trainer, "terms/reconstruction")[0], rel=1e-5
    )


@pytest.mark.parametrize("mlm_weight", [0.0, 0.3])
def test_gradient_accumulation_is_the_mean_of_the_micro_batches(build, mlm_weight):
    gradients = Gradients()
    trainer = build(
        [gradients],
        gradient_accumulation_steps=2,
        per_device_train_batch_size=8,
        mlm_weight=mlm_weight,
        max_grad_norm=0.0,
        max_steps=1,
    )
    for module in trainer.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    batches = []
    fetch = trainer.get_batch_samples

    def keep(*args):
        batches.extend(fetch(*args)[0])
        return list(batches), None

    trainer.get_batch_samples = keep
    weights = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.train()
    assert len(batches) == 2 and not torch.equal(batches[0]["input_ids"], batches[1]["input_ids"])
    trainer.model.load_state_dict(weights)
    trainer.model.train().zero_grad()
    for batch in batches:
        (trainer.compute_loss(trainer.model, batch) / 2).backward()
    for name, parameter in trainer.model.named_parameters():
        torch.testing.assert_close(gradients.kept[name], parameter.grad, rtol=1e-4, atol=1e-7, msg=name)


def test_micro_batches_and_processes_draw_different_masks(build, monkeypatch):
    trainer = build(mlm_weight=0.3, gradient_accumulation_steps=2, per_device_train_batch_size=8)
    batch = {name: torch.tensor([trainer.train_dataset[0][name]] * 8) for name in ("input_ids", "attention_mask")}
    drawn = []
    for process in (0, 1):
        monkeypatch.setattr(type(trainer.args), "process_index", process)
        drawn += trainer.get_batch_samples(iter([batch, batch]), 2, torch.device("cpu"))[0]
    assert len({str(rows["lm_labels"].tolist()) for rows in drawn}) == 4


def test_initial_mlm_loss_equals_that_of_the_pretrained_model(build, encoder):
    """Random weights would give about log V; the head is loaded from the checkpoint."""
    from transformers import AutoModelForMaskedLM

    trainer = build(mlm_weight=0.1)
    plain = AutoModelForMaskedLM.from_pretrained(encoder).eval()
    with torch.no_grad():  # confident predictions, so that random weights cannot pass by chance
        for model in (plain, trainer.model):
            model.base_model.embeddings.word_embeddings.weight.mul_(20)
    batch = trainer.processing_class(make_sentences(16), padding=True, return_tensors="pt")
    rows = StackedViews(trainer.processing_class, Masking(0.15, of_views=False))(batch, seed=3)
    inputs, labels = {name: rows[name] for name in ("input_ids", "attention_mask")}, rows["lm_labels"]
    ours = masked_lm(trainer.model.eval()(**inputs, lm_labels=labels).lm_losses)
    theirs = plain(**inputs, labels=labels).loss
    torch.testing.assert_close(ours, theirs)
    assert abs(ours.item() - math.log(plain.config.vocab_size)) > 0.1


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
    assert trainer.evaluate()["eval_spearman"] == pytest.approx(expected)


def test_best_checkpoint_is_kept_and_loaded(build, monkeypatch):
    trainer = build(max_steps=8, save_total_limit=2, callbacks=[weights := WeightsAtEvaluation()])
    scores = iter([10.0, 40.0, 90.0, 50.0, 20.0])  # before, steps 2, 4, 6, 8
    monkeypatch.setattr(
        pairs_module,
        "score_pairs",
        lambda encode, pairs: {"spearman": next(scores), "alignment": 0.0, "uniformity": 0.0},
    )
    trainer.train()
    assert trainer.state.best_global_step == 4
    kept = sorted(path.name for path in Path(trainer.args.output_dir).glob("checkpoint-*"))
    assert kept == ["checkpoint-4", "checkpoint-8"]
    for name, value in trainer.model.state_dict().items():
        torch.testing.assert_close(value, weights.at[4][name])
    assert any(not torch.equal(weights.at[4][name], weights.at[8][name]) for name in weights.at[4])


def test_training_continues_with_an_undefined_score(build, monkeypatch, caplog):
    """A warning is logged, the other scores select the checkpoint, and the final table shows no NaN."""

    def score(encode, pairs):
        if trainer.state.global_step == 2:
            raise UndefinedScoreError("all cosines are equal")
        return {"spearman": 10.0 + trainer.state.global_step, "alignment": 0.5, "uniformity": -1.0}

    monkeypatch.setattr(pairs_module, "score_pairs", score)
    trainer = build(max_steps=6, save_total_limit=2)
    trainer.train()
    assert "No score of pairs.tsv at step 2: all cosines are equal." in caplog.text
    found = {entry["step"]: entry["eval_spearman"] for entry in trainer.state.log_history if "eval_spearman" in entry}
    assert math.isnan(found.pop(2)) and found == {0: 10.0, 4: 14.0, 6: 16.0}
    assert trainer.state.best_global_step == 6
    table = summary(trainer.state, trainer.args, trainer.eval_dataset, 1.0, "folder")
    assert "10.00 before, 16.00 after (step 6)" in table and "nan" not in table


class WeightsAtEvaluation(TrainerCallback):
    def __init__(self):
        self.at = {}

    def on_evaluate(self, args, state, control, model=None, **kwargs):
        self.at[state.global_step] = {name: value.clone() for name, value in model.state_dict().items()}


class Poison(TrainerCallback):
    def __init__(self, after: int):
        self.after = after

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        if state.global_step == self.after:
            with torch.no_grad():
                model.mlp.dense.bias[0] = float("nan")


def test_nan_loss_stops_training_before_the_weights_change(build):
    trainer = build([Poison(after=2)])
    with pytest.raises(NonFiniteLossError, match=r"nan at step 3 \(contrast nan.*checkpoint-2"):
        trainer.train()
    assert trainer.state.global_step == 2


@pytest.mark.parametrize(
    "options, stopped_at",
    [
        ({}, 4),  # before the evaluation
        ({"eval_strategy": "no", "save_strategy": "steps", "save_steps": 2, "load_best_model_at_end": False}, 4),
        ({"eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": False}, 8),  # before the end
    ],
)
def test_losses_on_a_gpu_are_checked_before_weights_are_saved_or_used(build, options, stopped_at):
    """As on a GPU, training continues for some steps, but neither evaluates nor saves their weights."""
    trainer = build([Poison(after=2), weights := WeightsAtEvaluation()], max_steps=8, **options)
    trainer.losses.patience = 15
    with pytest.raises(NonFiniteLossError, match=r"nan at step 3 \(contrast nan"):
        trainer.train()
    assert trainer.state.global_step == stopped_at
    assert 4 not in weights.at
    saved = sorted(path.name for path in Path(trainer.args.output_dir).glob("checkpoint-*"))
    assert saved == (["checkpoint-2"] if stopped_at == 4 else [])


def test_losses_on_a_gpu_are_checked_after_some_steps(build):
    trainer = build(
        [Poison(after=2)], max_steps=8, eval_strategy="no", save_strategy="no", load_best_model_at_end=False
    )
    trainer.losses.patience = 3  # the fourth loss exceeds it
    with pytest.raises(NonFiniteLossError, match=r"nan at step 3 \(contrast nan"):
        trainer.train()
    assert trainer.state.global_step == 3


@pytest.mark.parametrize("optimizer", ["adamw_torch", "sgd"])
@pytest.mark.parametrize("scheduler", ["linear", "cosine", "constant_with_warmup"])
def test_optimizers_and_schedulers_of_trainer_work(build, optimizer, scheduler):
    trainer = build(optim=optimizer, lr_scheduler_type=scheduler, warmup_steps=1, eval_strategy="no")
    trainer.train()
    assert trainer.state.global_step == 4


def test_gradient_clipping_bounds_the_step(build):
    """With plain SGD at rate 1 the weights move by the clipped gradient."""
    trainer = build(optim="sgd", learning_rate=1.0, max_grad_norm=1e-3, max_steps=1, lr_scheduler_type="constant")
    trainer.args.load_best_model_at_end = False
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    trainer.train()
    moved = torch.stack([(p - before[name]).norm() for name, p in trainer.model.named_parameters()]).norm()
    assert moved.item() == pytest.approx(1e-3, rel=1e-2)


def test_bf16_trains_close_to_fp32(build):
    losses = []
    for bf16 in (False, True):
        trainer = build(bf16=bf16, eval_strategy="no")
        trainer.train()
        losses.append(logged(trainer, "loss"))
        assert trainer.model.base_model.embeddings.word_embeddings.weight.dtype == torch.float32
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)


def test_tensorboard_gets_every_term(build, monkeypatch, tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "events"))
    build(report_to="tensorboard", mlm_weight=0.1).train()
    (folder,) = {path.parent for path in (tmp_path / "events").rglob("events.out.tfevents.*")}
    tags = set(EventAccumulator(str(folder)).Reload().Tags()["scalars"])
    terms = {"train/loss", *(f"train/terms/{name}" for name in ("contrast", "reconstruction", "mlm"))}
    assert terms | {"eval/spearman", "eval/alignment", "eval/uniformity"} <= tags


def test_checkpoints_hold_no_pickled_options_and_no_truncation(build):
    trainer = build(max_steps=2)
    trainer.train()
    folder = Path(trainer.args.output_dir) / "checkpoint-2"
    assert not (folder / "training_args.bin").exists()
    saved = json.loads((folder / "tokenizer.json").read_text())
    assert saved["truncation"] is None and saved["padding"] is None


def test_fewer_sentences_than_a_batch_are_rejected(build):
    with raises_usage(found="Found 64 sentences, fewer than one batch of 65", fix="Add sentences"):
        build(per_device_train_batch_size=65)


def test_mlm_weight_requires_a_model_with_an_lm_head(build):
    trainer = build()
    trainer.args.mlm_weight = 0.1
    with pytest.raises(UsageError) as error:
        InforMinTrainer(trainer.model, trainer.args, trainer.train_dataset, None, trainer.processing_class)
    assert "lm_head = False" in str(error.value)


def test_loading_the_best_checkpoint_logs_no_warning(build, monkeypatch):
    """The tied weights of the LM head are not in the file, and are not missing either."""
    import transformers.trainer

    warnings = []
    monkeypatch.setattr(transformers.trainer.logger, "warning", lambda message, *args: warnings.append(message))
    trainer = build(mlm_weight=0.1)
    trainer.train()
    assert trainer.state.best_model_checkpoint
    assert [message for message in warnings if "keys" in message] == []


@pytest.mark.parametrize("after, worse", [(49.0, True), (50.0, False), (51.0, False)])
def test_report_notes_that_training_lowered_the_score(arguments, pairs_file, after, worse):
    entry = {"eval_alignment": 0.1, "eval_uniformity": -1.0}
    scored = [entry | {"step": step, "eval_spearman": score} for step, score in ((0, 50.0), (2, after))]
    state = TrainerState(log_history=scored, global_step=2)
    args = arguments(metric_for_best_model="eval_spearman")
    table = summary(state, args, as_development(pairs_file), None, "run")
    assert ("made this encoder worse" in " ".join(table.split())) is worse


SENTENCES = make_sentences(64)
TITLES = LabeledSentences("titles.tsv", SENTENCES, [sentence.split()[0] for sentence in SENTENCES])
SEARCH_PAIRS = RetrievalPairs("faq.tsv", SENTENCES[:8], SENTENCES[8:16], SENTENCES[16:30])


def test_all_evaluation_sets_are_scored_logged_and_recorded(bert, arguments, pairs_file, capsys):
    """Any of their metrics can select the checkpoint."""
    args = arguments(metric_for_best_model="recall_10", verbose=True)
    trainer = InforMinTrainer(str(bert), args, SENTENCES, [TITLES, SEARCH_PAIRS, pairs_file])
    before = trainer.evaluate()
    expected = score_labels(trainer.encode, TITLES)
    assert [before[f"eval_{name}"] for name in LABELS] == pytest.approx([expected[name] for name in LABELS])
    trainer.train()
    record = trainer.record()
    assert [entry["step"] for entry in record["history"]] == [0, 2, 4]
    assert all(list(entry) == ["step", *ALL] for entry in record["history"])
    assert record["history"][0]["v_measure"] == before["eval_v_measure"]
    kept = max(record["history"][1:], key=lambda entry: entry["recall_10"])["step"]
    assert record["kept_step"] == kept and record["options"]["metric_for_best_model"] == "recall_10"
    assert record["development"] == "pairs.tsv, titles.tsv, faq.tsv"
    names = {"pairs": "pairs.tsv", "labels": "titles.tsv", "retrieval": "faq.tsv"}
    assert record["development_sets"] == [{"kind": kind, "name": name} for kind, name in names.items()]
    table = " ".join(summary(trainer.state, args, trainer.eval_dataset, None, "folder").split())
    assert f"titles.tsv, V-measure {before['eval_v_measure']:.2f} before, " in table
    assert "faq.tsv, recall@10" in table and "titles.tsv V-measure" in capsys.readouterr().out


@pytest.mark.parametrize("given, metric", [([TITLES], "eval_v_measure"), ([SEARCH_PAIRS, TITLES], "eval_v_measure")])
def test_without_pairs_the_first_metric_selects_the_checkpoint(bert, arguments, given, metric):
    trainer = InforMinTrainer(str(bert), arguments(), SENTENCES, given)
    args = trainer.args
    assert args.metric_for_best_model == metric and args.greater_is_better
    trainer.train()
    scored = {entry["step"]: entry[metric] for entry in trainer.state.log_history if metric in entry}
    assert trainer.state.best_metric == max(scored[2], scored[4]) and "eval_spearman" not in str(trainer.state)


@pytest.mark.parametrize("metric", ["mrr_10", "eval_spearman"])
def test_metric_that_is_not_scored_is_rejected(bert, arguments, metric):
    """It is rejected before anything is loaded."""
    found = f"is {metric.removeprefix('eval_')}, which is not scored in this run"
    with raises_usage(option="metric_for_best_model", found=found, needed="v_measure, "):
        InforMinTrainer("no-such-model", arguments(metric_for_best_model=metric), SENTENCES, TITLES)


@pytest.mark.parametrize("metric, worse", [("spearman", False), ("v_measure", True), ("alignment", True)])
def test_note_about_a_lower_score_uses_the_selecting_metric(arguments, pairs_file, metric, worse):
    better, lower = {"eval_spearman": 60.0, "eval_alignment": 0.3}, {"eval_spearman": 50.0, "eval_alignment": 0.2}
    rest = dict.fromkeys((f"eval_{name}" for name in ALL), 1.0)
    scored = [rest | lower | {"step": 0, "eval_v_measure": 70.0}, rest | better | {"step": 2, "eval_v_measure": 60.0}]
    development = as_development([pairs_file, TITLES, SEARCH_PAIRS])
    assert set(development.measures) == {*ALL} >= {*SEARCH}
    args = arguments(metric_for_best_model=metric)
    table = summary(TrainerState(log_history=scored, global_step=2), args, development, None, "run")
    assert ("is the one before the first step" in table) is worse
