"""The table of architectures compared with transformers' classes, and rows created for other encoders."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AlbertConfig, AlbertModel, AutoModel, AutoModelForMaskedLM, XLMConfig

from informin.models.architectures import ARCHITECTURES, architecture_of
from informin.models.checkpoint import Checkpoint
from informin.models.encode import max_length
from informin.models.native_loading import load_config, load_trainable
from modeling_informin import InforMinMixin, make_model_class
from tests.conftest import raises_usage, tokenizer_of

SETTINGS = {"projection_head": "mlp", "lm_head": True, "pooling": "cls"}
EXCHANGED = [name for name, row in ARCHITECTURES.items() if row.attention]
WITH_HEAD = [name for name, row in ARCHITECTURES.items() if row.lm_head]
ABSOLUTE = [name for name in ARCHITECTURES if name not in ("deberta-v2", "modernbert")]  # have a table of positions


@pytest.mark.parametrize("name", EXCHANGED)
def test_attentions_are_the_modules_that_return_maps(folder_of, name):
    """In the order of the layers, which transformers numbers."""
    model = AutoModel.from_pretrained(folder_of(name), attn_implementation="eager").train()
    attentions = ARCHITECTURES[name].attentions(model)
    maps = []
    for module in attentions:
        module.register_forward_hook(lambda module, given, output: maps.append(output[1]))
    batch = tokenizer_of(folder_of(name))(["the dog"], return_tensors="pt", return_token_type_ids=False)
    output = model(**batch, output_attentions=True)
    assert len(maps) == model.config.num_hidden_layers
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(maps, output.attentions, strict=True))
    assert {type(module.dropout) for module in attentions} == {nn.Dropout}


@pytest.mark.parametrize("name", WITH_HEAD)
def test_language_model_head_has_the_name_in_checkpoints(folder_of, name):
    folder, head = folder_of(name), ARCHITECTURES[name].lm_head
    model = load_trainable(Checkpoint(folder), dict(SETTINGS))
    plain = {key.partition(".")[0] for key in load_file(folder / "model.safetensors")}
    assert plain == {model.base_model_prefix, head}
    assert type(model) is ARCHITECTURES[name].model
    ours = getattr(model, head).state_dict()
    theirs = getattr(AutoModelForMaskedLM.from_pretrained(folder), head).state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)
    decoder = (model.cls.predictions if head == "cls" else model.lm_head).decoder
    assert decoder.weight is model.get_input_embeddings().weight


@pytest.mark.parametrize("name", ABSOLUTE)
def test_longest_input_uses_all_positions(folder_of, name):
    """One more token exceeds the positions."""
    model, config = AutoModel.from_pretrained(folder_of(name)), load_config(Checkpoint(folder_of(name)))
    longest = max_length(config, tokenizer_of(folder_of(name)))
    ids = torch.full((1, longest + 1), 7)
    assert model(ids[:, :longest]).last_hidden_state.shape == (1, longest, 32)
    with pytest.raises((IndexError, RuntimeError)):
        model(ids)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_dropouts_lists_every_rate(folder_of, name):
    config, row = load_config(Checkpoint(folder_of(name))), ARCHITECTURES[name]
    rates = dict(zip(row.dropouts, (0.25, 0.5, 0.125)))
    model = AutoModel.from_config(type(config)(**(config.to_dict() | rates)))
    assert {module.p for module in model.modules() if isinstance(module, nn.Dropout)} == set(rates.values())
    assert {module.dropout.p for module in row.attentions(model)} <= {rates[row.dropouts[-1]]}


def test_encoder_without_a_row_gets_one(folder_of):
    """Only its class is known; everything else is unsupported."""
    row = architecture_of(AlbertConfig())
    assert row.dropouts == ("hidden_dropout_prob", "attention_probs_dropout_prob")
    assert (row.lm_head, row.attention, row.onnx_inputs) == (None, None, None) and row.attentions(nn.Module()) == []
    assert row.model is architecture_of(AlbertConfig()).model is make_model_class(AlbertModel, dropouts=row.dropouts)
    assert row.model.__name__ == "AlbertForInforMinCL" and issubclass(row.model, InforMinMixin)
    model = load_trainable(Checkpoint(folder_of("albert")), SETTINGS | {"lm_head": False})
    assert type(model) is row.model and type(model.base_model) is AlbertModel and model.base_model.pooler is None


def test_encoder_with_functional_dropout_has_no_rates():
    with raises_usage(found="'xlm' cannot be trained here: it has no dropout rate that dropout modules"):
        architecture_of(XLMConfig())
