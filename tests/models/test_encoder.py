"""Any checkpoint as an encoder: its own pooling, options, damaged files and precision."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, BartConfig, GPT2Config, T5Config

from informin.errors import UsageError
from informin.models.encode import POOLERS
from informin.models.open_model import load_model
from modeling_informin import HEAD_FILE
from tests.conftest import WORDS, raises_usage, tokenizer_of
from tests.models.encoder_helpers import SENTENCES, one_by_one, saved_again

pytestmark = pytest.mark.usefixtures("quiet")


def change_json(path: Path, **changes) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_our_checkpoints_store_their_pooling(ours):
    encoder = load_model(str(ours))
    assert (encoder.name, encoder.poolers, encoder.normalized, encoder.bf16) == (str(ours), ("cls",), False, False)
    assert encoder.length == {"bert": 66, "roberta": 64}[encoder.module.config.model_type]
    assert type(encoder.module).__name__.endswith("ForInforMinCL")
    assert load_model(str(ours), ("mean", "cls", "mlp", "mean")).poolers == ("mean", "cls", "mlp")
    with raises_usage(option="pooler", found="is auto mean", needed="auto alone"):
        load_model(str(ours), ("auto", "mean"))
    trained = load_file(ours / HEAD_FILE)["dense.weight"]
    assert torch.equal(encoder.module.mlp.dense.weight, trained)


def test_checkpoint_without_its_projection_head(ours, tmp_path):
    """Saving with a plain class loses the head but keeps its settings."""
    plain = saved_again(ours, tmp_path / "saved-again")
    assert json.loads((plain / "config.json").read_text())["informin"]["projection_head"] == "mlp"
    expected = load_model(str(ours))(SENTENCES)["cls"]
    first, second = load_model(str(plain)), load_model(str(plain))
    np.testing.assert_allclose(first(SENTENCES)["cls"], expected, atol=1e-6)
    assert first.poolers == ("cls",) and first.weights_sha256() == second.weights_sha256()
    with raises_usage(option="pooler", found=f"is mlp, but {plain} has no projection head"):
        load_model(str(plain), ("mlp",))


def test_plain_checkpoint_requires_a_pooler(bert):
    found = f"is auto, but the pooling of {bert} is unknown: it has no sentence-transformers files"
    needed = "one of: cls, mean, last, first_last, embeddings_last, last2, mlp"
    with raises_usage(option="pooler", found=found, needed=needed):
        load_model(str(bert))


@pytest.mark.parametrize("pooler", [pooler for pooler in POOLERS if pooler != "mlp"])
def test_plain_checkpoint_with_a_pooler(encoder, pooler):
    """Compared with a plain AutoModel."""
    embeddings = load_model(str(encoder), (pooler,))(SENTENCES)[pooler]
    model = AutoModel.from_pretrained(encoder)
    np.testing.assert_allclose(embeddings, one_by_one(model, tokenizer_of(encoder), pooler, SENTENCES), atol=2e-6)


@pytest.mark.parametrize(
    "pooler, found, needed",
    [
        ("mlp", "is mlp, but MODEL has no projection head", "a checkpoint that this project trained with"),
        ("max", "is max", "one of: auto, cls, mean, last, first_last, embeddings_last, last2, mlp"),
    ],
)
def test_pooling_that_a_plain_checkpoint_lacks_is_refused(bert, pooler, found, needed):
    with raises_usage(option="pooler", found=found.replace("MODEL", str(bert)), needed=needed):
        load_model(str(bert), ("cls", pooler))


@pytest.mark.parametrize(
    "options, option, found, needed",
    [
        (dict(length=67), "max_length", "is 67", "3 to 66 tokens for"),
        (dict(length=2), "max_length", "is 2", "3 to 66 tokens for"),
        (dict(length=0), "max_length", "is 0", "3 to 66 tokens for"),
        (dict(batch_size=0), "batch_size", "is 0", "1 or more"),
        (dict(batch_size=-8), "batch_size", "is -8", "1 or more"),
        (dict(device="gpu"), "device", "gpu cannot be used: Expected one of cpu, cuda", ""),
        (dict(device="cuda:99"), "device", "cuda:99 cannot be used: ", ""),
    ],
)
def test_invalid_options_are_refused(bert, options, option, found, needed):
    with raises_usage(option=option, found=found, needed=needed):
        load_model(str(bert), ("cls",), **options)


@pytest.mark.parametrize("length", [3, 66])
def test_lengths_at_the_edge(bert, length):
    encoder = load_model(str(bert), ("cls",), length)
    encoder([" ".join(WORDS * 3)])
    assert encoder.length == length


def test_roberta_accepts_two_tokens_fewer_than_positions(roberta):
    with raises_usage(option="max_length", found="is 65", needed="3 to 64 tokens"):
        load_model(str(roberta), ("cls",), 65)


def cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def pointer(folder: Path) -> None:
    """Write the pointer file that a clone without Git LFS contains instead of the weights."""
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")


def cut_pickle(folder: Path) -> None:
    path = folder / "pytorch_model.bin"
    torch.save(load_file(folder / "model.safetensors"), path)
    (folder / "model.safetensors").unlink()
    path.write_bytes(path.read_bytes()[:-100])


def no_tokenizer(folder: Path) -> None:
    for path in folder.glob("token*"):
        path.unlink()


@pytest.mark.parametrize(
    "damage, message",
    [
        (cut_weights, "`model_name` MODEL cannot be loaded: Error while deserializing header"),
        (pointer, "`model_name` MODEL cannot be loaded: "),
        (cut_pickle, "`model_name` MODEL cannot be loaded: "),
        (lambda folder: (folder / "model.safetensors").unlink(), "`model_name` MODEL cannot be loaded: Error no file"),
        (no_tokenizer, "`model_name` MODEL has no vocabulary next to its weights. Copy tokenizer.json"),
        (
            lambda folder: change_json(folder / "config.json", num_hidden_layers=3),
            "`model_name` MODEL lacks 16 weights of the encoder, such as encoder.layer.2.attention.output.LayerNorm.b",
        ),
        (
            lambda folder: change_json(folder / "config.json", hidden_size=64),
            "`model_name` MODEL cannot be loaded: embeddings.LayerNorm.bias has the shape (32,) in its weights",
        ),
        (lambda folder: (folder / "modules.json").write_text("["), "MODEL/modules.json is not JSON ("),
    ],
    ids=[
        "cut",
        "pointer",
        "cut-pickle",
        "no-weights",
        "no-tokenizer",
        "fewer-layers",
        "other-width",
        "modules",
    ],
)
def test_damaged_checkpoints(copied, damage, message):
    folder = copied()
    damage(folder)
    with pytest.raises(UsageError) as caught:
        load_model(str(folder), ("cls",))
    assert str(caught.value).startswith(message.replace("MODEL", str(folder)))


@pytest.mark.parametrize("config", [GPT2Config, T5Config, BartConfig], ids=["gpt2", "t5", "bart"])
def test_other_architectures_are_refused(copied, config):
    folder = copied()
    config().save_pretrained(folder)
    found = f"{folder} has the architecture '{config.model_type}'"
    with raises_usage(option="model_name", found=found, needed="an encoder like BERT"):
        load_model(str(folder), ("mean",))


def test_half_precision_weights_are_loaded_in_float32(copied, bert):
    folder = copied()
    AutoModel.from_pretrained(bert).half().save_pretrained(folder)
    assert {x.dtype for x in load_file(folder / "model.safetensors").values()} == {torch.float16}
    encoder = load_model(str(folder), ("mean",))
    assert {p.dtype for p in encoder.module.parameters()} == {torch.float32}
    rounded = AutoModel.from_pretrained(bert).half().float()
    expected = one_by_one(rounded, tokenizer_of(bert), "mean", SENTENCES)
    np.testing.assert_allclose(encoder(SENTENCES)["mean"], expected, atol=2e-6)
