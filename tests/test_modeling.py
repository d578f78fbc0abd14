"""The encoders: loading, outputs, saving, and loading the saved folder with other libraries."""

import json
import shutil

import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM

from informin.objectives import Contrast, MaskedLM
from informin.objectives.presets import Encoder, as_preset
from informin.publishing.export import export_model
from informin.training.arguments import InforMinTrainingArguments
from informin.training.model import TrainedModel
from informin.training.objective import activate
from modeling_informin import BertForInforMinCL, RobertaForInforMinCL
from tests.conftest import ROOT, make_sentences, raises_usage, save_sentence_transformer, tokenizer_of
from tests.support import forked

CLASSES = {"bert": BertForInforMinCL, "roberta": RobertaForInforMinCL}


def export_trained(trained: TrainedModel, folder) -> None:
    export_model(trained.finished, folder, head=trained.model.mlp.state_dict())


def trained_of(folder, projection_head="mlp", lm_head=False) -> TrainedModel:
    """Return a model in training, and its tokenizer."""
    args = InforMinTrainingArguments("out", padding_free=False, projection_head=projection_head, use_cpu=True)
    trained = TrainedModel.open(str(folder), args)
    terms = [Contrast(), MaskedLM(weight=0.1)] if lm_head else [Contrast()]
    encoder = Encoder(model_type=trained.config.model_type, width=trained.config.hidden_size)
    trained.build(args, activate(as_preset(terms), encoder, "dropout", None))
    return trained


def build(folder, **settings):
    return trained_of(folder, **settings).model


def tokens(folder, count=5):
    return tokenizer_of(folder)(make_sentences(count), padding=True, return_tensors="pt")


def test_pooler_output_is_cls_and_projection_exists_only_in_training(encoder):
    model, batch = build(encoder), tokens(encoder)
    model.train()
    outputs = model(**batch)
    torch.testing.assert_close(outputs.pooler_output, outputs.last_hidden_state[:, 0])
    torch.testing.assert_close(outputs.projection, torch.tanh(model.mlp.dense(outputs.pooler_output)))
    model.eval()
    outputs = model(**batch)
    assert outputs.projection is None
    torch.testing.assert_close(outputs.pooler_output, outputs.last_hidden_state[:, 0])


def test_without_a_projection_head_the_projection_is_cls(encoder):
    model = build(encoder, projection_head="none").train()
    outputs = model(**tokens(encoder))
    assert not hasattr(model, "mlp")
    torch.testing.assert_close(outputs.projection, outputs.pooler_output)


def test_encoder_equals_the_checkpoint(encoder):
    model, plain = build(encoder).eval(), AutoModelForMaskedLM.from_pretrained(encoder).eval()
    batch = tokens(encoder)
    hidden = plain.base_model(**batch).last_hidden_state
    torch.testing.assert_close(model(**batch).last_hidden_state, hidden)


def test_lm_head_is_pretrained_and_runs_only_with_labels(encoder):
    model, plain = build(encoder, lm_head=True).eval(), AutoModelForMaskedLM.from_pretrained(encoder).eval()
    batch = tokens(encoder)
    mask = torch.rand(batch["input_ids"].shape, generator=torch.Generator().manual_seed(0)) < 0.3
    words = torch.randint(model.config.vocab_size, mask.shape, generator=torch.Generator().manual_seed(1))
    losses = model(**batch, lm_labels=torch.where(mask, words, -100)).lm_losses
    expected = torch.nn.functional.cross_entropy(plain(**batch).logits[mask], words[mask], reduction="none")
    torch.testing.assert_close(losses, expected)


def test_lm_head_stays_tied_to_the_embeddings(encoder):
    model = build(encoder, lm_head=True)
    head = getattr(model, model._lm_head_name)
    decoder = head.predictions.decoder if model.config.model_type == "bert" else head.decoder
    assert decoder.weight is model.base_model.embeddings.word_embeddings.weight


def test_lm_labels_without_a_head_are_an_error(encoder):
    batch = tokens(encoder)
    with pytest.raises(ValueError, match="no language-model head"):
        build(encoder)(**batch, lm_labels=batch["input_ids"])


class Recorder(torch.nn.Module):
    """A head that records its arguments."""

    def forward(self, model, inputs):
        self.model, self.inputs = model, inputs
        return inputs.projection.sum()


def test_heads_are_called_in_training_with_only_the_two_views(encoder):
    """Rows after the views are masked copies for MLM."""
    model, batch = build(encoder), tokens(encoder, count=9)
    assert len(model.heads) == 0
    model.heads["one"], model.heads["two"] = Recorder(), Recorder()
    ids = torch.arange(3)
    outputs = model.train()(**batch, views={"sentence_ids": ids, "gather": len})
    assert list(outputs.heads) == ["one", "two"] and outputs.projection.shape == (9, 32)
    for name, head in model.heads.items():
        assert torch.equal(outputs.heads[name], outputs.projection[:6].sum())
        given = head.inputs
        assert head.model is model and given.gather is len
        assert torch.equal(given.embedding, outputs.pooler_output[:6]) and given.states.shape[0] == 6
        for name, expected in {"input_ids": batch["input_ids"][:6], "sentence_ids": ids}.items():
            assert torch.equal(getattr(given, name), expected)


def test_heads_get_the_rows_of_a_single_view(encoder):
    model, batch = build(encoder), tokens(encoder, count=6)
    model.heads["one"] = Recorder()
    model.train()(**batch, views={"sentence_ids": torch.arange(3), "gather": len, "number_of_views": 1})
    assert torch.equal(model.heads["one"].inputs.input_ids, batch["input_ids"][:3])


def test_outside_training_or_without_views_heads_are_not_called(encoder):
    model, batch = build(encoder), tokens(encoder, count=6)
    model.heads["one"] = Recorder()
    for outputs in (model.eval()(**batch, views={"sentence_ids": torch.arange(3)}), model.train()(**batch)):
        assert outputs.heads is None
    assert not hasattr(model.heads["one"], "inputs")


def test_checkpoint_without_lm_head_is_refused(tmp_path, bert):
    from transformers import BertModel

    shutil.copytree(bert, tmp_path / "headless")
    BertModel.from_pretrained(bert, add_pooling_layer=False).save_pretrained(tmp_path / "headless")
    build(tmp_path / "headless")
    with raises_usage(option="model_name"):
        build(tmp_path / "headless", lm_head=True)


def test_forward_accepts_arguments_of_transformers_models(encoder):
    model, batch = build(encoder).eval(), tokens(encoder)
    as_tuple = model(**batch, return_dict=False)
    assert torch.equal(as_tuple[0], model(**batch).last_hidden_state)
    model.set_attn_implementation("eager")
    outputs = model(**batch, return_dict=True, output_attentions=True, output_hidden_states=True)
    assert len(outputs.attentions) == model.config.num_hidden_layers
    assert len(outputs.hidden_states) == model.config.num_hidden_layers + 1


def test_half_precision_checkpoint_trains_in_float32(tmp_path, bert):
    shutil.copytree(bert, tmp_path / "half")
    AutoModelForMaskedLM.from_pretrained(bert, dtype=torch.float16).save_pretrained(tmp_path / "half")
    assert {p.dtype for p in build(tmp_path / "half").parameters()} == {torch.float32}


READ = """
import json, logging, sys, torch, transformers

from tests.support.forked import PACKAGE, forget_this_package
forget_this_package()
root, transformers.dynamic_module_utils.HF_MODULES_CACHE, *folders = sys.argv[1:]
sys.path = [path for path in sys.path if path not in ("", ".", root)]
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer
from transformers import AutoModel, AutoTokenizer

messages, TEXTS = [], ["the old dog sleeps", "a red house on the river"]
transformers.utils.logging.get_logger("transformers").addHandler(
    type("H", (logging.Handler,), {"emit": lambda self, r: messages.append(r.getMessage())})()
)

def read(folder):
    batch = AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, return_tensors="pt")
    plain, plain_report = AutoModel.from_pretrained(folder, output_loading_info=True)
    messages.clear()
    ours, report = AutoModel.from_pretrained(folder, trust_remote_code=True, output_loading_info=True)
    shown = "\\n".join(messages)
    reader = Transformer(folder, model_kwargs={"trust_remote_code": True}, config_kwargs={"trust_remote_code": True})
    sentence = SentenceTransformer(modules=[reader, Pooling(ours.config.hidden_size, pooling_mode="cls")], device="cpu")
    whole = SentenceTransformer(folder, trust_remote_code=True, device="cpu")  # its default pooling is the mean
    with torch.no_grad():
        cls = {
            "ours": ours.eval()(**batch).pooler_output,
            "plain": plain.eval()(**batch).last_hidden_state[:, 0],
            "sentence_transformers": sentence.encode(TEXTS, convert_to_tensor=True),
        }
    ours.save_pretrained(folder + "-again")
    models = {"ours": ours, "plain": plain, "st": reader.auto_model, "whole": whole[0].auto_model}
    return {
        "classes": {name: type(model).__name__ for name, model in models.items()},
        "report": {k: sorted(v) for k, v in report.items() if k in ("missing_keys", "unexpected_keys")},
        "shown": shown,
        "cls": {name: x.tolist() for name, x in cls.items()},
        "truncation": json.load(open(folder + "/tokenizer.json"))["truncation"],
    }

print("RESULT" + json.dumps([read(folder) for folder in folders]))
assert not [name for name in sys.modules if name.partition(".")[0] in PACKAGE]
"""


def test_exported_folders_give_equal_embeddings_in_other_libraries(tmp_path, bert, roberta):
    """In another directory and process, without this package, with remote code and without, and in both libraries."""
    folders, expected, names = [tmp_path / "bert", tmp_path / "roberta"], [], []
    for encoder, folder in zip((bert, roberta), folders):
        trained = trained_of(encoder, lm_head=True)
        model, tokenizer = trained.model, trained.tokenizer
        tokenizer(["the dog"], truncation=True, max_length=3)  # sets the truncation of the tokenizer
        export_trained(trained, folder)
        batch = tokenizer(["the old dog sleeps", "a red house on the river"], padding=True, return_tensors="pt")
        expected.append(model.eval()(**batch).pooler_output)
        names.append((type(model).__name__, type(model.base_model).__name__))
    (tmp_path / "elsewhere").mkdir()
    run = forked.run(forked.python(READ, [ROOT, tmp_path / "modules", *folders], cwd=tmp_path / "elsewhere"))
    assert run.returncode == 0, run.stderr
    results = json.loads(run.stdout.rpartition("RESULT")[2])
    for folder, result, embeddings, (ours, plain) in zip(folders, results, expected, names, strict=True):
        assert result["classes"] == {"ours": ours, "plain": plain, "st": ours, "whole": ours}
        assert result["report"] == {"missing_keys": [], "unexpected_keys": []}
        assert "MISSING" not in result["shown"] and "UNEXPECTED" not in result["shown"]
        for name, vectors in result["cls"].items():
            torch.testing.assert_close(torch.tensor(vectors), embeddings, msg=name)
        assert result["truncation"] is None
        # A model loaded through remote code saves its code again.
        assert (tmp_path / f"{folder.name}-again" / "modeling_informin.py").is_file()
        config = AutoConfig.from_pretrained(folder)
        assert config.auto_map == {"AutoModel": f"modeling_informin.{ours}"}
        assert config.informin["lm_head"] is False and config.model_type in CLASSES


def test_export_is_a_plain_encoder_with_a_separate_projection_head(tmp_path, encoder):
    """Servers accept only the names of a plain BERT. Our class loads its head, alone and through AutoModel."""
    from safetensors import safe_open

    trained = trained_of(encoder, lm_head=True)
    model = trained.model
    export_trained(trained, tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert set(file.keys()) == set(model.base_model.state_dict())
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == [type(model.base_model).__name__]
    remote = AutoModel.from_pretrained(tmp_path, trust_remote_code=True)
    for loaded in (type(model).from_pretrained(tmp_path), remote):
        for name, tensor in model.mlp.state_dict().items():
            assert torch.equal(loaded.mlp.state_dict()[name], tensor), name


def test_a_head_that_cannot_be_downloaded_is_an_error(tmp_path, bert, monkeypatch):
    """If the connection fails between the weights and the head, the head must not be random."""
    export_trained(trained_of(bert), tmp_path)

    def lost(name, file, **options):
        if file == "modules.json":
            return None
        assert options.get("_raise_exceptions_for_connection_errors", True)
        raise OSError("connection lost")

    monkeypatch.setattr("modeling_informin.cached_file", lost)
    with pytest.raises(OSError, match="connection lost"):
        BertForInforMinCL.from_pretrained(tmp_path)
    BertForInforMinCL.from_pretrained(bert)  # not a folder of ours: no head is requested


def test_a_model_without_a_projection_head_requests_no_file(tmp_path, bert):
    trained = trained_of(bert)
    export_trained(trained, tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    config.informin = config.informin | {"projection_head": "none"}
    assert not any(
        name.startswith("mlp") for name in BertForInforMinCL.from_pretrained(tmp_path, config=config).state_dict()
    )


def test_load_report_lists_only_unexpected_weights(tmp_path, bert):
    """A new projection head and heads of other tasks are expected. Unknown weights are not."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(bert, tmp_path / "odd")
    weights = load_file(bert / "model.safetensors")
    save_file(weights | {"stranger.weight": torch.zeros(2)}, tmp_path / "odd" / "model.safetensors", {"format": "pt"})
    _, report = BertForInforMinCL.from_pretrained(tmp_path / "odd", output_loading_info=True)
    assert report["missing_keys"] == set()
    assert report["unexpected_keys"] == {"stranger.weight"}


def test_the_mode_of_every_module_is_set(bert):
    """Even if that of the model itself does not change."""
    model = BertForInforMinCL.from_pretrained(bert)
    model.train()
    model.bert.encoder.layer[0].eval()
    model.train()
    assert all(module.training for module in model.modules())
    model.eval()
    assert not any(module.training for module in model.modules())


@pytest.mark.parametrize("pooling", ["mean", "cls", "lasttoken"])
@pytest.mark.parametrize("form", ["compact", "flags"])
def test_a_folder_of_sentence_transformers_keeps_its_pooling(tmp_path, encoder, pooling, form):
    folder = save_sentence_transformer(tmp_path / "model", encoder, pooling=pooling)
    if form == "flags":  # as before version 6
        names = {"mean": "mean_tokens", "cls": "cls_token", "max": "max_tokens"}
        flags = {f"pooling_mode_{names.get(one, one)}": one == pooling for one in ("mean", "cls", "max", "lasttoken")}
        path = folder / "1_Pooling" / "config.json"
        path.write_text(json.dumps({"word_embedding_dimension": 32, "include_prompt": True} | flags))
    model = CLASSES[encoder.name.removeprefix("tiny-")].from_pretrained(folder).eval()
    expected = SentenceTransformer(str(folder), device="cpu").encode(make_sentences(5), convert_to_tensor=True)
    torch.testing.assert_close(model(**tokens(encoder)).pooler_output, expected, rtol=1e-5, atol=1e-5)
    model.save_pretrained(tmp_path / "again")
    again = type(model).from_pretrained(tmp_path / "again").eval()
    torch.testing.assert_close(again(**tokens(encoder)).pooler_output, expected, rtol=1e-5, atol=1e-5)


def test_a_pooling_that_the_classes_lack_is_an_error(tmp_path, bert):
    folder = save_sentence_transformer(tmp_path / "model", bert, pooling="max")
    with pytest.raises(ValueError, match="max"):
        BertForInforMinCL.from_pretrained(folder)
    config = AutoConfig.from_pretrained(folder)
    config.informin = {"pooling": "mean"}
    assert BertForInforMinCL.from_pretrained(folder, config=config).config.informin["pooling"] == "mean"
