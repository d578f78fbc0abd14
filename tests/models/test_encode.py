"""Embeddings of sentences equal those computed one by one, in order, truncated at the model's maximum."""

import numpy as np
import pytest
import torch

from informin.models.checkpoint import Checkpoint
from informin.models.encode import encode
from informin.models.native_loading import load_trainable
from tests.conftest import WORDS, make_sentences, tokenizer_of


def build(folder):
    return load_trainable(Checkpoint(folder), {"projection_head": "mlp", "lm_head": False})


def cls_of(model, tokenizer, sentence: str) -> np.ndarray:
    """Return the [CLS] vector of a single sentence in evaluation mode."""
    with torch.no_grad():
        return model.eval()(**tokenizer([sentence], return_tensors="pt")).last_hidden_state[0, 0].numpy()


@pytest.mark.parametrize("batch_size", [1, 4, 64])
def test_encode_equals_one_by_one_in_the_order_of_the_sentences(encoder, batch_size):
    model, tokenizer = build(encoder), tokenizer_of(encoder)
    sentences = ["the dog", *make_sentences(9), "a", "the dog", " ".join(WORDS), ""]
    expected = np.stack([cls_of(model, tokenizer, sentence) for sentence in sentences])
    found = encode(model.train(), tokenizer, sentences, batch_size)["cls"]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=2e-6)
    assert np.abs(expected[0] - expected[1]).max() > 0.01, "different sentences have different vectors"


@pytest.mark.parametrize("training", [True, False])
def test_encode_restores_the_mode(bert, training):
    model = build(bert).train(training)
    embeddings = encode(model, tokenizer_of(bert), ["the dog"])["cls"]
    assert model.training is training and {module.training for module in model.modules()} == {training}
    assert not hasattr(embeddings, "requires_grad") and all(p.grad is None for p in model.parameters())


def test_encode_truncates_at_the_models_maximum_and_not_at_the_training_length(encoder):
    """66 positions: 66 tokens in BERT, 64 in RoBERTa, whose positions start after its padding index."""
    model, tokenizer = build(encoder), tokenizer_of(encoder)
    tokenizer.model_max_length = 10**30  # the value of tokenizers without a maximum
    words = [WORDS[i % len(WORDS)] for i in range(100)]
    most = {"bert": 64, "roberta": 62}[model.config.model_type]  # beside [CLS] and [SEP]
    expected = [cls_of(model, tokenizer, " ".join(words[:count])) for count in (most, most - 1, 40)]
    tokenizer(["the dog sees the house"], truncation=True, max_length=4, padding="max_length")  # as training does
    found = encode(model, tokenizer, [" ".join(words), " ".join(words[:most]), " ".join(words[:40])])["cls"]
    np.testing.assert_allclose(found, [expected[0], expected[0], expected[2]], atol=2e-6)
    assert np.abs(expected[0] - expected[1]).max() > 1e-4


def test_encode_respects_model_max_length_of_the_tokenizer(bert):
    model, tokenizer = build(bert), tokenizer_of(bert)
    expected = cls_of(model, tokenizer, "the old dog")
    tokenizer.model_max_length = 5
    np.testing.assert_allclose(encode(model, tokenizer, ["the old dog sees the house"])["cls"], [expected], atol=2e-6)
