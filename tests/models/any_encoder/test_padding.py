"""Embeddings do not depend on the batch, on the side of the padding, or on the backend; nor does the maximum length."""

import json
import shutil

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Router, Transformer
from transformers import AutoTokenizer, GPT2Config, GPT2Model

from informin.models.checkpoint import Checkpoint
from informin.models.native_loading import load_trainable
from informin.models.open_model import load_model
from informin.models.padding import require_independent
from tests.conftest import WORDS, make_sentences, raises_usage, save_encoder, tokenizer_of
from tests.models.any_encoder.helpers import change, sentence_transformer
from tests.models.any_encoder.st_models import DECODER, LENGTH, save_tokenizer

TEXTS = ["the dog", "today", *make_sentences(4), " ".join(WORDS)]
BACKENDS = ("native", "st")


def padded_left(folder):
    return change(folder, "tokenizer_config.json", padding_side="left")


def require_same(folder, backend, expected=None) -> None:
    """Check embeddings in one batch against those of one text at a time, by this project or given."""
    together, alone = (
        next(iter(load_model(str(folder), device="cpu", backend=backend, batch_size=size)(TEXTS).values()))
        for size in (len(TEXTS), 1)
    )
    np.testing.assert_allclose(together, alone, atol=1e-5)
    if expected is not None:
        np.testing.assert_allclose(together, expected, atol=1e-5)


@pytest.mark.parametrize("pooling", ["cls", "mean", "lasttoken"])
@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "modernbert"])
def test_left_padding(tmp_path, name, pooling):
    start = padded_left(save_encoder(name, tmp_path / "start"))
    folder = sentence_transformer(start, tmp_path / "model", pooling_mode=pooling)
    theirs = SentenceTransformer(str(folder), device="cpu")
    assert theirs.tokenizer.padding_side == "left"
    expected = theirs.encode(TEXTS, batch_size=1)
    for backend in BACKENDS:
        require_same(folder, backend, expected)


def test_left_padding_changes_embeddings_otherwise(tmp_path):
    """Check that the other tests can fail."""
    start = padded_left(save_encoder("bert", tmp_path / "start"))
    model = SentenceTransformer(str(sentence_transformer(start, tmp_path / "model")), device="cpu")
    assert np.abs(model.encode(TEXTS, batch_size=1) - model.encode(TEXTS)).max() > 0.1


def gpt2(folder):
    """A decoder with a table of positions."""
    sizes = dict(n_embd=32, n_layer=2, n_head=4, n_positions=64, initializer_range=0.2)
    GPT2Model(GPT2Config(vocab_size=DECODER["vocab_size"], **sizes)).save_pretrained(folder)
    save_tokenizer(folder, "left")
    return folder


def test_left_padding_of_decoders(family, tmp_path):
    """Where positions come from a table, padding is on the right. Rotary positions keep their side."""
    transformer = Transformer(str(gpt2(tmp_path / "plain")))
    model = SentenceTransformer(modules=[transformer, Pooling(32, pooling_mode="lasttoken")], device="cpu")
    model.max_seq_length = LENGTH
    model.save_pretrained(str(tmp_path / "gpt2"), create_model_card=False)
    require_same(tmp_path / "gpt2", "st", model.encode(TEXTS, batch_size=1))
    require_same(family("qwen3"), "st")
    assert load_model(str(family("qwen3")), device="cpu").tokenizer.padding_side == "left"


def test_left_padding_of_every_route(bert, tmp_path):
    start = padded_left(shutil.copytree(bert, tmp_path / "start"))
    routes = ([Transformer(str(start)), Pooling(32)] for _ in range(2))
    router = Router.for_query_document(*routes, default_route="document")
    SentenceTransformer(modules=[router], device="cpu").save_pretrained(str(tmp_path / "model"))
    model = load_model(str(tmp_path / "model"), device="cpu").module
    for task in ("query", "document"):
        alone, together = (model.encode(TEXTS, batch_size=size, task=task) for size in (1, len(TEXTS)))
        np.testing.assert_allclose(alone, together, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_training_pads_on_the_right(bert, trainer, tmp_path, backend):
    start = sentence_transformer(padded_left(shutil.copytree(bert, tmp_path / "start")), tmp_path / "model")
    run = trainer(start, backend=backend, measure_drift=False)
    assert run.processing_class.padding_side == "right"
    expected = SentenceTransformer(str(start), device="cpu").encode(TEXTS, batch_size=1)
    np.testing.assert_allclose(run.encode(TEXTS), expected, atol=1e-5)
    run.export(tmp_path / "export")
    again = SentenceTransformer(str(tmp_path / "export"), device="cpu")
    np.testing.assert_allclose(again.encode(TEXTS), expected, atol=1e-5)


def test_given_tokenizer_pads_on_the_right(bert, tmp_path):
    from tests.models.any_encoder.helpers import FOUR_STEPS, InforMinTrainer, InforMinTrainingArguments

    args = InforMinTrainingArguments(str(tmp_path / "run"), **FOUR_STEPS, eval_strategy="no", report_to=[])
    model = load_trainable(Checkpoint(bert), args.model_settings)
    for given in (model, str(bert)):
        tokenizer = AutoTokenizer.from_pretrained(bert, padding_side="left")
        run = InforMinTrainer(given, args, make_sentences(32), processing_class=tokenizer)
        assert run.processing_class.padding_side == "right"


def test_model_that_depends_on_padding_is_refused(family):
    model = SentenceTransformer(str(family("qwen3")), device="cpu")
    with raises_usage(option="model_name", found="depends on the padding", needed="that ignores padding"):
        require_independent(model, "m", lambda texts: np.full((len(texts), 4), float(len(texts))))
    model.tokenizer.padding_side = "left"
    sides = []

    def encode(texts):
        sides.append(model.tokenizer.padding_side)
        return np.full((len(texts), 4), float(len(texts)) if sides[-1] == "left" else 1.0)

    require_independent(model, "m", encode)
    assert sides[0] == "left" and model.tokenizer.padding_side == "right"


LENGTHS = {  # maximum of sentence-transformers, of the tokenizer, and the one that counts
    "own": (40, 16, 40),
    "smaller": (16, 40, 16),
    "tokenizer": (None, 16, 16),
    "positions": (1000, 16, 66),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("file", ["sentence_bert_config.json", "sentence_roberta_config.json"])
@pytest.mark.parametrize("kind", LENGTHS)
def test_maximum_length(bert, tmp_path, kind, file, backend):
    """The setting of sentence-transformers replaces the tokenizer's, up to the positions that the model has."""
    stated, tokens, expected = LENGTHS[kind]
    folder = sentence_transformer(bert, tmp_path / "model")
    (folder / "sentence_bert_config.json").unlink()
    (folder / file).write_text(json.dumps({"max_seq_length": stated, "do_lower_case": False}))
    change(folder, "tokenizer_config.json", model_max_length=tokens)
    encoder = load_model(str(folder), device="cpu", backend=backend)
    assert encoder.length == expected
    long = [" ".join(WORDS * 3)]
    theirs = SentenceTransformer(str(folder), device="cpu")
    theirs.max_seq_length = min(theirs.max_seq_length, 66)  # it would index positions that do not exist
    np.testing.assert_allclose(next(iter(encoder(long).values())), theirs.encode(long), atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_positions_of_roberta_start_later(roberta, tmp_path, backend):
    folder = sentence_transformer(roberta, tmp_path / "model")
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 512, "do_lower_case": False}))
    encoder = load_model(str(folder), device="cpu", backend=backend)
    assert encoder.length == 64 and next(iter(encoder([" ".join(WORDS * 3)]).values())).shape == (1, 32)


def test_training_reads_the_same_length(bert, trainer, tmp_path):
    """Its export, too."""
    folder = sentence_transformer(bert, tmp_path / "model")
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 30, "do_lower_case": False}))
    change(folder, "tokenizer_config.json", model_max_length=8)
    run = trainer(folder, backend="native", measure_drift=False, max_seq_length=20)
    texts = [" ".join(WORDS)]
    expected = SentenceTransformer(str(folder), device="cpu").encode(texts)
    np.testing.assert_allclose(run.encode(texts), expected, atol=1e-5)
    run.export(tmp_path / "export")
    assert SentenceTransformer(str(tmp_path / "export"), device="cpu").max_seq_length == 30
    assert tokenizer_of(folder).model_max_length == 30
