"""Embeddings of all poolers compared with one unpadded sentence at a time."""

import numpy as np
import pytest

from informin.models.encode import POOLERS, encode
from informin.models.open_model import load_model
from tests.conftest import WORDS
from tests.models.encoder_helpers import SENTENCES, one_by_one

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.parametrize("pooler", POOLERS)
def test_poolers_equal_one_by_one(ours, pooler):
    """Batches of 5 contain padding, and the last one is smaller."""
    encoder = load_model(str(ours), (pooler,), batch_size=5)
    embeddings = encoder(SENTENCES)
    assert list(embeddings) == [pooler] and embeddings[pooler].dtype == np.float32
    expected = one_by_one(encoder.module, encoder.tokenizer, pooler, SENTENCES)
    np.testing.assert_allclose(embeddings[pooler], expected, atol=2e-6)
    assert np.abs(expected[0] - expected[1]).max() > 0.01, "different sentences have different vectors"


def test_several_poolers_in_one_call_equal_single_calls_and_differ(ours):
    encoder = load_model(str(ours), POOLERS)
    together = encoder(SENTENCES)
    assert tuple(together) == POOLERS
    for pooler in POOLERS:
        alone = encode(encoder.module, encoder.tokenizer, SENTENCES, poolers=(pooler,))
        np.testing.assert_allclose(together[pooler], alone[pooler], atol=1e-5)
        others = (np.abs(together[pooler] - together[other]).max() for other in POOLERS if other != pooler)
        assert min(others) > 0.01


def test_hidden_states_are_requested_only_if_needed(ours):
    encoder = load_model(str(ours))
    asked = []
    encoder.module.register_forward_hook(
        lambda *inputs: asked.append("output_hidden_states" in inputs[2]), with_kwargs=True
    )
    for poolers in (("cls", "mean", "mlp"), ("cls", "last2")):
        encode(encoder.module, encoder.tokenizer, ["the dog"], poolers=poolers)
    assert asked == [False, True]


@pytest.mark.parametrize("batch_size", [1, 4, 64])
def test_progress_adds_up_to_the_sentences(bert, batch_size):
    steps = []
    load_model(str(bert), ("cls",), batch_size=batch_size)(SENTENCES, steps.append)
    assert sum(steps) == len(SENTENCES) and (max(steps) <= batch_size or batch_size == 64)


def test_empty_list_of_sentences(bert):
    embeddings = load_model(str(bert), ("cls", "last2"))([])
    assert {pooler: x.shape for pooler, x in embeddings.items()} == {"cls": (0, 32), "last2": (0, 32)}


@pytest.mark.parametrize("pooler", ["cls", "mean"])
def test_length_truncates(ours, pooler):
    """7 tokens are 5 words and two special tokens."""
    encoder = load_model(str(ours), (pooler,), length=7)
    words = WORDS[:9]
    embeddings = encoder([" ".join(words), " ".join(words[:6]), " ".join(words[:5]), " ".join(words[:4])])[pooler]
    cut = [" ".join(words[:5])] * 3 + [" ".join(words[:4])]
    np.testing.assert_allclose(embeddings, one_by_one(encoder.module, encoder.tokenizer, pooler, cut), atol=2e-6)
    assert np.abs(embeddings[2] - embeddings[3]).max() > 1e-3


@pytest.mark.parametrize("training", [True, False])
def test_training_mode_is_restored(ours, training):
    encoder = load_model(str(ours), POOLERS)
    assert not encoder.module.training
    encoder.module.train(training)
    encoder(SENTENCES)
    assert {module.training for module in encoder.module.modules()} == {training}


def test_bf16_is_close_and_returned_in_float32(bert):
    plain, short = (load_model(str(bert), ("mean",), bf16=bf16)(SENTENCES)["mean"] for bf16 in (False, True))
    assert short.dtype == np.float32
    assert 1e-5 < np.abs(plain - short).max() < 0.1


def test_truncated_sentences_are_counted_exactly(bert):
    """8 tokens hold 6 words, or 6 characters of one, two or three bytes."""
    encoder = load_model(str(bert), ("cls",), length=8)
    units = ["dog ", ".", "é ", "中", "😀 "]
    encoder(["", *(unit * 6 for unit in units), "a" * 90])
    assert encoder.truncated == set()
    long = {unit * 7 for unit in units}
    encoder(["the dog", *sorted(long)[:2]])
    encoder(["the cat", *sorted(long)[2:], "." * 6])
    assert encoder.truncated == long
