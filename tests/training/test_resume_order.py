"""Resuming in later epochs and in streams reproduces the order of the sentences, or is refused."""

import json
import shutil
from pathlib import Path

import pytest

from informin.files import write_manifest
from tests.conftest import make_sentences, raises_usage
from tests.training.resuming_helpers import stream_of
from trainer_informin import InforMinTrainer


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(train_sampling_strategy="group_by_length"), "`train_sampling_strategy` group_by_length"),
        (dict(accelerator_config={"use_seedable_sampler": False}), "`use_seedable_sampler` false"),
        (dict(accelerator_config={"dispatch_batches": True}), "`dispatch_batches` true"),
    ],
    ids=["lengths", "unseeded", "dispatched"],
)
def test_an_order_that_cannot_be_reproduced_is_refused_in_later_epochs(bert, arguments, options, message):
    options |= dict(eval_strategy="no", save_steps=1, save_total_limit=9, max_steps=4)
    sentences = make_sentences(33)  # epochs of 2 steps
    first = InforMinTrainer(str(bert), arguments(**options), sentences)
    first.train()
    folder = Path(first.args.output_dir)
    uninterrupted = {name: weight.clone() for name, weight in first.model.state_dict().items()}
    shutil.rmtree(folder / "checkpoint-4")
    with raises_usage(option="resume_from_checkpoint", found=message) as error:
        InforMinTrainer(str(bert), arguments(**options), sentences).train("last")
    assert "checkpoint-3 cannot be resumed with the same order" in error.value.found
    shutil.rmtree(folder / "checkpoint-3")
    again = InforMinTrainer(str(bert), arguments(**options), sentences)
    again.train("last")
    assert all(weight.equal(uninterrupted[name]) for name, weight in again.model.state_dict().items())


def test_out_of_order_batches_are_refused(bert, arguments):
    options = dict(eval_strategy="no", save_steps=1, max_steps=1)
    InforMinTrainer(str(bert), arguments(**options), make_sentences(33)).train()
    options |= dict(max_steps=1, dataloader_num_workers=2, dataloader_in_order=False)
    with raises_usage(option="resume_from_checkpoint", found="because of `dataloader_in_order` false"):
        InforMinTrainer(str(bert), arguments(**options), make_sentences(33)).train("last")


def test_a_stream_without_recorded_position_is_refused_after_the_first_epoch(bert, arguments, tmp_path):
    """As in checkpoints of older versions."""
    options = dict(eval_strategy="no", save_steps=1, save_total_limit=9, max_steps=4)
    stream = stream_of(tmp_path, make_sentences(33))
    InforMinTrainer(str(bert), arguments(**options), stream).train()
    shutil.rmtree(tmp_path / "run" / "checkpoint-4")
    for step in (3, 2):
        state = tmp_path / "run" / f"checkpoint-{step}" / "trainer_state.json"
        values = json.loads(state.read_text())
        del values["stateful_callbacks"]["EpochStart"]
        state.write_text(json.dumps(values))
        write_manifest(state.parent)
    with raises_usage(option="resume_from_checkpoint", found="did not record the position in the stream"):
        InforMinTrainer(str(bert), arguments(**options), stream).train("last")
    shutil.rmtree(tmp_path / "run" / "checkpoint-3")
    InforMinTrainer(str(bert), arguments(**options), stream).train("last")


def test_an_incomplete_last_step_of_a_stream_is_skipped(bert, arguments, tmp_path):
    """Trainer would add its gradients to the next step, but checkpoints do not store gradients."""
    options = dict(eval_strategy="no", save_strategy="epoch", gradient_accumulation_steps=2, max_steps=2)
    stream = stream_of(tmp_path, make_sentences(49))  # 3 batches: a step, and half of one
    uninterrupted = InforMinTrainer(str(bert), arguments(**options), stream)
    uninterrupted.train()
    shutil.rmtree(tmp_path / "run" / "checkpoint-2")
    again = InforMinTrainer(str(bert), arguments(**options), stream)
    again.train("last")
    weights = again.model.state_dict()
    assert all(weight.equal(weights[name]) for name, weight in uninterrupted.model.state_dict().items())


@pytest.mark.parametrize("accumulation, number", [(1, 15), (2, 20)])
def test_a_stream_too_short_for_one_step_is_an_error(bert, arguments, tmp_path, accumulation, number):
    stream = stream_of(tmp_path, make_sentences(number))
    options = dict(eval_strategy="no", save_strategy="no", gradient_accumulation_steps=accumulation, max_steps=2)
    trainer = InforMinTrainer(str(bert), arguments(**options), stream)
    with raises_usage(found="The stream has too few sentences for one step"):
        trainer.train()


def test_a_new_run_does_not_take_checkpoints_of_an_earlier_one(bert, arguments):
    options = dict(eval_strategy="no", save_strategy="steps", save_steps=1, max_steps=2)
    InforMinTrainer(str(bert), arguments(**options), make_sentences(32)).train()
    other = InforMinTrainer(str(bert), arguments(**options, learning_rate=0.01), make_sentences(32))
    with raises_usage(option="output_dir", found="already contains checkpoint-1 of an earlier run"):
        other.train()


def test_the_checkpoint_may_be_an_argument(bert, arguments):
    options = dict(eval_strategy="no", save_strategy="steps", save_steps=1, max_steps=2)
    InforMinTrainer(str(bert), arguments(**options), make_sentences(32)).train()
    checkpoint = Path(arguments(**options).run_dir, "checkpoint-2")
    first = checkpoint.with_name("checkpoint-1") / "trainer_state.json"
    shutil.rmtree(checkpoint)
    written = first.stat().st_mtime_ns
    again = InforMinTrainer(str(bert), arguments(**options, resume_from_checkpoint="last"), make_sentences(32))
    assert again.train().global_step == 2 and checkpoint.exists() and first.stat().st_mtime_ns == written
