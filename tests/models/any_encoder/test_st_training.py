"""Train models that are no native architecture, through sentence-transformers."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer

import run_unsup
from informin.adapters.linear import LinearAdapter
from informin.cli import eval as eval_command
from informin.models.open_model import load_model
from informin.models.st_module import StModule, refuse_identical_views
from informin.publishing.adapted import save_adapted
from informin.publishing.added_results import add_results
from informin.publishing.card.page import write_card
from informin.publishing.export import export_checkpoint
from informin.publishing.published import check_export, published_files
from tests.conftest import WORDS, make_sentences, raises_usage
from tests.models.any_encoder.helpers import change, changed, interrupted, read, sentence_transformer, weights
from tests.models.any_encoder.st_models import FAMILIES, PROMPTS

TEXTS = ["the dog", *make_sentences(9), " ".join(WORDS * 2), "a cat sees the red house"]


def loaded(folder, trust: bool = False) -> SentenceTransformer:
    return SentenceTransformer(str(folder), device="cpu", trust_remote_code=trust)


@pytest.mark.parametrize("name", FAMILIES)
def test_training_changes_weights_and_export_gives_the_same_embeddings(train, family, name, tmp_path):
    run = train(name)
    assert isinstance(run.model, StModule) and run.args.backend == "st"
    before = weights(run.model)
    run.train()
    unchanged = set(before) - changed(before, weights(run.model))
    assert all(".pooler." in weight for weight in unchanged), unchanged
    trained = {weight for weight, x in run.model.named_parameters() if x.requires_grad}
    assert trained <= set(before) - unchanged, "with several processes, each trained weight needs a gradient"
    run.export(tmp_path / "export")
    check_export(tmp_path / "export")
    old, new = loaded(family(name), name == "remote"), loaded(tmp_path / "export", name == "remote")
    np.testing.assert_allclose(new.encode(TEXTS), run.encode(TEXTS), atol=1e-5)
    np.testing.assert_allclose(load_by_us(tmp_path / "export", name), run.encode(TEXTS), atol=1e-5)
    assert np.abs(new.encode(TEXTS) - old.encode(TEXTS)).max() > 1e-3
    kept = ("prompts", "default_prompt_name", "similarity_fn_name", "max_seq_length", "truncate_dim")
    assert [getattr(new, key) for key in kept] == [getattr(old, key) for key in kept]
    assert [type(module).__name__ for module in new] == [type(module).__name__ for module in old]
    card = (tmp_path / "export" / "README.md").read_text()
    assert "output of the model's own modules" in card and "AutoModel" not in card
    assert ("trust_remote_code=True" in card) == (name == "remote")
    assert f"({new.get_embedding_dimension()} dimensions)" in card


@pytest.mark.parametrize("name", ["qwen3", "remote"])
def test_results_are_added_to_the_export(train, family, tmp_path, capsys, name):
    """They are in the folder then, and do not change its checksum."""
    run, trust = train(name), {"trust_remote_code": True} if name == "remote" else {}
    run.train()
    run.export(tmp_path / "export")
    labels = tmp_path / "labels.tsv"
    labels.write_text("text\tlabel\n" + "".join(f"{text}\t{i % 2}\n" for i, text in enumerate(make_sentences(9))))
    folders = [str(tmp_path / "export"), str(family(name))]
    how = ["--labels", str(labels), "--output", str(tmp_path / "scores"), *(f"--{option}" for option in trust)]
    assert eval_command.main(["--model_name", *folders, *how]) == 0
    for _ in range(2):
        add_results(tmp_path / "export", [str(tmp_path / "scores")], **trust)
    added = [read(tmp_path / "export" / "results", name) for name in ("model.json", "base-st.json")]
    assert [results["model"] for results in added] == ["this model", "before training"]
    write_card(tmp_path / "export")
    assert "| before training, the model's own pooling " in (tmp_path / "export" / "README.md").read_text()
    (tmp_path / "export" / "onnx").mkdir()
    (tmp_path / "export" / "onnx" / "model.onnx").touch()  # its hidden states are not yet the embeddings
    write_card(tmp_path / "export")
    assert "onnxruntime" not in (tmp_path / "export" / "README.md").read_text()
    foreign = read(tmp_path / "export" / "results", "model.json") | {"max_length": 8}
    (tmp_path / "x.json").write_text(json.dumps(foreign))
    with raises_usage(found="was scored with max_length 8"):
        add_results(tmp_path / "export", [str(tmp_path / "x.json")], **trust)
    if trust:
        with raises_usage(option="model_name", found="needs code from its repository"):
            add_results(tmp_path / "export", [str(tmp_path / "scores")])


def load_by_us(folder, name: str) -> np.ndarray:
    return load_model(str(folder), device="cpu", trust_remote_code=name == "remote")(TEXTS)["st"]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_checkpoint_of_a_resumed_run_is_exported(train, name, tmp_path):
    whole, again = interrupted(train, name, tmp_path)
    assert not changed(weights(whole.model), weights(again.model))
    trust = name == "remote"
    export_checkpoint(tmp_path / "again" / "checkpoint-4", tmp_path / "export")
    np.testing.assert_allclose(loaded(tmp_path / "export", trust).encode(TEXTS), whole.encode(TEXTS), atol=1e-5)
    names = {path.name for path in published_files(tmp_path / "export")}
    assert "training.json" in names and not {"optimizer.pt", "trainer_state.json", "manifest.json"} & names
    with raises_usage(found="is a checkpoint, which cannot be published"):
        check_export(tmp_path / "again" / "checkpoint-4")


def test_heads_of_terms_are_resumed(train, tmp_path):
    how = dict(objective="informin", projector_size=16, decorrelation_weight=0.1)
    whole, again = interrupted(train, "labse", tmp_path, **how)
    assert whole.model.heads and not changed(weights(whole.model), weights(again.model))


def test_native_architecture_on_both_backends(bert, train, tmp_path):
    """The same loss and the same weights without dropout, from the same tokens."""
    folder = sentence_transformer(bert, tmp_path / "model")
    change(folder, "config.json", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    how = dict(view="crop", projection_head="none", padding_free=False, max_grad_norm=0.0, optim="sgd")
    runs = {backend: train(folder, tmp_path / backend, backend=backend, **how) for backend in ("native", "st")}
    for run in runs.values():
        run.train()
    losses = [run.state.log_history[0]["loss"] for run in runs.values()]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    native, st = (run.encode(TEXTS) for run in runs.values())
    np.testing.assert_allclose(native, st, atol=1e-4)


def test_python_object_is_trained_in_place(family, train, tmp_path):
    model = loaded(family("labse"))
    before = model.encode(TEXTS)
    run = train(model, view="dropout")
    assert run.model.st is model
    run.train()
    after = model.encode(TEXTS)
    assert np.abs(after - before).max() > 1e-3
    run.export(tmp_path / "export")
    np.testing.assert_allclose(loaded(tmp_path / "export").encode(TEXTS), after, atol=1e-5)


def test_model_is_its_own_guide(train, tmp_path):
    """Its embeddings before the first step, with the length of training; no second model is loaded."""
    run = train("qwen3", objective="guided", guided_weight=1.0, view="crop", max_seq_length=8)
    assert run.model.st.max_seq_length == 24
    (file,) = (path for path in (tmp_path / "run" / "guide").glob("*.npy") if "means" not in path.name)
    run.model.st.max_seq_length = 8
    np.testing.assert_allclose(np.load(file), run.model.encode(make_sentences(96), 4), atol=1e-3)
    run.train()
    assert np.isfinite(run.state.log_history[0]["loss"])


def test_prompt_and_default_prompt(family, train, tmp_path):
    """EmbeddingGemma has a default prompt. A training prompt is exported only on request."""
    assert train("gemma").model.encoder.prompt == PROMPTS["query"]
    run = train("gemma", prompt="a small ", export_prompt=True)
    run.train()
    run.export(tmp_path / "export")
    new = loaded(tmp_path / "export")
    assert new.prompts[new.default_prompt_name] == "a small " and PROMPTS.items() <= new.prompts.items()
    np.testing.assert_allclose(new.encode(TEXTS), run.encode(TEXTS), atol=1e-5)
    assert run.model.st.default_prompt_name == "query"


def test_pooling_without_the_prompt(family, train, tmp_path):
    """Instruction models leave the prompt out of the mean."""
    source = shutil.copytree(family("gemma"), tmp_path / "source")
    change(source, "1_Pooling/config.json", include_prompt=False)
    run = train(source, prompt="the old ")
    assert run.model.prompt_tokens == 2
    with torch.no_grad():
        batch = run.model.tokenizer(["the old " + text for text in TEXTS], padding=True, return_tensors="pt")
        run.model.eval()
        kept = {name: batch[name][:, :24] for name in ("input_ids", "attention_mask")}
        ours = run.model(**kept).pooler_output
    np.testing.assert_allclose(ours[:10], run.encode(TEXTS)[:10], atol=1e-5)


def test_truncated_dimensions_are_trained_and_kept(family, train, tmp_path):
    source = shutil.copytree(family("qwen3"), tmp_path / "source")
    change(source, "config_sentence_transformers.json", truncate_dim=12)
    run = train(source)
    assert run.model.config.hidden_size == 12
    run.train()
    run.export(tmp_path / "export")
    assert loaded(tmp_path / "export").truncate_dim == 12
    np.testing.assert_allclose(loaded(tmp_path / "export").encode(TEXTS), run.encode(TEXTS), atol=1e-5)


@pytest.mark.parametrize("train_dense", [True, False])
def test_dense_modules_are_trained_or_kept(train, train_dense):
    run = train("labse", train_dense=train_dense)
    before = weights(run.model)
    run.train()
    dense = {name for name in before if ".linear." in name and "st.2" in name}
    assert len(dense) == 2 and bool(changed(before, weights(run.model)) & dense) == train_dense


def test_gradient_cache_gives_the_same_gradient(train, tmp_path):
    runs = [
        train("labse", tmp_path / str(chunk), gradient_cache_chunk_size=chunk, optim="sgd", view="crop")
        for chunk in (None, 4)
    ]
    for run in runs:
        for module in run.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        run.train()
    one, other = (weights(run.model) for run in runs)
    assert all(torch.allclose(one[name], other[name], atol=1e-5) for name in one)


REFUSED = {
    "masked_lm": (dict(objective="informin", mlm_weight=0.1), "mlm_weight", "a language-model head"),
    "attention": (dict(objective="simcse", attention_mi_weight=0.1), "attention_mi_weight", "attention maps"),
    "queue": (dict(objective="simcse", queue_size=16), "queue_size", "a momentum copy"),
    "head": (dict(projection_head="mlp"), "projection_head", "own modules"),
    "rates": (dict(view_dropout=[0.1, 0.2]), "view_dropout", "own modules"),
    "rate": (dict(view_dropout_rate=0.1), "view_dropout_rate", "own modules"),
    "packing": (dict(padding_free=True), "padding_free", "own modules"),
    "noise": (dict(neftune_noise_alpha=5.0), "neftune_noise_alpha", "own modules"),
    "debug": (dict(debug="underflow_overflow"), "debug", "own modules"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_options_that_need_a_native_encoder_are_refused(train, kind):
    options, option, what = REFUSED[kind]
    weight = option in ("mlm_weight", "attention_mi_weight", "queue_size")
    with raises_usage(option=option, found=what, fix=f"Set `{option}` to 0, or" if weight else f"Leave `{option}` out"):
        train("labse", **options)
    with raises_usage(option="view_dropout", fix="Use another `objective`, or use a BERT-like encoder."):
        train("labse", objective="scd")  # which sets it


def test_other_refusals(family, train, bert, tmp_path):
    with raises_usage(option="view", found="has no dropout", fix="crop"):
        train("qwen3", view="dropout")
    with raises_usage(option="pooler", found="has its own pooling"):
        train("qwen3", backend="st", pooler="mean")
    with raises_usage(option="train_dense", found="no Dense module"):
        train("qwen3", train_dense=False)
    with raises_usage(option="model_name", found="it would run modeling_sum.py"):
        train("remote", trust_remote_code=False)
    with raises_usage(option="model_name", found="qwen3"):
        train("qwen3", backend="native")


def test_a_slow_tokenizer_is_refused(train, tmp_path):
    config = transformers.T5Config(vocab_size=384, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    transformers.T5EncoderModel(config).save_pretrained(tmp_path / "byt5")
    transformers.ByT5Tokenizer().save_pretrained(tmp_path / "byt5")
    loaded(tmp_path / "byt5").save(str(tmp_path / "model"))
    with raises_usage(option="model_name", found="has a slow tokenizer, ByT5Tokenizer", needed="a tokenizer.json"):
        train(tmp_path / "model")


def test_tokens_that_give_other_embeddings_are_refused(family, train, monkeypatch):
    """Such as those of a model whose `encode` changes the texts."""
    model = loaded(family("qwen3"))
    own = model.encode
    monkeypatch.setattr(model, "encode", lambda texts, **how: own([f"{text} today" for text in texts], **how))
    with raises_usage(option="model_name", found="its tokens give other embeddings than its `encode`"):
        train(model)


def test_encoding_restores_the_prompt_and_the_mode(train):
    """Development data and the guide have other prompts and batch sizes than the run."""
    model = train("gemma", prompt="the old ").model
    before = model.encoder.prompt, model.encoder.batch_size
    model.train()
    model.encode(["a dog"], 2, "a ")
    assert (model.encoder.prompt, model.encoder.batch_size) == before == ("the old ", 64) and model.training


def test_command_trains_evaluates_and_loads(command, family, tmp_path, capsys):
    more = dict(model_name=family("qwen3"), objective="simcse", view="crop", max_seq_length=16)
    assert run_unsup.main(command(**more)) == 0
    out = capsys.readouterr().out
    assert f'SentenceTransformer("{tmp_path / "run"}")' in out and "Spearman" in out
    record = read(tmp_path / "run", "training.json")
    assert record["options"]["backend"] == "st" and record["dimensions"] == 32
    assert record["base_model"]["weights_sha256"] and record["drift"]["old"] != record["drift"]["new"]
    more |= dict(max_steps=6, resume_from_checkpoint="last", resume_with_changes="true")
    assert run_unsup.main(command(**more)) == 0
    assert read(tmp_path / "run", "training.json")["steps"] == 6


def test_code_in_a_checkpoint_needs_the_flag(train, tmp_path):
    """A checkpoint that was changed to name code does not run it."""
    how = dict(max_steps=4, save_strategy="steps", save_steps=2, save_total_limit=None)
    train("qwen3", tmp_path / "run", **how).train()
    checkpoint = tmp_path / "run" / "checkpoint-4"
    model = train("qwen3", tmp_path / "other", **how).model
    change(checkpoint, "config.json", auto_map={"AutoModel": "evil.Model"})
    with raises_usage(option="model_name", found="it would run evil.py"):
        model.load(checkpoint)


def test_exported_weights_are_those_of_the_file(train, tmp_path):
    run = train("labse")
    run.train()
    run.export(tmp_path / "export")
    saved = load_file(tmp_path / "export" / "2_Dense" / "model.safetensors")
    assert saved["linear.weight"].equal(run.model.st[2].linear.weight.data)


def test_the_test_for_dropout_runs_on_the_device_of_the_model(bert):
    """As when the model is its own guide, which moves it to a GPU before training."""

    class Elsewhere:
        lora, training, device = None, False, torch.device("meta")
        tokenizer = AutoTokenizer.from_pretrained(bert)

        def train(self, mode=True):
            pass

        def __call__(self, input_ids, attention_mask):
            assert {input_ids.device, attention_mask.device} == {self.device}
            return SimpleNamespace(pooler_output=torch.rand(len(input_ids), 4))

    refuse_identical_views(Elsewhere())


SCALE = """
import json
from pathlib import Path

from torch import nn


class Scale(nn.Module):
    def forward(self, features, **options):
        features["sentence_embedding"] = 2 * features["sentence_embedding"]
        return features

    def save(self, folder, *args, **options):
        Path(folder, "config.json").write_text("{}")

    @classmethod
    def load(cls, *args, **options):
        return cls()
"""


def test_code_of_a_module_is_where_it_is_loaded_from(bert, tmp_path):
    """sentence-transformers saves it in the folder of the module, and loads it from the model's folder."""
    folder = sentence_transformer(bert, tmp_path / "own")
    modules = read(folder, "modules.json")
    modules.append({"idx": len(modules), "name": str(len(modules)), "path": "9_Scale", "type": "own_scale.Scale"})
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "9_Scale").mkdir()
    (folder / "9_Scale" / "config.json").write_text("{}")
    (folder / "own_scale.py").write_text(SCALE)
    source = load_model(str(folder), trust_remote_code=True)
    expected = source(TEXTS)["st"]
    source.module.save_pretrained(str(tmp_path / "saved"))
    assert not (tmp_path / "saved" / "own_scale.py").exists(), "copy_module_code is no longer needed"
    save_adapted(source, LinearAdapter().fit(expected), tmp_path / "fitted", texts=len(TEXTS))
    assert {"own_scale.py"} <= {path.name for path in published_files(tmp_path / "fitted")}
    assert loaded(tmp_path / "fitted", trust=True).encode(TEXTS).shape == expected.shape
