"""Pre-training of the raw encoder that studies use: masks, batches and a short run."""

import json
from itertools import count
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

from tests.conftest import make_sentences, tokenizer_of
from tools import pretrain


@pytest.fixture
def groups(bert):
    return pretrain.by_length(make_sentences(300), tokenizer_of(bert), "cpu")


def test_batches_have_sentences_of_one_length_and_an_epoch_has_each_once(groups):
    whole = {length: rows for length, rows in groups.items() if len(rows) % (40 // length) != 1}
    number = sum(-(-len(rows) // (40 // length)) for length, rows in whole.items())
    stream = pretrain.batches(whole, 40, seed=1)
    parts = [next(stream) for _ in range(number)]
    assert all(part.numel() <= 40 for part in parts) and len({part.shape[1] for part in parts}) > 2
    for length, rows in whole.items():
        found = torch.cat([part for part in parts if part.shape[1] == length])
        assert sorted(found.tolist()) == sorted(rows.tolist())


def test_a_fifth_of_the_tokens_is_predicted_and_never_special_ones(groups, bert):
    tokenizer, ids = tokenizer_of(bert), groups[max(groups)].long()
    inputs, where = pretrain.masked(ids, tokenizer)
    inside = ids.shape[1] - 2
    assert where.shape == (len(ids), round(0.2 * inside)) and 1 <= where.min() and where.max() <= inside
    changed = inputs != ids
    positions = torch.zeros_like(ids, dtype=torch.bool).scatter(1, where, True)
    assert (
        changed.any()
        and not (changed & ~positions).any()
        and (inputs == tokenizer.mask_token_id).sum() > where.numel() / 2
    )


def test_a_run_lowers_the_loss_and_saves_a_model_with_its_tokenizer(bert, tmp_path, monkeypatch, capsys):
    (tmp_path / "text.txt").write_text("\n".join(make_sentences(300)))
    options = dict(train_file=tmp_path / "text.txt", output_dir=tmp_path / "raw", tokenizer=bert, vocab_size=200)
    options |= dict(layers=1, width=64, minutes=0.5, batch_tokens=200, learning_rate=3e-3)
    monkeypatch.setattr("sys.argv", ["pretrain", *(f"--{name}={value}" for name, value in options.items())])
    monkeypatch.setattr(pretrain, "EVERY", 10)
    monkeypatch.setattr(pretrain, "time", SimpleNamespace(perf_counter=count(step=0.1).__next__))  # per step
    pretrain.main()
    record = json.loads((tmp_path / "raw" / "pretraining.json").read_text())
    losses = [entry["loss"] for entry in record["history"]]
    assert losses[-1] < 0.9 * losses[0] and record["steps"] == 299
    assert record["options"]["vocab_size"] == 200 and str(tmp_path) not in json.dumps(record)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "raw")
    model, loading = AutoModelForMaskedLM.from_pretrained(tmp_path / "raw", output_loading_info=True)
    assert (
        not loading["missing_keys"]
        and model.config.vocab_size == len(tokenizer) <= 200
        and tokenizer.tokenize("the dog") == ["the", "dog"]
    )
