"""Replay: general sentences appended to the rows of a step."""

import pytest
import torch
from datasets import Dataset

from informin.objectives.term import Masking
from informin.training.batch import StackedViews
from informin.training.guide import GeneralSentences
from informin.training.plain import two_views
from informin.views import Crop
from informin.views.view import SentenceTokens
from modeling_informin import InforMinOutput
from tests.conftest import make_sentences, tokenizer_of


@pytest.fixture
def tokenizer(encoder):
    return tokenizer_of(encoder)


def tokens(tokenizer, sentences):
    return dict(tokenizer(sentences, return_token_type_ids=False))


@pytest.fixture
def general(tokenizer):
    return GeneralSentences(Dataset.from_dict(tokens(tokenizer, make_sentences(9, seed=3))), 4, tokenizer)


@pytest.mark.parametrize("words", [3, 20], ids=["shorter", "longer"])
@pytest.mark.parametrize("masking", [None, Masking(0.5, False)], ids=["none", "copy"])
def test_general_sentences_follow_the_rows_without_labels(general, tokenizer, masking, words):
    sentences = [" ".join(["dog"] * words), "the cat sleeps", "a bird"]
    batch = tokenizer.pad(tokens(tokenizer, sentences), return_tensors="pt")
    stacked = StackedViews(SentenceTokens(tokenizer), masking)(batch, seed=1)
    before = {name: x.clone() for name, x in stacked.items()}
    rows = general(stacked, seed=5)
    count, length = before["input_ids"].shape
    for name, fill in {"input_ids": tokenizer.pad_token_id, "attention_mask": 0, "lm_labels": -100}.items():
        if name in before:
            assert torch.equal(rows[name][:count, :length], before[name]) and torch.equal(stacked[name], before[name])
            assert (rows[name][:count, length:] == fill).all() and len(rows[name]) == count + 4
    drawn = rows["general_row"].tolist()
    assert len(set(drawn)) == 4
    for ids, mask, place in zip(rows["input_ids"][count:], rows["attention_mask"][count:], drawn):
        assert ids[mask.bool()].tolist() == general.rows[place]["input_ids"]
    assert not masking or (rows["lm_labels"][count:] == -100).all()
    outputs = InforMinOutput(pooler_output=torch.arange(count + 4), projection=torch.arange(count + 4))
    views = two_views(outputs, rows)
    assert views.general.tolist() == [*range(count, count + 4)] and views.general_row.tolist() == drawn
    assert views.embedding2.tolist() == [3, 4, 5]


@pytest.mark.parametrize("side", ["left", "right"])
def test_shared_tokens_stay_the_same_beside_longer_general_sentences(general, tokenizer, side):
    general.tokenizer.padding_side = tokenizer.padding_side = side
    batch = tokenizer.pad(tokens(tokenizer, ["the dog runs", "a cat sleeps today"]), return_tensors="pt")
    stacked = StackedViews(SentenceTokens(tokenizer), view=Crop())(batch, seed=1)
    rows = general(stacked, seed=5)
    assert rows["input_ids"].shape[1] > stacked["input_ids"].shape[1]
    pairs = []
    for one in (stacked, rows):
        ids, shared = one["input_ids"], one["shared"]
        assert shared.shape[1] == ids.shape[1]
        found = (shared >= 0).nonzero().tolist()
        pairs.append([(row, ids[row, place].item(), ids[2 + row, shared[row, place]].item()) for row, place in found])
    assert pairs[0] == pairs[1] and all(one == other for _, one, other in pairs[0]) and pairs[0]


def test_seed_determines_the_sample(general, tokenizer):
    stacked = StackedViews(SentenceTokens(tokenizer))(tokenizer.pad(tokens(tokenizer, ["a dog"]), return_tensors="pt"))
    drawn = [general(stacked, seed)["general_row"].tolist() for seed in (1, 1, 2, 3)]
    assert drawn[0] == drawn[1] and len(set(map(tuple, drawn))) == 3


def test_small_file_is_used_whole(tokenizer):
    few = GeneralSentences(Dataset.from_dict(tokens(tokenizer, make_sentences(2))), 4, tokenizer)
    stacked = StackedViews(SentenceTokens(tokenizer))(tokenizer.pad(tokens(tokenizer, ["a dog"]), return_tensors="pt"))
    assert sorted(few(stacked, 0)["general_row"].tolist()) == [0, 1]
