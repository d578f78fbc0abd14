"""Folders of sentence-transformers as encoders."""

import json
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoModel

from informin.models.open_model import load_model
from tests.conftest import raises_usage, tokenizer_of
from tests.models.encoder_helpers import SENTENCES, one_by_one

pytestmark = pytest.mark.usefixtures("quiet")


def compact(bert: Path, folder: Path, pooling, normalize: bool = False, length: int | None = None) -> Path:
    """Save a model with sentence-transformers."""
    from sentence_transformers import SentenceTransformer, models

    transformer = models.Transformer(str(bert))
    pool = models.Pooling(transformer.get_embedding_dimension(), pooling_mode=pooling)
    model = SentenceTransformer(modules=[transformer, pool, *([models.Normalize()] if normalize else [])], device="cpu")
    if length:
        model.max_seq_length = length
    model.save(str(folder))
    return folder


def verbose(bert: Path, folder: Path, pooling: dict, *more: str, length: int | None = None) -> Path:
    """Save the older format, which most models on the Hub have."""
    AutoModel.from_pretrained(bert).save_pretrained(folder)
    tokenizer_of(bert).save_pretrained(folder)
    kinds = ["Transformer", "Pooling", *more]
    paths = ["", *(f"{i}_{kind}" for i, kind in enumerate(kinds) if i)]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(zip(paths, kinds))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    names = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
    config = {"word_embedding_dimension": 32} | {f"pooling_mode_{name}": name in pooling for name in names}
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))
    settings = {"max_seq_length": length, "do_lower_case": False}
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
    return folder


def assert_as_sentence_transformers(folder: Path, pooler: str, normalized: bool, length: int) -> None:
    from sentence_transformers import SentenceTransformer

    encoder = load_model(str(folder))
    assert (encoder.poolers, encoder.normalized, encoder.length) == ((pooler,), normalized, length)
    embeddings = encoder(SENTENCES)[pooler]
    assert embeddings.dtype == np.float32
    np.testing.assert_allclose(embeddings, SentenceTransformer(str(folder), device="cpu").encode(SENTENCES), atol=1e-5)
    assert (np.abs(np.linalg.norm(embeddings, axis=1) - 1).max() < 1e-5) == normalized


@pytest.mark.parametrize("length", [None, 7])
@pytest.mark.parametrize("pooler, normalize", [("cls", True), ("mean", False), ("mean", True)])
def test_folders_of_current_sentence_transformers(bert, tmp_path, pooler, normalize, length):
    folder = compact(bert, tmp_path / "st", pooler, normalize, length)
    assert_as_sentence_transformers(folder, pooler, normalize, length or 66)


@pytest.mark.parametrize("length", [None, 7, 512])
@pytest.mark.parametrize("mode, normalize", [("cls_token", False), ("mean_tokens", True)])
def test_folders_of_older_sentence_transformers(bert, tmp_path, mode, normalize, length):
    folder = verbose(bert, tmp_path / "st", {mode}, *(["Normalize"] if normalize else []), length=length)
    if length == 512:  # more than the model reads: sentence-transformers would fail on long sentences
        assert load_model(str(folder)).length == 66
    else:
        assert_as_sentence_transformers(folder, mode.partition("_")[0], normalize, length or 66)


@pytest.mark.parametrize(
    "build, problem",
    [
        (lambda bert, to: compact(bert, to, "max", length=9), "its pooling is max, which is not supported"),
        (
            lambda bert, to: compact(bert, to, ("cls", "mean"), length=9),
            "its pooling is ['cls', 'mean'], which is not sup",
        ),
        (lambda bert, to: verbose(bert, to, {"max_tokens"}, length=9), "its pooling is pooling_mode_max_tokens, which"),
        (
            lambda bert, to: verbose(bert, to, {"cls_token", "mean_tokens"}, "Normalize", length=9),
            "its pooling is ['pooling_mode_cls_token', 'pooling_mode_mean_tokens'], which is not supported",
        ),
        (lambda bert, to: verbose(bert, to, set(), length=9), "its pooling is [], which is not supported"),
        (
            lambda bert, to: verbose(bert, to, {"mean_tokens"}, "Dense", "Normalize"),
            "modules.json lists Transformer, Pooling, Dense, Normalize, not all of which are supported",
        ),
    ],
    ids=["max", "cls-and-mean", "older-max", "older-cls-and-mean", "older-none", "dense"],
)
def test_unsupported_sentence_transformers_require_a_pooler(bert, tmp_path, build, problem):
    """Refused by the native backend, with the reason. With an explicit pooler, embeddings are not normalized."""
    folder = build(bert, tmp_path / "st")
    with raises_usage(option="pooler", found=f"is auto, but the pooling of {folder} is unknown: {problem}"):
        load_model(str(folder), backend="native")
    encoder = load_model(str(folder), ("mean",))
    assert not encoder.normalized
    short = [s for s in SENTENCES if len(s.split()) <= 7]
    expected = one_by_one(AutoModel.from_pretrained(bert), tokenizer_of(bert), "mean", short)
    np.testing.assert_allclose(encoder(short)["mean"], expected, atol=2e-6)


def test_explicit_pooler_disables_normalization(bert, tmp_path):
    folder = compact(bert, tmp_path / "st", "mean", normalize=True, length=7)
    encoder = load_model(str(folder), ("mean",))
    assert not encoder.normalized and encoder.length == 7
    assert np.abs(np.linalg.norm(encoder(SENTENCES)["mean"], axis=1) - 1).max() > 0.1
