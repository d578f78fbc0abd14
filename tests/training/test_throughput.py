"""The measured training speed."""

from types import SimpleNamespace

import pytest
from transformers import TrainerCallback

from informin.model.records import RunRecord
from informin.training import callbacks
from tests.conftest import make_sentences
from trainer_informin import InforMinTrainer


class Clock(TrainerCallback):
    """A step takes 1 second, an evaluation 100, and a save 1000."""

    now = 0.0

    def on_step_begin(self, *_, **__):
        self.now += 1

    def evaluate(self, *_):
        self.now += 100
        return {"spearman": self.now, "alignment": 0.0, "uniformity": 0.0}


@pytest.fixture
def build(bert, pairs_file, arguments, monkeypatch):
    """Build a trainer that uses a `Clock`; keywords are training arguments."""

    def make(**options):
        clock = Clock()
        monkeypatch.setattr(callbacks, "time", SimpleNamespace(perf_counter=lambda: clock.now))
        monkeypatch.setattr("informin.evaluation.pairs.score_pairs", clock.evaluate)
        trainer = InforMinTrainer(
            str(bert),
            arguments(**options),
            train_dataset=make_sentences(96),
            eval_dataset=pairs_file,
            callbacks=[clock],
        )
        save = trainer._save_checkpoint

        def slowly(*args):
            clock.now += 1000
            save(*args)

        monkeypatch.setattr(trainer, "_save_checkpoint", slowly)
        return trainer

    return make


@pytest.mark.parametrize(
    "options, rate",
    [
        (dict(gradient_accumulation_steps=2), 32),
        (dict(eval_steps=1, save_steps=2), 16),
        (dict(eval_strategy="no", save_steps=1), 16),
        (dict(eval_strategy="epoch", eval_steps=125, max_steps=-1, num_train_epochs=2), 16),
        (
            dict(eval_strategy="epoch", eval_steps=125, max_steps=-1, num_train_epochs=2)
            | dict(save_strategy="no", load_best_model_at_end=False),
            16,
        ),
    ],
    ids=lambda value: "-".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else "",
)
def test_evaluation_and_saving_do_not_lower_the_throughput(build, tmp_path, options, rate):
    trainer = build(**options)
    trainer.train()
    assert trainer.throughput.sentences_per_second == rate == trainer.record().sentences_per_second
    assert all(RunRecord.load(path).sentences_per_second is None for path in (tmp_path / "run").glob("checkpoint-*"))


@pytest.mark.parametrize(
    "options, sentences",
    [
        (dict(per_device_train_batch_size=16, gradient_accumulation_steps=4), 96),
        (dict(per_device_train_batch_size=20, gradient_accumulation_steps=3), 80),
        (dict(per_device_train_batch_size=20, gradient_accumulation_steps=3, dataloader_drop_last=False), 96),
    ],
    ids=["incomplete accumulation", "without the last batch", "incomplete batch"],
)
def test_throughput_counts_the_sentences_of_a_run(build, options, sentences):
    """Two epochs of 96 sentences and of two steps each, the second with fewer batches or a smaller one."""
    trainer = build(num_train_epochs=2, max_steps=-1, eval_strategy="no", **options)
    trainer.train()
    assert trainer.state.global_step == 4 and trainer.throughput.sentences_per_second == 2 * sentences / 4
