"""Pooling and normalization of embeddings."""

import numpy as np
import pytest
import torch

import modeling_informin
from informin.models.checkpoint import Checkpoint
from informin.models.encode import encode
from informin.models.native_loading import load_trainable
from informin.models.open_model import load_model
from informin.publishing.export import export_checkpoint
from tests.conftest import tokenizer_of
from tests.models.any_encoder.helpers import PLAIN, SENTENCES, read


@pytest.mark.parametrize("side", ["right", "left"])
def test_pooling_ignores_padding_on_either_side(side):
    hidden, lengths = torch.randn(3, 5, 4), (5, 2, 1)
    kept = [range(n) if side == "right" else range(5 - n, 5) for n in lengths]
    mask = torch.tensor([[int(i in tokens) for i in range(5)] for tokens in kept])
    expected = {
        "cls": [row[tokens[0]] for row, tokens in zip(hidden, kept)],
        "mean": [sum(row[i] for i in tokens) / len(tokens) for row, tokens in zip(hidden, kept)],
        "last": [row[tokens[-1]] for row, tokens in zip(hidden, kept)],
    }
    for pooling, vectors in expected.items():
        torch.testing.assert_close(modeling_informin.pool(pooling, hidden, mask), torch.stack(vectors))
        whole = modeling_informin.pool(pooling, hidden)
        torch.testing.assert_close(whole, modeling_informin.pool(pooling, hidden, torch.ones(3, 5)))
    with pytest.raises(ValueError, match="Unknown pooling 'max'; expected one of: cls, mean, last"):
        modeling_informin.pool("max", hidden, mask)


def test_mean_in_half_precision_is_rounded_once():
    hidden = (torch.randn(1, 301, 64, generator=torch.Generator().manual_seed(0)) + 3).bfloat16()
    pooled = modeling_informin.pool("mean", hidden, torch.ones(1, 301, dtype=torch.long))
    assert pooled.equal(hidden.float().mean(1).bfloat16())


@pytest.mark.parametrize("pooling", modeling_informin.POOLINGS)
def test_embedding_follows_settings_and_is_normalized_outside_training(encoder, pooling):
    settings = {"projection_head": "mlp", "lm_head": False, "pooling": pooling}
    model = load_trainable(Checkpoint(encoder), settings)
    batch = tokenizer_of(encoder)(SENTENCES, padding=True, return_tensors="pt")
    model.config.informin["normalize"] = True
    outputs = model.eval()(**batch)
    pooled = modeling_informin.pool(pooling, outputs.last_hidden_state, batch["attention_mask"])
    torch.testing.assert_close(outputs.pooler_output, pooled / pooled.norm(dim=1, keepdim=True))
    outputs = model.train()(**batch)
    pooled = modeling_informin.pool(pooling, outputs.last_hidden_state, batch["attention_mask"])
    torch.testing.assert_close(outputs.pooler_output, pooled)
    torch.testing.assert_close(outputs.projection, torch.tanh(model.mlp.dense(pooled)))
    by_head = encode(model.eval(), tokenizer_of(encoder), SENTENCES, poolers=("mlp",))["mlp"]
    with torch.no_grad():
        expected = model.mlp(model.pool(model(**batch).last_hidden_state, batch["attention_mask"]))
    np.testing.assert_allclose(by_head, expected, atol=2e-6)


@pytest.mark.parametrize("pooling", modeling_informin.POOLINGS)
def test_queue_uses_the_pooling_of_the_model(trainer, pooling):
    how = dict(objective="simcse", queue_size=16, momentum_dropout=0.0, projection_head="none")
    run = trainer("bert", pooler=pooling, **how)
    batch = run.processing_class(SENTENCES[:8], padding=True, return_tensors="pt")
    ids, mask = batch["input_ids"], batch["attention_mask"]
    queue = run.model.heads["queue"]
    queue(run.model, None, ids, mask, torch.arange(4), lambda x: x)
    with torch.no_grad():
        hidden = run.model.base_model.eval()(input_ids=ids[:4], attention_mask=mask[:4]).last_hidden_state
    torch.testing.assert_close(queue.embeddings[:4], modeling_informin.pool(pooling, hidden, mask[:4]))


def test_settings_of_older_versions_mean_cls_without_normalization(bert, tmp_path):
    model = load_trainable(Checkpoint(bert), PLAIN)
    model.config.informin = {"pooling": "cls", "projection_head": "none", "lm_head": False, "max_seq_length": 32}
    model.save_pretrained(tmp_path)
    tokenizer_of(bert).save_pretrained(tmp_path)
    encoder = load_model(str(tmp_path))
    assert (encoder.poolers, encoder.normalized, encoder.prompt, encoder.length) == (("cls",), False, "", 66)
    export_checkpoint(tmp_path, tmp_path / "export")
    assert [module["type"].rpartition(".")[2] for module in read(tmp_path / "export", "modules.json")] == [
        *("Transformer", "Pooling")
    ]
    assert read(tmp_path / "export", "1_Pooling/config.json")["pooling_mode_cls_token"] is True
