"""Checksums of weights, settings and starting encoders."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from informin.jobs.models import load_model as in_memory_model
from informin.models import native
from informin.models.checkpoint import Checkpoint
from informin.models.native_loading import load_config, load_saved, load_trainable
from informin.models.open_model import in_memory, load_model
from informin.publishing.export import export_folder
from tests.conftest import tokenizer_of
from tests.models.encoder_helpers import SENTENCES, SETTINGS, saved_again

pytestmark = pytest.mark.usefixtures("quiet")


def test_weights_sha256_depends_on_weights_and_not_on_folders(copied, bert):
    """The plain checkpoint has no BERT pooler, so each load initializes a random one."""
    first = load_model(str(bert), ("cls",)).weights_sha256()
    folder = copied()
    assert re.fullmatch(r"[0-9a-f]{64}", first)
    assert load_model(str(folder), ("mean",), length=9).weights_sha256() == first
    weights = load_file(folder / "model.safetensors")
    weights["bert.encoder.layer.1.output.dense.bias"][3] += 1e-3
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert load_model(str(folder), ("cls",)).weights_sha256() != first


def test_sha256_covers_everything_that_affects_embeddings(copied, bert):
    first = load_model(str(bert), ("cls",))
    assert re.fullmatch(r"[0-9a-f]{64}", first.sha256())
    first(SENTENCES)  # tokenizers keep the truncation and padding of the last call
    folder = copied()
    same = load_model(str(folder), ("cls",), batch_size=3)
    assert same.sha256() == first.sha256(), "not with the folder or the batch"
    options = [dict(poolers=("mean",)), dict(length=9), dict(prompt="query: "), dict(bf16=True)]
    found = {first.sha256(), *(load_model(str(bert), **(dict(poolers=("cls",)) | how)).sha256() for how in options)}
    assert len(found) == 1 + len(options)


def edited(folder: Path, name: str, **changes) -> str:
    """Return the checksum after changing values in a JSON file of the folder."""
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return load_model(str(folder), ("cls",)).sha256()


def test_sha256_changes_with_configuration_tokenizer_and_weights(copied, bert):
    first = load_model(str(bert), ("cls",)).sha256()
    words = json.loads((bert / "tokenizer.json").read_text())["model"]
    vocabulary = words["vocab"] | {"dog": words["vocab"]["cat"], "cat": words["vocab"]["dog"]}
    changes = [
        ("config.json", dict(layer_norm_eps=1e-5)),
        ("config.json", dict(hidden_act="relu")),
        ("tokenizer.json", dict(model=words | {"vocab": vocabulary})),
        ("tokenizer_config.json", dict(do_lower_case=False)),
        ("tokenizer_config.json", dict(truncation_side="left")),
    ]
    found = [edited(copied(bert, f"{i}"), name, **change) for i, (name, change) in enumerate(changes)]
    folder = copied()
    weights = load_file(folder / "model.safetensors")
    weights["bert.encoder.layer.1.output.dense.bias"][3] += 1e-3
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    found.append(load_model(str(folder), ("cls",)).sha256())
    assert len({first, *found}) == 1 + len(found)
    assert edited(copied(bert, "version"), "config.json", transformers_version="5.0.0") == first
    assert edited(copied(bert, "side"), "tokenizer_config.json", padding_side="left") == first  # always on the right


def test_sha256_of_a_model_in_memory_covers_its_settings(bert):
    pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    from sentence_transformers import SentenceTransformer, models

    def checksum(mode="mean", extra=(), truncate_dim=None, side="right") -> str:
        torch.manual_seed(0)  # the checkpoint has no pooler
        transformer = models.Transformer(str(bert))
        pooling = models.Pooling(transformer.get_embedding_dimension(), mode)
        model = SentenceTransformer(modules=[transformer, pooling, *extra], device="cpu", truncate_dim=truncate_dim)
        model.tokenizer.truncation_side = side
        model.encode(SENTENCES)  # tokenizers keep the truncation and padding of the last call
        return in_memory_model(model).sha256()

    first = checksum()
    others = [checksum("cls"), checksum(extra=[models.Normalize()]), checksum(truncate_dim=8), checksum(side="left")]
    assert first == checksum() and len({first, *others}) == 5


def export_without_head(start: Path, folder: Path) -> Path:
    settings = SETTINGS | {"projection_head": "none"}
    export_folder(in_memory(load_trainable(Checkpoint(start), settings), tokenizer_of(start)), folder)
    return folder


def checkpoint(start: Path, folder: Path) -> Path:
    """A checkpoint of a training with all heads: names have our prefix and include the language-model head."""
    settings = SETTINGS | {"lm_head": True}
    load_trainable(Checkpoint(start), settings).save_pretrained(folder)
    tokenizer_of(start).save_pretrained(folder)
    return folder


STARTING_ENCODERS = {
    "plain": lambda plain, ours, to: plain,
    "export": lambda plain, ours, to: ours,
    "export-without-head": lambda plain, ours, to: export_without_head(plain, to),
    "saved-again": lambda plain, ours, to: saved_again(ours, to),
    "checkpoint": lambda plain, ours, to: checkpoint(plain, to),
}


@pytest.mark.parametrize("projection_head", ["mlp", "none"])
@pytest.mark.parametrize("start", STARTING_ENCODERS)
def test_starting_sha256_equals_that_of_the_encoder(ours, bert, roberta, tmp_path, monkeypatch, start, projection_head):
    """Computed from a model in training with other heads; the checkpoint is reloaded only for a missing head."""
    plain = bert if load_config(Checkpoint(ours)).model_type == "bert" else roberta
    folder = str(STARTING_ENCODERS[start](plain, ours, tmp_path / "start"))
    expected = load_model(folder, ("cls",)).weights_sha256()
    settings = SETTINGS | {"projection_head": projection_head, "lm_head": start in ("plain", "checkpoint")}
    model = load_trainable(Checkpoint(folder), settings)
    model.heads["own"] = torch.nn.Linear(2, 2)
    loaded = []
    began = dataclasses.replace(in_memory(model), checkpoint=Checkpoint(folder))
    monkeypatch.setattr(native, "load_saved", lambda *args: loaded.append(args) or load_saved(*args))
    assert began.starting_sha256() == expected
    assert bool(loaded) == (start in ("export", "checkpoint") and projection_head == "none")
    with torch.no_grad():
        model.base_model.embeddings.word_embeddings.weight[3, 3] += 1e-3
    assert bool(loaded) or began.starting_sha256() != expected
