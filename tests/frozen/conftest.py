"""Models and texts, and an index of 150 sentences that a tiny BERT embeds."""

from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import StaticEmbedding
from tokenizers import Tokenizer, models, pre_tokenizers

from informin.frozen.index import Index
from tests.conftest import WORDS, make_sentences, save_sentence_transformer
from tests.support import one_layer

bert, roberta, st_mean = one_layer.bert, one_layer.roberta, one_layer.st_mean

TEXTS = make_sentences(320)
PROMPTS = {"query": "the ", "document": "a young "}


@pytest.fixture(scope="package")
def static(tmp_path_factory) -> Path:
    """A model without a transformer, which does not normalize."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(["[UNK]", *WORDS])}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = tmp_path_factory.mktemp("models") / "static"
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=16)], device="cpu")
    model.save_pretrained(str(folder), create_model_card=False)
    return folder


@pytest.fixture(scope="package")
def prompted(bert, tmp_path_factory) -> Path:
    """A BERT with prompts for queries and documents."""
    return save_sentence_transformer(tmp_path_factory.mktemp("models") / "prompted", bert, prompts=PROMPTS)


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return make_sentences(150)


@pytest.fixture(scope="session")
def built(st_mean, texts) -> Index:
    """Tests must not change it."""
    return Index.build(st_mean, texts)
