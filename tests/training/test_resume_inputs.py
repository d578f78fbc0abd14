"""A resumed run detects changes to the guide, general sentences, streams and tokens."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file

from informin.files import sha256, write_manifest
from informin.training.data_options import DataArguments
from informin.training.options import InforMinTrainingArguments
from informin.training.sentences import load_sentences
from tests.conftest import FOUR_STEPS, make_sentences, raises_usage, tokenizer_of
from tests.training.resuming_helpers import stream_of
from trainer_informin import InforMinTrainer

GUIDED = dict(replay_weight=0.5, replay_size=4, distillation_weight=0.5, eval_strategy="no", save_steps=2, max_steps=4)


@pytest.fixture
def guided_trainer(bert, pairs_file, tmp_path):
    """Builds a trainer that uses a guide and general sentences, both copies that a test may change."""
    shutil.copytree(bert, tmp_path / "guide-model")
    export = dict(pooling="mean")
    config = json.loads((tmp_path / "guide-model" / "config.json").read_text())
    (tmp_path / "guide-model" / "config.json").write_text(json.dumps(config | {"informin": export}))
    (tmp_path / "general.txt").write_text("\n".join(make_sentences(20, seed=4)) + "\n")

    def build(**changes) -> InforMinTrainer:
        options = GUIDED | dict(FOUR_STEPS, save_strategy="steps", output_dir=str(tmp_path / "run")) | GUIDED
        options |= dict(guide_model=str(tmp_path / "guide-model"), replay_file=str(tmp_path / "general.txt"))
        args = InforMinTrainingArguments(**options | changes)
        return InforMinTrainer(str(bert), args, make_sentences(64))

    return build


def other_weights(folder: Path) -> None:
    weights = load_file(folder / "guide-model" / "model.safetensors")
    weights = {name: x + 0.1 * torch.randn_like(x) for name, x in weights.items()}
    save_file(weights, folder / "guide-model" / "model.safetensors", {"format": "pt"})


def other_tokens(folder: Path) -> None:
    path = folder / "guide-model" / "tokenizer.json"
    path.write_text(path.read_text().replace('"dog"', '"hound"'))


def other_replay(folder: Path) -> None:
    (folder / "general.txt").write_text("\n".join(make_sentences(20, seed=5)) + "\n")


def edited_cache(folder: Path) -> None:
    """The header matches, because a cache that is only damaged is computed again."""
    for path in (folder / "run" / "guide").glob("*.npy"):
        embeddings = np.load(path)
        np.save(path, embeddings[::-1])
        header = json.loads(path.with_suffix(".json").read_text())
        path.with_suffix(".json").write_text(json.dumps(header | {"sha256": sha256(path)}))


@pytest.mark.parametrize(
    "change, message",
    [
        (other_weights, r"embeddings of the guide \w+\.npy \([\d,]+ bytes, SHA-256 \w{8}\)"),
        (other_tokens, r"embeddings of the guide \w+\.npy"),
        (edited_cache, r"embeddings of the guide \w+\.npy"),
        (other_replay, r"general sentences general\.txt \([\d,]+ bytes, SHA-256 \w{8}\), now general\.txt"),
    ],
)
def test_changed_inputs_with_the_same_name_are_refused(guided_trainer, tmp_path, change, message):
    guided_trainer().train()
    shutil.rmtree(tmp_path / "run" / "checkpoint-4")
    change(tmp_path)
    with raises_usage(option="resume_from_checkpoint") as info:
        guided_trainer().train("last")
    assert re.search(f"belongs to another run: .*{message}", info.value.found)
    again = guided_trainer(resume_with_changes=True)
    again.train("last")
    (part,) = again.record()["earlier"]
    assert part["until_step"] == 2 and part["inputs"] != again.record()["inputs"]


def test_renamed_inputs_are_accepted(guided_trainer, tmp_path):
    guided_trainer().train()
    shutil.rmtree(tmp_path / "run" / "checkpoint-4")
    shutil.move(tmp_path / "run" / "guide", tmp_path / "cache")
    again = guided_trainer(guide_cache=str(tmp_path / "cache"))
    again.train("last")
    assert again.record()["earlier"] == []


def test_a_record_without_fingerprints_is_reported(guided_trainer, tmp_path, caplog):
    guided_trainer().train()
    shutil.rmtree(tmp_path / "run" / "checkpoint-4")
    record = tmp_path / "run" / "checkpoint-2" / "training.json"
    values = json.loads(record.read_text())
    assert sorted(values.pop("inputs")) == ["embeddings of the guide", "general sentences", "pooling"]
    record.write_text(json.dumps(values))
    write_manifest(record.parent)
    caplog.set_level("INFO", "informin")
    guided_trainer().train("last")
    assert "checkpoint-2 was saved by a version that recorded no fingerprints. Changes to" in caplog.text


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(sentences=32), r"files of the stream stream\.txt \([\d,]+ bytes, SHA-256 \w{8}\), now stream\.txt"),
        (dict(max_train_samples=20), "max_train_samples none, now 20"),
        (dict(dataloader_num_workers=2), "dataloader_num_workers 0, now 2"),
        (dict(streaming=False), "streaming True, now none"),
    ],
    ids=["edited", "fewer", "workers", "not-streamed"],
)
def test_changed_streams_are_refused(bert, arguments, tmp_path, changes, message):
    options = dict(eval_strategy="no", save_steps=1, max_steps=1)
    InforMinTrainer(str(bert), arguments(**options), stream_of(tmp_path, make_sentences(33))).train()
    changes, given = dict(changes), dict(streaming=True)
    (tmp_path / "stream.txt").write_text("\n".join(make_sentences(changes.pop("sentences", 33))) + "\n")
    given |= {name: changes.pop(name) for name in ("streaming",) if name in changes}
    sentences = load_sentences(DataArguments(train_file=[str(tmp_path / "stream.txt")], **given), seed=1)
    with raises_usage(option="resume_from_checkpoint") as info:
        InforMinTrainer(str(bert), arguments(**options, **changes), sentences).train("last")
    assert re.search(f"belongs to another run: .*{message}", info.value.found)


def test_other_tokens_are_refused(bert, arguments):
    options = dict(eval_strategy="no", save_steps=1, max_steps=1)
    tokenizer = tokenizer_of(bert)

    def trainer(seed: int) -> InforMinTrainer:
        rows = [{"input_ids": tokenizer(sentence)["input_ids"]} for sentence in make_sentences(32, seed)]
        return InforMinTrainer(str(bert), arguments(**options), Dataset.from_list(rows), processing_class=tokenizer)

    trainer(0).train()
    with raises_usage(option="resume_from_checkpoint", found="belongs to another run: tokens '"):
        trainer(1).train("last")
