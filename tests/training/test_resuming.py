"""Resuming a run: the same command gives the same weights, and changes are refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import TrainerCallback

from informin.cli import train
from informin.errors import SaveError
from informin.evaluation import pairs
from informin.files import write_manifest
from informin.model.records import RunRecord
from informin.training.checkpoints import LAST, check_same_run, checkpoint_to_resume, complete_checkpoints
from tests.conftest import make_sentences, raises_usage, save_bert, save_pairs
from tests.training.helpers import assert_same, assert_same_files, stream_of, weights_of
from trainer_informin import InforMinTrainer

RESUME = "--resume_from_checkpoint"
STEPS = dict(eval_strategy="no", save_strategy="steps", save_steps=1, save_total_limit=9)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def checkpoint(folder: Path, step: int, optimizer: bool = True) -> Path:
    """Save a complete checkpoint with tiny files."""
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": []}))
    for name in ("model.safetensors", "training.json", *(["scheduler.pt"] if optimizer else [])):
        (path / name).write_text("{}")
    write_manifest(path)
    return path


def test_resuming_gives_the_same_weights(command, interrupted_run, finished_run, tmp_path, sentences_file):
    """File names, logging, the number of checkpoints and the description may change."""
    moved = shutil.copy(sentences_file, tmp_path / "moved.txt")
    free = dict(train_file=moved, logging_steps=1, save_total_limit=3, run_name="x", license="mit")
    assert train.main([*command(**free), RESUME]) == 0
    assert_same_files(interrupted_run / "checkpoint-4", finished_run / "checkpoint-4")


CHANGED = dict(  # and what the error shows
    seed=(7, "; seed 42, now 7"),
    temperature=(0.1, "; temperature 0.05, now 0.1"),
    per_device_train_batch_size=(8, "; sentences_per_step 16, now 8"),
    learning_rate=(2e-3, "; learning_rate 0.001, now 0.002"),
    max_steps=(6, "; max_steps 4, now 6"),
    optim=("adafactor", "; optim adamw_torch"),
    mlm_weight=(0.1, "; mlm_weight not set, now 0.1"),
    max_train_samples=(64, "; the sentences, 96 from"),
    metric_for_best_model=("alignment", "; metric_for_best_model eval_spearman, now eval_alignment"),
    accelerator_config=('{"use_seedable_sampler": false}', "; use_seedable_sampler True, now False"),
)


def test_changed_options_are_refused(command, interrupted_run, tmp_path, capsys):
    before = files(interrupted_run)
    other = save_bert(tmp_path / "other-bert", num_hidden_layers=1, initializer_range=0.1)
    everything = {name: value for name, (value, _) in CHANGED.items()}
    everything |= {"model_name": other, "eval_pairs": save_pairs(tmp_path / "other.tsv", seed=5)}
    for changes in (dict(objective="simcse"), everything):
        assert train.main([*command(**changes), RESUME]) == 2
        error = capsys.readouterr().err
        assert "belongs to another run" in error and files(interrupted_run) == before
        shown = [text for _, text in CHANGED.values()] + ["weights_sha256", "; the evaluation data, pairs"]
        if "objective" in changes:
            shown = ["objective informin, now simcse"]
        assert [text for text in shown if text not in error] == [], error


@pytest.mark.parametrize("without", ["data", "evaluations"])
def test_a_run_that_chooses_its_best_checkpoint_is_not_resumed_without_scores(bert, arguments, pairs_file, without):
    data = dict(train_dataset=make_sentences(64))
    first = InforMinTrainer(str(bert), arguments(), eval_dataset=pairs_file, **data)
    first.train()
    folder = Path(first.args.output_dir)
    shutil.rmtree(folder / "checkpoint-4")
    before = files(folder)
    args = arguments(eval_strategy="no") if without == "evaluations" else arguments()
    again = InforMinTrainer(str(bert), args, eval_dataset=None if without == "data" else pairs_file, **data)
    with raises_usage(option="resume_from_checkpoint", found="the evaluation data, pairs"):
        again.train("last")
    assert files(folder) == before


@pytest.mark.parametrize("change", ["dropout", "tokenizer"])
def test_changed_configuration_or_tokenizer_is_refused(command, interrupted_run, bert, tmp_path, capsys, change):
    other = shutil.copytree(bert, tmp_path / "models" / "tiny-bert")
    name, old, new = {
        "dropout": ("config.json", '"hidden_dropout_prob": 0.1', '"hidden_dropout_prob": 0.3'),
        "tokenizer": ("tokenizer.json", '"dog"', '"hound"'),
    }[change]
    assert old in (other / name).read_text()
    (other / name).write_text((other / name).read_text().replace(old, new))
    assert train.main([*command(model_name=other), RESUME]) == 2
    assert "settings_sha256" in capsys.readouterr().err


def test_another_number_of_processes_and_other_streams_are_refused(finished_run, tmp_path):
    record = RunRecord.load(finished_run / "checkpoint-2")
    check_same_run(finished_run / "checkpoint-2", record)
    record.options = record.options | {"processes": 2}
    with raises_usage(option="resume_from_checkpoint", found="processes 1, now 2"):
        check_same_run(finished_run / "checkpoint-2", record)
    record = RunRecord.load(finished_run / "checkpoint-2")
    record.data = {"sources": ["other.txt"], "sha256": None, "sentences": None}
    with raises_usage(option="resume_from_checkpoint", found="the sentences"):
        check_same_run(finished_run / "checkpoint-2", record)


@pytest.mark.parametrize(
    "change, found",
    [
        ({"load_best_model_at_end": False}, "load_best_model_at_end True, now False"),
        ({"dispatch_batches": True}, "dispatch_batches False, now True"),
        ({"full_determinism": True}, "full_determinism False, now True"),
        ({"queue_size": 8}, "queue_size not set, now 8"),
    ],
)
def test_a_changed_option_is_shown_with_its_default(finished_run, change, found):
    """A record lacks most options that have their default."""
    record = RunRecord.load(finished_run / "checkpoint-2")
    record.options = record.options | change
    with raises_usage(option="resume_from_checkpoint", found=found):
        check_same_run(finished_run / "checkpoint-2", record)


@pytest.mark.parametrize("epochs", [None, 0.7])
def test_a_finished_run_takes_no_further_step(command, finished_run, tmp_path, epochs):
    """Four or five steps of an epoch of six; Trainer itself would continue the epoch."""
    options = dict(max_steps=None, num_train_epochs=epochs) if epochs else {}
    if epochs:
        assert train.main(command(**options)) == 0
    else:
        shutil.copytree(finished_run, tmp_path / "run")
    before = RunRecord.load(tmp_path / "run")
    assert train.main([*command(**options), RESUME]) == 0
    record = RunRecord.load(tmp_path / "run")
    assert record.sentences_per_second == before.sentences_per_second is not None
    assert record.steps == 4 + bool(epochs)
    assert [entry["step"] for entry in record.history] == [0, 2, 4] + [5] * bool(epochs)


def test_best_checkpoint_is_found_in_a_renamed_run(command, interrupted_run, finished_run, tmp_path):
    """The old name now belongs to another run."""
    renamed = interrupted_run.rename(tmp_path / "renamed")
    shutil.copytree(finished_run, interrupted_run)  # other weights under the old name
    (interrupted_run / "checkpoint-2" / "model.safetensors").write_bytes(b"not ours")
    assert train.main([*command(output_dir=renamed), RESUME]) == 0
    record, expected = RunRecord.load(renamed), RunRecord.load(finished_run)
    assert record.chosen and record.kept_step == expected.kept_step


def test_without_the_best_checkpoint_the_best_of_the_others_is_kept(command, interrupted_run, monkeypatch, caplog):
    (interrupted_run / "checkpoint-2").rename(interrupted_run / "checkpoint-3")
    state = json.loads((interrupted_run / "checkpoint-3" / "trainer_state.json").read_text())
    (interrupted_run / "checkpoint-3" / "trainer_state.json").write_text(json.dumps(state | {"best_global_step": 1}))
    write_manifest(interrupted_run / "checkpoint-3")
    low = {"spearman": -100.0, "alignment": 0.0, "uniformity": 0.0}
    monkeypatch.setattr(pairs, "score_pairs", lambda *_: low)
    assert train.main([*command(), RESUME]) == 0
    assert RunRecord.load(interrupted_run).kept_step == 4 and "that of step 1, which has no checkpoint" in caplog.text


def test_damaged_checkpoints_are_skipped_and_written_again(command, interrupted_run, finished_run, caplog):
    broken = shutil.copytree(finished_run / "checkpoint-4", interrupted_run / "checkpoint-4")
    assert checkpoint_to_resume(interrupted_run, LAST).name == "checkpoint-4"
    weights, manifest = broken / "model.safetensors", next(broken.glob("*manifest*"))
    manifest.rename(interrupted_run / "manifest")
    assert checkpoint_to_resume(interrupted_run, LAST).name == "checkpoint-2"
    (interrupted_run / "manifest").rename(manifest)
    for damaged in (weights.read_bytes()[:-1], weights.read_bytes()[:-1] + b"x"):  # truncated, and changed
        weights.write_bytes(damaged)
        assert checkpoint_to_resume(interrupted_run, LAST).name == "checkpoint-2"
    (broken / "stray").write_text("of the damaged one")
    assert train.main([*command(), RESUME]) == 0
    assert "checkpoint-4" in caplog.text and "checkpoint-2" in caplog.text
    assert_same_files(interrupted_run / "checkpoint-4", finished_run / "checkpoint-4")
    assert not (broken / "stray").exists()


def test_a_damaged_best_checkpoint_is_not_loaded(build, monkeypatch, caplog):
    scores = iter([10.0, 90.0, 50.0])
    flat = {"alignment": 0.0, "uniformity": 0.0}
    monkeypatch.setattr(pairs, "score_pairs", lambda *_: flat | {"spearman": next(scores)})
    trainer = build()
    save = trainer._save_checkpoint

    def save_and_break(*args):
        save(*args)
        trainer.background.wait()
        best = Path(trainer.args.output_dir, "checkpoint-2", "model.safetensors")
        best.write_bytes(best.read_bytes()[:-1])

    trainer._save_checkpoint = save_and_break
    trainer.train()
    assert trainer.state.best_global_step == 2 and not trainer.record().chosen
    assert "damaged" in caplog.text


FULL = (OSError(28, "No space left on device"), Exception("No space left on device (os error 28)"))


@pytest.mark.parametrize("error", FULL, ids=["of the system", "of tokenizers"])
def test_a_full_disk_ends_the_run_with_the_last_checkpoint_intact(build, monkeypatch, error):
    trainer = build(**STEPS)
    write = trainer.save_model

    def full(folder=None, **kwargs):
        if "checkpoint-2" in str(folder):
            raise error
        write(folder, **kwargs)

    monkeypatch.setattr(trainer, "save_model", full)
    with pytest.raises(SaveError, match="checkpoint-2"):
        trainer.train()
    assert [path.name for path in complete_checkpoints(trainer.args.output_dir)] == ["checkpoint-1"]
    assert not Path(trainer.args.output_dir, "checkpoint-2").exists()


def test_which_checkpoint_is_resumed(tmp_path):
    with raises_usage(option="resume_from_checkpoint"):
        checkpoint_to_resume(tmp_path, LAST)
    for step in (2, 9, 10):
        checkpoint(tmp_path / "run", step)
    assert checkpoint_to_resume(tmp_path / "run", True).name == "checkpoint-10"
    with raises_usage(option="resume_from_checkpoint", found="is older than"):
        checkpoint_to_resume(tmp_path / "run", str(tmp_path / "run" / "checkpoint-9"))
    other = tmp_path / "run" / "checkpoint-9"
    assert checkpoint_to_resume(tmp_path / "new", other) == other
    with raises_usage(option="output_dir"):
        checkpoint(tmp_path / "used", 1)
        checkpoint_to_resume(tmp_path / "used", other)
    with raises_usage(option="resume_from_checkpoint"):
        checkpoint_to_resume(tmp_path / "run", tmp_path / "nowhere")
    with raises_usage(option="resume_from_checkpoint", found="optimizer state"):
        checkpoint(tmp_path / "light", 3, optimizer=False)
        checkpoint_to_resume(tmp_path / "light", LAST)


def test_a_run_that_was_killed_in_its_first_save_is_started_in_another_folder(command, tmp_path, capsys):
    (tmp_path / "run" / "checkpoint-2").mkdir(parents=True)
    for words in ([], ["--resume_from_checkpoint"]):
        assert train.main([*command(), *words]) == 2
        assert "another folder" in capsys.readouterr().err


def test_checkpoints_of_another_program_are_not_overwritten(build, tmp_path):
    """They have no manifest, as the checkpoint of a killed run, which is."""
    other = tmp_path / "run" / "checkpoint-2"
    other.mkdir(parents=True)
    (other / "trainer_state.json").write_text("{}")
    with raises_usage(option="output_dir", found="checkpoint-2"):
        build().train()
    (other / "training.json").write_text("{}")
    build(max_steps=2).train()


@pytest.mark.parametrize("used", ["checkpoint-3", "model.safetensors", "modules.json"])
def test_a_used_output_folder_is_rejected(command, tmp_path, capsys, used):
    (tmp_path / "run").mkdir()
    if used.startswith("checkpoint"):
        checkpoint(tmp_path / "run", 3)
    else:
        (tmp_path / "run" / used).write_text("{}")
    assert train.main(command()) == 2
    assert used in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [
        dict(accelerator_config={"use_seedable_sampler": False}),
        dict(accelerator_config={"dispatch_batches": True}),
    ],
    ids=["unseeded", "dispatched"],
)
def test_an_order_that_cannot_be_reproduced_is_refused_in_later_epochs(bert, arguments, options):
    options |= STEPS
    sentences = make_sentences(33)  # epochs of 2 steps
    first = InforMinTrainer(str(bert), arguments(**options), train_dataset=sentences)
    first.train()
    folder, uninterrupted = Path(first.args.output_dir), weights_of(first)
    shutil.rmtree(folder / "checkpoint-4")
    with raises_usage(option="resume_from_checkpoint"):
        InforMinTrainer(str(bert), arguments(**options), train_dataset=sentences).train("last")
    shutil.rmtree(folder / "checkpoint-3")
    again = InforMinTrainer(str(bert), arguments(**options), train_dataset=sentences)
    again.train("last")
    assert_same(weights_of(again), uninterrupted)


def test_sentences_grouped_by_length_are_read_on_in_a_later_epoch(bert, arguments):
    options = STEPS | dict(train_sampling_strategy="group_by_length")
    sentences = make_sentences(33)  # epochs of 2 steps
    whole = InforMinTrainer(str(bert), arguments(**options), train_dataset=sentences)
    whole.train()
    shutil.rmtree(Path(whole.args.output_dir, "checkpoint-4"))
    again = InforMinTrainer(str(bert), arguments(**options), train_dataset=sentences)
    again.train("last")
    assert_same(weights_of(again), weights_of(whole))


def test_a_run_whose_rate_follows_the_scores_is_not_resumed_with_other_evaluations(bert, arguments, pairs_file):
    options = dict(lr_scheduler_type="reduce_lr_on_plateau", eval_strategy="steps", save_strategy="steps", save_steps=1)
    data = dict(train_dataset=make_sentences(64), eval_dataset=pairs_file)
    first = InforMinTrainer(str(bert), arguments(**options, eval_steps=1, load_best_model_at_end=False), **data)
    first.train()
    shutil.rmtree(Path(first.args.output_dir, "checkpoint-4"))
    again = InforMinTrainer(str(bert), arguments(**options, eval_steps=2, load_best_model_at_end=False), **data)
    with raises_usage(option="resume_from_checkpoint", found="eval_steps"):
        again.train("last")


def test_a_stream_that_is_resumed_again_and_again_is_read_on(bert, arguments, tmp_path):
    """In the second epoch of three steps, once more in it from a checkpoint of the resumed run, and in the third."""
    options = STEPS | dict(per_device_train_batch_size=8, gradient_accumulation_steps=2, max_steps=8)
    stream = stream_of(tmp_path, make_sentences(48))
    whole = InforMinTrainer(str(bert), arguments(**options), train_dataset=stream)
    whole.train()
    for last in (4, 5, 7):
        for step in range(last + 1, 9):
            shutil.rmtree(tmp_path / "run" / f"checkpoint-{step}")
        again = InforMinTrainer(str(bert), arguments(**options), train_dataset=stream)
        again.train("last")
        assert_same(weights_of(again), weights_of(whole))


def test_an_incomplete_last_step_of_a_stream_is_skipped(bert, arguments, tmp_path):
    """Trainer would add its gradients to the next step, but checkpoints do not store gradients."""
    options = dict(eval_strategy="no", save_strategy="epoch", gradient_accumulation_steps=2, max_steps=2)
    stream = stream_of(tmp_path, make_sentences(49))  # 3 batches: a step, and half of one
    uninterrupted = InforMinTrainer(str(bert), arguments(**options), train_dataset=stream)
    uninterrupted.train()
    shutil.rmtree(tmp_path / "run" / "checkpoint-2")
    again = InforMinTrainer(str(bert), arguments(**options), train_dataset=stream)
    again.train("last")
    assert_same(weights_of(again), weights_of(uninterrupted))


@pytest.mark.parametrize("options", [dict(gradient_accumulation_steps=2), dict(per_device_train_batch_size=32)])
def test_a_stream_too_short_for_one_step_is_an_error(bert, unscored, tmp_path, options):
    stream = stream_of(tmp_path, make_sentences(20))
    trainer = InforMinTrainer(str(bert), unscored(save_strategy="no", **options), train_dataset=stream)
    with raises_usage(found="too few sentences for one step"):
        trainer.train()


def test_two_resumes_in_a_row_give_the_same_weights_and_optimizer(bert, arguments, tmp_path):
    options = STEPS | dict(max_steps=3)  # an epoch and a half
    whole = InforMinTrainer(str(bert), arguments(**options), train_dataset=make_sentences(32))
    whole.train()
    folder = Path(whole.args.output_dir)
    state = torch.load(folder / "checkpoint-3" / "optimizer.pt", weights_only=True)["state"]
    shutil.rmtree(folder / "checkpoint-3")
    for _ in range(2):
        again = InforMinTrainer(
            str(bert), arguments(**options, resume_from_checkpoint="last"), train_dataset=make_sentences(32)
        )
        again.train()
        assert_same(weights_of(again), weights_of(whole))
    assert_same(torch.load(folder / "checkpoint-3" / "optimizer.pt", weights_only=True)["state"], state)


def test_the_noise_of_a_run_that_an_error_ended_is_added_once_when_it_is_resumed(bert, arguments):
    class Interrupt(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 3:
                raise KeyboardInterrupt

    options, sentences = STEPS | dict(neftune_noise_alpha=5.0), make_sentences(96)
    whole = InforMinTrainer(str(bert), arguments(**options), train_dataset=sentences)
    whole.train()
    shutil.rmtree(whole.args.output_dir)
    interrupt = Interrupt()
    again = InforMinTrainer(str(bert), arguments(**options), train_dataset=sentences, callbacks=[interrupt])
    with pytest.raises(KeyboardInterrupt):
        again.train()
    again.remove_callback(interrupt)
    again.train("last")
    assert_same(weights_of(again), weights_of(whole))
