"""Training with a guide: the effect of each option, and options that are rejected."""

import shutil

import pytest
import torch
from sentence_transformers import SentenceTransformer

from informin.cli import train
from informin.model.records import RunRecord
from tests.conftest import how_to_train, make_sentences, raises_usage, save_bert, save_sentence_transformer
from tests.training.helpers import assert_same, weights_of
from trainer_informin import InforMinTrainer

GUIDED = dict(objective="guided", projection_head="none")
SIMILARITY = GUIDED | dict(guided_weight=1.0)
WAYS = {
    "replay": GUIDED | dict(replay_weight=1.0, replay_size=5),
    "all": GUIDED | dict(guided_weight=1.0, distillation_weight=1.0, replay_weight=1.0, replay_size=5),
    "negatives": dict(objective="simcse", false_negative_fraction=0.1),
    "beside": dict(objective="micse", queue_size=20, distillation_weight=0.5, replay_weight=0.5, replay_size=5),
}
TOKENS = [{"input_ids": [1, 2], "attention_mask": [1, 1]}] * 20


@pytest.fixture
def build(encoder, tmp_path):
    def make(model=None, sentences=40, **options):
        common = dict(
            output_dir=str(tmp_path / "run"),
            use_cpu=True,
            per_device_train_batch_size=8,
            max_steps=3,
            logging_steps=1,
            learning_rate=1e-3,
            disable_tqdm=True,
            eval_strategy="no",
            save_strategy="no",
            bf16=False,
            warmup_steps=0,
            guide_cache=str(tmp_path / "guides"),
        )
        data = make_sentences(sentences) if isinstance(sentences, int) else sentences
        return InforMinTrainer(model or str(encoder), train_dataset=data, **how_to_train(**(common | options)))

    return make


@pytest.mark.parametrize("way", WAYS)
def test_every_weight_is_trained_and_every_term_logged(build, way):
    trainer = build(**WAYS[way])
    before = weights_of(trainer)
    trainer.train()
    still = {name for name, p in trainer.model.named_parameters() if p.requires_grad and torch.equal(p, before[name])}
    assert not {name for name in still if "position_embeddings" not in name and "token_type" not in name}
    entries = [entry for entry in trainer.state.log_history if "loss" in entry]
    for term in trainer.terms:
        assert all(f"terms/{term.name}" in entry for entry in entries)


def test_first_step_without_dropout_is_at_distance_zero(build):
    """The model is its own guide: before training, distillation and replay have nothing to correct."""
    trainer = build(**WAYS["all"], max_steps=1)
    for module in trainer.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    trainer.train()
    (entry,) = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert entry["terms/distillation"] == pytest.approx(0, abs=1e-3)  # the cache is float16
    assert entry["terms/replay"] == pytest.approx(0, abs=1e-3)


def test_resume_is_bit_exact(build, tmp_path):
    options = WAYS["all"] | dict(save_strategy="steps", save_steps=1, save_total_limit=9)
    whole = build(**options)
    whole.train()
    shutil.rmtree(tmp_path / "run" / "checkpoint-3")
    shutil.rmtree(tmp_path / "run" / "checkpoint-2")
    again = build(**options)
    again.train("last")
    assert_same(weights_of(again), weights_of(whole))
    with raises_usage(option="resume_from_checkpoint", found="guide_model"):
        shutil.rmtree(tmp_path / "run" / "checkpoint-3")
        build(**options, guide_model=str(st_guide(tmp_path))).train("last")


def st_guide(folder):
    return save_sentence_transformer(folder / "guide-st", save_bert(folder / "guide-bert", initializer_range=0.1))


@pytest.mark.parametrize("changed", ["model", "sentences"])
def test_a_run_with_another_guide_of_the_same_name_is_not_resumed(build, bert, tmp_path, changed):
    model, general = st_guide(tmp_path), tmp_path / "general.txt"
    general.write_text("\n".join(make_sentences(9)))
    options = WAYS["replay"] | dict(guide_model=str(model), replay_file=str(general), save_strategy="steps")
    build(**options, max_steps=1).train()
    build(**options, max_steps=1).train("last")
    if changed == "model":
        shutil.rmtree(model)
        save_sentence_transformer(model, bert)
    else:
        general.write_text("\n".join(make_sentences(9, seed=1)))
    with raises_usage(option="resume_from_checkpoint", found="general sentences"):
        build(**options, max_steps=1).train("last")


def test_runs_with_the_same_cache_share_the_guide(build, tmp_path):
    build(**SIMILARITY)
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "guides").iterdir()}
    build(**SIMILARITY)
    assert files and files == {path: path.stat().st_mtime_ns for path in (tmp_path / "guides").iterdir()}


def test_equal_sentences_have_no_false_negatives(build):
    for similarity in ("guide", "model"):
        options = WAYS["negatives"] | dict(false_negative_similarity=similarity, max_steps=1)
        trainer = build(**options, sentences=["the dog sleeps"] * 16)
        trainer.train()
        assert trainer.state.log_history[0]["terms/contrast"] == 0


@pytest.mark.parametrize("stored, prompt", [("", "the dog "), ("the dog ", ""), ("the dog ", None)])
def test_the_guide_reads_the_prompt_of_training(build, encoder, tmp_path, stored, prompt):
    """Without dropout, the model before the first step is its guide."""
    model = SentenceTransformer(str(save_sentence_transformer(tmp_path / "prompted", encoder)), device="cpu")
    model.prompts, model.default_prompt_name = {"own": stored}, "own"
    options = GUIDED | dict(distillation_weight=1.0, replay_weight=1.0, replay_size=5, view_dropout=[0.0])
    trainer = build(model, prompt=prompt, max_steps=1, **options)
    trainer.train()
    first = trainer.state.log_history[0]
    assert abs(first["terms/distillation"]) < 1e-6 and abs(first["terms/replay"]) < 1e-6


def test_another_model_guides(build, tmp_path):
    guided = build(**SIMILARITY, guide_model=str(st_guide(tmp_path)))
    guided.train()
    assert guided.record().options["guide_model"] == "guide-st"


@pytest.mark.parametrize(
    "options, sentences, option",
    [
        (dict(objective="simcse", guide_model="x"), 40, "guide_model"),
        (dict(objective="simcse", replay_file="x"), 40, "replay_file"),
        (WAYS["replay"] | dict(replay_file="gone.txt"), 40, "replay_file"),
        (SIMILARITY, TOKENS, "train_dataset"),
        (SIMILARITY | dict(guided_neighbors=50), 40, "guided_neighbors"),
        (WAYS["replay"] | dict(view_dropout=[0.1, 0.2]), 40, "view_dropout"),
    ],
)
def test_unusable_options_are_rejected(build, options, sentences, option):
    with raises_usage(option=option):
        build(sentences=sentences, **options)


def test_a_guide_without_pooling_is_an_error_about_the_guide(build, bert):
    """The option `pooler` is that of the encoder to train."""
    with raises_usage("guide_model"):
        build(**SIMILARITY, guide_model=str(bert))


def test_adapt_recipe_on_the_command_line(command, tmp_path):
    """Drift is measured by default."""
    argv = command(eval_pairs=None, eval_steps=None, max_steps=2, per_device_train_batch_size=16, replay_size=5)
    assert train.main([*argv, "--recipe=adapt"]) == 0
    record = RunRecord.load(tmp_path / "run")
    assert record.options["objective"] == "guided" and record.options["distillation_weight"] == 15
    assert record.drift and record.history == []
