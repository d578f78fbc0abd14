"""Every architecture trains, resumes, and exports to a folder that other libraries load."""

import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModel, AutoTokenizer

import run_unsup
from informin.models.architectures import ARCHITECTURES, architecture_of
from informin.models.checkpoint import Checkpoint
from informin.models.native_loading import load_trainable
from informin.models.open_model import load_model
from informin.publishing.export import export_checkpoint
from informin.publishing.published import check_export, published_files
from informin.views.attention import prepare_encoder
from tests.conftest import make_sentences, raises_usage, tokenizer_of
from tests.models.any_encoder.helpers import ALL, OBJECTIVES, PLAIN, SENTENCES, by_sentence_transformers, read

WITHOUT_MAPS, WITHOUT_HEAD = (
    ("mpnet", "deberta-v2", "albert"),
    ("distilbert", "electra", "deberta-v2", "modernbert", "albert"),
)
REFUSED = {
    **{
        (name, "mlm"): ("mlm_weight", f"a language-model head, which is not supported for the architecture '{name}'")
        for name in WITHOUT_HEAD
    },
    **{
        (name, "scd"): ("view_dropout", f"which is not supported for the architecture '{name}'")
        for name in WITHOUT_MAPS
    },
    **{
        (name, "micse"): (
            "attention_mi_weight",
            f"attention maps, which is not supported for the architecture '{name}'",
        )
        for name in WITHOUT_MAPS
    },
}


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("name", ALL)
def test_training_changes_every_weight_or_is_refused(trainer, name, objective):
    if (name, objective) in REFUSED:
        option, found = REFUSED[name, objective]
        with raises_usage(option=option, found=found):
            trainer(name, **OBJECTIVES[objective])
        return
    run = trainer(name, **OBJECTIVES[objective])
    before = {name: weight.clone() for name, weight in run.model.named_parameters()}
    run.train()
    frozen = [name for name, weight in run.model.named_parameters() if weight.equal(before[name])]
    assert all(name.startswith("heads.queue.encoder.") and name.endswith(".key.bias") for name in frozen)
    assert np.isfinite(run.state.log_history[0]["loss"])


@pytest.mark.parametrize("name", ALL)
def test_export_gives_the_same_embeddings_in_other_libraries(trainer, name, tmp_path):
    """With AutoModel without remote code, sentence-transformers, and `load_model`."""
    run = trainer(name, pooler="mean")
    run.train()
    folder = tmp_path / "export"
    run.export(folder)
    check_export(folder)
    assert {path.as_posix() for path in published_files(folder)} >= {
        "modules.json",
        "projection_head/model.safetensors",
    }
    own_class = name in ("bert", "roberta")
    assert (folder / "modeling_informin.py").exists() == ("auto_map" in read(folder)) == own_class
    expected, encoder = run.encode(SENTENCES), load_model(str(folder))
    assert type(encoder.module) is type(run.model) and encoder.poolers == ("mean",) and not encoder.normalized
    np.testing.assert_allclose(encoder(SENTENCES)["mean"], expected, atol=1e-5)
    np.testing.assert_allclose(by_sentence_transformers(folder), expected, atol=1e-5)
    plain, tokenizer = (
        AutoModel.from_pretrained(folder, trust_remote_code=False).eval(),
        AutoTokenizer.from_pretrained(folder),
    )
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden, mask = plain(**batch).last_hidden_state, batch["attention_mask"][..., None]
    np.testing.assert_allclose((hidden * mask).sum(1) / mask.sum(1), expected, atol=1e-5)
    head = load_trainable(Checkpoint(folder), PLAIN | {"projection_head": "mlp"}).mlp
    assert head.dense.weight.equal(run.model.mlp.dense.weight)


@pytest.mark.parametrize("name", ALL)
def test_resumed_run_has_the_same_weights(trainer, name, tmp_path):
    how = dict(max_steps=4, save_strategy="steps", save_steps=2, save_total_limit=None)
    trainer(name, tmp_path / "whole", **how).train()
    shutil.copytree(tmp_path / "whole" / "checkpoint-2", tmp_path / "again" / "checkpoint-2")
    trainer(name, tmp_path / "again", **how).train("last")
    whole, again = (load_file(tmp_path / run / "checkpoint-4" / "model.safetensors") for run in ("whole", "again"))
    assert whole.keys() == again.keys() and all(whole[key].equal(again[key]) for key in whole)
    export_checkpoint(tmp_path / "again" / "checkpoint-4", tmp_path / "export")
    check_export(tmp_path / "export")
    assert not {"dropouts", "sentence_transformers"} & read(tmp_path / "export")["informin"].keys()


EXCHANGED = [name for name, row in ARCHITECTURES.items() if row.attention]


@pytest.mark.parametrize("name", EXCHANGED)
def test_view_dropout_reaches_every_module_and_maps_match_eager_attention(folder_of, name):
    """A view with rate 0 equals the encoder without dropout; a view with rate 0.5 does not."""
    folder = folder_of(name)
    model = AutoModel.from_pretrained(folder)
    plain = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    batch = tokenizer_of(folder)(make_sentences(6), padding=True, return_tensors="pt", return_token_type_ids=False)
    rows = {name: batch[name].repeat(3, 1) for name in ("input_ids", "attention_mask")}
    assert not batch["attention_mask"].all()
    row = architecture_of(model.config)
    prepare_encoder(model, row.attentions(model), [0.0, 0.5, 0.0], [1])
    outputs = model.train()(**rows, output_attentions=True)
    with torch.no_grad():
        expected = plain(**{k: batch[k] for k in rows}, output_attentions=True)
    first, second, third = outputs.last_hidden_state.chunk(3)
    for view in (first, third):
        torch.testing.assert_close(view, expected.last_hidden_state, rtol=1e-4, atol=1e-5)
    assert (second - expected.last_hidden_state).abs().mean() > 0.1
    (maps,) = [layer for layer in outputs.attentions if layer is not None]
    torch.testing.assert_close(maps.chunk(3)[0], expected.attentions[1], rtol=1e-4, atol=1e-5)
    zeros = (maps.chunk(3)[1] == 0)[batch["attention_mask"].bool()[:, None, None].expand_as(maps.chunk(3)[1])]
    assert name == "modernbert" or 0.4 < zeros.float().mean() < 0.6  # its local attention masks more
    prepare_encoder(model, row.attentions(model))
    assert {m.p for m in model.modules() if isinstance(m, nn.Dropout)} == ({0.0} if name == "modernbert" else {0.1})


def test_view_dropout_rate_applies_only_in_training(trainer, tmp_path):
    """Encoder and configuration have the rate in training and not afterwards. The queue has its own rate."""
    run = trainer("modernbert", view_dropout_rate=0.25, save_strategy="steps", save_steps=2, **OBJECTIVES["micse"])
    rates = {module.p for module in run.model.base_model.modules() if isinstance(module, nn.Dropout)}
    assert rates == {0.25} and run.model.base_model.layers[0].attn.attention_dropout == 0.25
    slow = run.model.heads["queue"].encoder
    assert {module.p for module in slow.modules() if isinstance(module, nn.Dropout)} == {0.3}
    assert slow.layers[0].attn.attention_dropout == 0.3
    run.train()
    run.export(tmp_path / "export")
    names = ARCHITECTURES["modernbert"].dropouts
    assert [read(tmp_path / "run" / "checkpoint-2")[name] for name in names] == [0.25] * 3
    assert [read(tmp_path / "export")[name] for name in names] == [0.0] * 3
    # Loading the checkpoint also restores the encoder's own rates.
    again = load_trainable(Checkpoint(tmp_path / "run" / "checkpoint-2"), PLAIN)
    assert [getattr(again.config, name) for name in names] == [0.0] * 3


@pytest.mark.parametrize("name", ["modernbert", "xlm-roberta"])
def test_command_trains_and_resumes(command, folder_of, name, tmp_path, capsys):
    more = {"modernbert": dict(view_dropout_rate=0.1), "xlm-roberta": dict(mlm_weight=0.1, pooler="last")}[name]
    assert run_unsup.main(command(model_name=folder_of(name), **more)) == 0
    assert (
        run_unsup.main(
            command(
                model_name=folder_of(name),
                max_steps=6,
                resume_from_checkpoint="last",
                resume_with_changes="true",
                **more,
            )
        )
        == 0
    )
    assert read(tmp_path / "run", "training.json")["steps"] == 6
    encoder = load_model(str(tmp_path / "run"))
    assert encoder.poolers == (more.get("pooler", "cls"),)
    np.testing.assert_allclose(
        by_sentence_transformers(tmp_path / "run"), encoder(SENTENCES)[encoder.poolers[0]], atol=1e-5
    )
