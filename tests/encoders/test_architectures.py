"""The rows of the architectures, against transformers' own classes; and a further row, which is all one more takes."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModel, AutoModelForMaskedLM, CamembertConfig, CamembertForMaskedLM, CamembertModel
from transformers.models.camembert.modeling_camembert import CamembertLMHead, CamembertPreTrainedModel

from informin.encoders.architectures import ARCHITECTURES, Architecture
from informin.encoders.encode import max_length
from informin.encoders.encoder import load_encoder
from informin.encoders.loading import load_config, load_model
from informin.errors import UsageError
from informin.publishing.export import export_folder
from modeling_informin import InforMinMixin
from tests.conftest import SIZES, WORDS, make_sentences, save_roberta, tokenizer_of

SETTINGS = {"projection_head": "mlp", "lm_head": True, "pooling": "cls"}


def row(folder):
    return ARCHITECTURES[load_config(str(folder)).model_type]


def test_attentions_are_those_that_give_the_maps(encoder):
    """In the order of the layers, which transformers numbers for its caches."""
    model = AutoModel.from_pretrained(encoder, attn_implementation="eager").train()
    attentions = row(encoder).attentions(model)
    maps = []
    for module in attentions:
        module.register_forward_hook(lambda module, given, output: maps.append(output[1]))
    output = model(**tokenizer_of(encoder)(["the dog"], return_tensors="pt"), output_attentions=True)
    assert len(maps) == model.config.num_hidden_layers
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(maps, output.attentions, strict=True))
    assert {type(module.dropout) for module in attentions} == {nn.Dropout}


def test_the_language_model_head_is_named_as_in_checkpoints_and_in_the_class(encoder):
    name = row(encoder).lm_head
    plain = {key.partition(".")[0] for key in load_file(encoder / "model.safetensors")}
    assert plain == {load_config(str(encoder)).model_type, name}
    model = load_model(load_config(str(encoder)), str(encoder), dict(SETTINGS))
    assert type(model) is row(encoder).model
    ours = getattr(model, name).state_dict()
    theirs = getattr(AutoModelForMaskedLM.from_pretrained(encoder), name).state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_the_longest_input_is_all_that_there_are_positions_for(encoder):
    """One token more has none."""
    model, config = AutoModel.from_pretrained(encoder), load_config(str(encoder))
    longest = max_length(config, tokenizer_of(encoder))
    ids = torch.full((1, longest + 1), 7)
    assert model(ids[:, :longest]).last_hidden_state.shape == (1, longest, 32)
    with pytest.raises((IndexError, RuntimeError)):
        model(ids)


def test_dropouts_are_all_that_there_are(encoder, tmp_path):
    config = load_config(str(encoder))
    rates = dict(zip(row(encoder).dropouts, (0.25, 0.5), strict=True))
    model = AutoModel.from_config(type(config)(**(config.to_dict() | rates)))
    assert {module.p for module in model.modules() if isinstance(module, nn.Dropout)} == {0.25, 0.5}
    assert {module.dropout.p for module in row(encoder).attentions(model)} == {0.5}


class CamembertForInforMinCL(InforMinMixin, CamembertPreTrainedModel):
    """A class as in modeling_informin.py."""

    def __init__(self, config, add_pooling_layer: bool = False):
        super().__init__(config)
        self.roberta = CamembertModel(config, add_pooling_layer=False)
        tied = {
            "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
            "lm_head.decoder.bias": "lm_head.bias",
        }
        self._build_heads("lm_head", CamembertLMHead, tied)


def test_one_more_architecture_is_a_row(monkeypatch, tmp_path):
    """Loaded for training, exported, loaded to embed; without the row it is refused."""
    start, folder = save_roberta(tmp_path / "start"), tmp_path / "export"
    ids = dict(pad_token_id=1, bos_token_id=0, eos_token_id=2, type_vocab_size=1)
    CamembertForMaskedLM(CamembertConfig(vocab_size=5 + len(WORDS), **(SIZES | ids))).save_pretrained(start)
    with pytest.raises(UsageError, match="'camembert'; needed one of: bert, roberta"):
        load_config(str(start))
    camembert = Architecture(CamembertForInforMinCL, "lm_head", ("input_ids", "attention_mask"), offset_positions=True)
    monkeypatch.setitem(ARCHITECTURES, "camembert", camembert)
    CamembertForInforMinCL.register_for_auto_class("AutoModel")
    model = load_model(load_config(str(start)), str(start), dict(SETTINGS))
    assert type(model) is CamembertForInforMinCL and len(camembert.attentions(model.base_model)) == 2
    export_folder(model, tokenizer_of(start), folder)
    encoder = load_encoder(str(folder), ("cls", "mlp"))
    assert type(encoder.model) is CamembertForInforMinCL and encoder.length == 64
    sentences = make_sentences(3)
    batch = encoder.tokenizer(sentences, padding=True, return_tensors="pt")
    with torch.no_grad():
        cls = model.eval()(**batch).pooler_output
        expected = {"cls": cls, "mlp": model.mlp(cls)}
    for pooler, embeddings in encoder(sentences).items():
        torch.testing.assert_close(torch.from_numpy(embeddings), expected[pooler], atol=2e-6, rtol=0)
