"""Dropout rates per view inside the encoder, and attention maps of selected layers."""

import json
import sys
from types import SimpleNamespace

import pytest
import torch
from transformers import AlbertConfig, AlbertModel, AutoConfig, AutoModel, T5EncoderModel

from informin.views.encoder import (
    ViewDropout,
    copy_with_dropout,
    numeric_rates,
    prepare_encoder,
    set_dropout,
    view_attention,
)
from tests.conftest import make_sentences, raises_usage, tokenizer_of


def load(folder, dropout=0.1, implementation="sdpa"):
    """The plain encoder."""
    rates = dict(hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    return AutoModel.from_pretrained(folder, add_pooling_layer=False, attn_implementation=implementation, **rates)


def rows(folder, copies=2):
    """Return sentences of different lengths, so that there is padding, as views one after the other."""
    batch = tokenizer_of(folder)(make_sentences(6), padding=True, return_tensors="pt", return_token_type_ids=False)
    assert not batch["attention_mask"].all()
    return {name: batch[name].repeat(copies, 1) for name in ("input_ids", "attention_mask")}


def zeros(x):
    return (x == 0).float().mean().item()


@pytest.mark.parametrize("rates", [(0.05, 0.4), (0.1, 0.5, 0.3)], ids=["views", "with-mlm"])
def test_each_view_has_its_rate_in_every_dropout_module(encoder, rates):
    model = load(encoder)
    names = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Dropout)]
    prepare_encoder(model, rates)
    modules = dict(model.train().named_modules())
    torch.manual_seed(0)
    for name in names:
        ones = torch.ones(len(rates) * 10, 40, 50)
        for view, rate in zip(modules[name](ones).chunk(len(rates)), rates):
            assert zeros(view) == pytest.approx(rate, abs=0.02), name
            torch.testing.assert_close(view[view != 0].max(), torch.tensor(1 / (1 - rate)))
        assert torch.equal(modules[name].eval()(ones), ones)


def test_a_view_without_a_rate_uses_the_encoders_own_rates(encoder):
    rates = dict(hidden_dropout_prob=0.25, attention_probs_dropout_prob=0.125)
    model = AutoModel.from_pretrained(encoder, add_pooling_layer=False, **rates)
    prepare_encoder(model, [0.05, 0.15, None])
    assert model.embeddings.dropout.rates == model.encoder.layer[0].output.dropout.rates == (0.05, 0.15, 0.25)
    assert model.encoder.layer[0].attention.self.dropout.rates == (0.05, 0.15, 0.125)
    prepare_encoder(model)
    assert (model.embeddings.dropout.p, model.encoder.layer[0].attention.self.dropout.p) == (0.25, 0.125)


@pytest.mark.parametrize("rates", [(0.05, 0.4), (0.1, 0.5, 0.3)], ids=["views", "with-mlm"])
@pytest.mark.parametrize("keeps_map", [True, False])
def test_each_view_has_its_rate_in_attention(encoder, rates, keeps_map):
    """With scores of 0 and the identity as values, the output is the attention itself: 1/L, or 0 if dropped."""
    model = load(encoder)
    prepare_encoder(model, rates, [1] if keeps_map else [])
    module = model.train().encoder.layer[1].attention.self
    queries = torch.zeros(len(rates) * 20, 4, 16, 16)
    values = torch.eye(16).expand_as(queries)
    torch.manual_seed(0)
    output, maps = view_attention(
        module, queries, queries, values, None, dropout=module.dropout.p, scaling=1.0, is_causal=False
    )
    assert (maps is not None) == keeps_map
    for view, rate in zip(output.chunk(len(rates)), rates):
        assert zeros(view) == pytest.approx(rate, abs=0.02)
        torch.testing.assert_close(view.max(), torch.tensor(1 / 16 / (1 - rate)))
    if keeps_map:
        torch.testing.assert_close(maps.transpose(1, 2), output)


@pytest.mark.parametrize("map_layers", [[], [0], [0, 1]], ids=str)
def test_rates_apply_to_views_in_order(encoder, map_layers):
    """Views without dropout equal the plain encoder's. The view between them does not."""
    model, plain, batch = load(encoder), load(encoder, dropout=0.0).train(), rows(encoder, copies=3)
    prepare_encoder(model, (0.0, 0.5, 0.0), map_layers)
    first, second, third = model.train()(**batch).last_hidden_state.chunk(3)
    expected = plain(**batch).last_hidden_state.chunk(3)[0]
    torch.testing.assert_close(first, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(third, expected, rtol=1e-5, atol=1e-5)
    assert (second - expected).abs().mean() > 0.1


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_evaluation_equals_the_plain_encoder(encoder, implementation):
    """Bit for bit, with padding and an odd number of rows. No map is kept."""
    model, plain = load(encoder, implementation=implementation), load(encoder).eval()
    prepare_encoder(model, (0.1, 0.4), [1])
    batch = {name: value[:5] for name, value in rows(encoder).items()}
    outputs = model.eval()(**batch, output_attentions=True)
    assert torch.equal(outputs.last_hidden_state, plain(**batch).last_hidden_state)
    assert not [layer for layer in outputs.attentions or () if layer is not None]


def test_without_rates_the_encoder_keeps_its_dropout(encoder):
    model, plain, batch = load(encoder), load(encoder, implementation="eager").train(), rows(encoder)
    prepare_encoder(model, None, [0, 1])
    assert not [module for module in model.modules() if isinstance(module, ViewDropout)]
    torch.manual_seed(3)
    outputs = model.train()(**batch, output_attentions=True)
    torch.manual_seed(3)
    expected = plain(**batch, output_attentions=True)
    torch.testing.assert_close(outputs.last_hidden_state, expected.last_hidden_state, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(outputs.attentions, expected.attentions)


@pytest.mark.parametrize("rates", [None, (0.0, 0.0)], ids=["own", "views"])
@pytest.mark.parametrize("map_layers", [[], [0], [1], [0, 1]], ids=str)
def test_maps_equal_those_of_eager_attention(encoder, rates, map_layers):
    """Value and gradient. Rows of a map sum to 1, and no token attends to padding."""
    model, plain = load(encoder, dropout=0.0).train(), load(encoder, dropout=0.0, implementation="eager").train()
    prepare_encoder(model, rates, map_layers)
    batch = rows(encoder)
    outputs, expected = (m(**batch, output_attentions=True) for m in (model, plain))
    torch.testing.assert_close(outputs.last_hidden_state, expected.last_hidden_state, rtol=1e-5, atol=1e-5)
    maps = [layer for layer in outputs.attentions or () if layer is not None]
    assert len(maps) == len(map_layers)
    for i, layer in zip(map_layers, maps):
        torch.testing.assert_close(layer, expected.attentions[i])
        torch.testing.assert_close(layer.sum(-1), torch.ones(layer.shape[:-1]))
        padded = ~batch["attention_mask"].bool()[:, None, None, :].expand_as(layer)
        assert (layer[padded] == 0).all() and (layer[~padded] > 0).all()
    if not maps:
        return
    for attentions in (maps, [expected.attentions[i] for i in map_layers]):
        sum(layer.square().sum() for layer in attentions).backward()
    names = [name for name, parameter in plain.named_parameters() if parameter.grad is not None]
    assert f"encoder.layer.{map_layers[-1]}.attention.self.query.weight" in names
    parameters = dict(model.named_parameters())
    for name in names:
        torch.testing.assert_close(
            parameters[name].grad, plain.get_parameter(name).grad, rtol=1e-4, atol=5e-5, msg=name
        )


def test_maps_of_layers_that_share_a_module_are_refused():
    """Its map would be that of the last layer, whichever layer is selected. A rate per view is allowed."""
    sizes = dict(embedding_size=8, hidden_size=8, num_attention_heads=2, intermediate_size=8, num_hidden_layers=3)
    model = AlbertModel(AlbertConfig(vocab_size=9, **sizes))
    with raises_usage("model_name"):
        prepare_encoder(model, map_layers=[0])
    prepare_encoder(model, (0.1, 0.2))


def test_layers_with_and_without_maps_agree(encoder):
    batch, layers = rows(encoder), []
    for map_layers in ([], [0], [1], [0, 1]):
        model = load(encoder)
        prepare_encoder(model, (0.0, 0.0), map_layers)
        layers.append(model.train()(**batch).last_hidden_state)
    for hidden in layers[1:]:
        torch.testing.assert_close(hidden, layers[0], rtol=1e-5, atol=1e-5)


def test_maps_come_after_dropout(encoder):
    """In each view, the fraction of zeros outside padding equals its dropout rate."""
    model, batch = load(encoder).train(), rows(encoder)
    prepare_encoder(model, (0.05, 0.4), [0, 1])
    torch.manual_seed(0)
    for layer in model(**batch, output_attentions=True).attentions:
        tokens = batch["attention_mask"].bool()[:, None, None, :].expand_as(layer)
        for view, real, rate in zip(layer.chunk(2), tokens.chunk(2), (0.05, 0.4)):
            assert zeros(view[real]) == pytest.approx(rate, abs=0.03)


@pytest.mark.parametrize("rates", [None, (0.1, 0.2)], ids=["own", "views"])
def test_no_warning_about_eager_attention(encoder, monkeypatch, rates):
    """transformers would warn about layers that were not selected. Without any map, the warning is correct."""
    model, warnings = load(encoder), []
    logger = sys.modules["transformers.integrations.sdpa_attention"].logger
    monkeypatch.setattr(logger, "warning_once", lambda message, *args: warnings.append(message))
    prepare_encoder(model, rates, [1])
    model.train()(**rows(encoder), output_attentions=True)
    assert warnings == []
    model.eval()(**rows(encoder), output_attentions=True)
    assert "does not support `output_attentions=True`" in warnings[0]


def test_checkpoint_equals_that_of_the_plain_encoder(encoder, tmp_path):
    model, plain = load(encoder), load(encoder)
    prepare_encoder(model, (0.1, 0.2), [0, 1])
    assert model.state_dict().keys() == plain.state_dict().keys()
    for changed, name in ((model, "ours"), (plain, "plain")):
        changed.save_pretrained(tmp_path / name)
    settings = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("ours", "plain")]
    assert settings[0] == settings[1]
    loaded = AutoModel.from_pretrained(tmp_path / "ours", add_pooling_layer=False)
    assert loaded.config._attn_implementation == "sdpa"
    batch = rows(encoder)
    assert torch.equal(loaded(**batch).last_hidden_state, plain.eval()(**batch).last_hidden_state)


@pytest.mark.parametrize("rates, map_layers", [((0.1, 0.2), []), (None, [1])], ids=["rates", "maps"])
def test_other_attention_implementations_are_refused(encoder, rates, map_layers):
    model = load(encoder)
    model.config._attn_implementation_internal = "flash_attention_2"
    with raises_usage():
        prepare_encoder(model, rates, map_layers)
    assert not [module for module in model.modules() if isinstance(module, ViewDropout)]


def test_second_preparation_replaces_the_first(encoder):
    """Nothing of the first remains. Without rates, the encoder's own are restored."""
    model, plain, batch = load(encoder), load(encoder).train(), rows(encoder)
    own = {name: module.p for name, module in model.named_modules() if isinstance(module, torch.nn.Dropout)}
    prepare_encoder(model, (0.05, 0.4), [0, 1])
    prepare_encoder(model, (0.1, 0.2), [1])
    assert {module.rates for module in model.modules() if isinstance(module, ViewDropout)} == {(0.1, 0.2)}
    assert len(model.train()(**batch, output_attentions=True).attentions) == 1
    prepare_encoder(model)
    assert {name: module.p for name, module in model.named_modules() if isinstance(module, torch.nn.Dropout)} == own
    assert not [module for module in model.modules() if isinstance(module, ViewDropout)]
    torch.manual_seed(3)
    hidden = model(**batch).last_hidden_state
    torch.manual_seed(3)
    torch.testing.assert_close(hidden, plain(**batch).last_hidden_state)


def test_encoder_without_changes_keeps_its_attention(encoder):
    model = load(encoder)
    prepare_encoder(model)
    assert model.config._attn_implementation == "sdpa"


# Rates that encoders pass to functions: the sizes of tiny ones, and the names of their rates in the configuration
SMALL = dict(
    vocab_size=50, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, max_position_embeddings=64
)
BART = dict(d_model=32, decoder_layers=1, encoder_ffn_dim=64, decoder_ffn_dim=64, decoder_attention_heads=4)
WITH_FUNCTIONS = {
    "bart": (SMALL | BART, ("dropout", "attention_dropout", "activation_dropout")),
    "t5": (dict(vocab_size=50, num_layers=2, num_heads=4, d_model=32, d_kv=8, d_ff=64), ("dropout_rate",)),
    "opt": (SMALL | dict(hidden_size=32, ffn_dim=64, word_embed_proj_dim=32), ("dropout", "attention_dropout")),
    "esm": (SMALL | dict(hidden_size=32, pad_token_id=1), ("hidden_dropout_prob", "attention_probs_dropout_prob")),
    "gpt_bigcode": (SMALL | dict(hidden_size=32), ("attn_pdrop", "resid_pdrop", "embd_pdrop")),
    "starcoder2": (
        SMALL | dict(hidden_size=32, num_key_value_heads=4, pad_token_id=1),
        ("attention_dropout", "residual_dropout", "embedding_dropout"),
    ),
    "persimmon": (SMALL | dict(hidden_size=32, pad_token_id=1), ("attention_dropout", "hidden_dropout")),
}


def with_functions(kind: str, rate: float):
    """Return a tiny encoder in training that passes dropout rates to functions."""
    sizes, rates = WITH_FUNCTIONS[kind]
    config = AutoConfig.for_model(kind, **sizes, **dict.fromkeys(rates, rate))
    torch.manual_seed(0)
    return (T5EncoderModel(config) if kind == "t5" else AutoModel.from_config(config)).train()


def hidden(model):
    with torch.no_grad():
        return model(input_ids=torch.arange(3, 19).reshape(2, 8)).last_hidden_state


@pytest.mark.parametrize("kind", WITH_FUNCTIONS)
def test_a_momentum_encoder_has_no_other_rate_than_its_own(kind):
    model = with_functions(kind, rate=0.3)
    expected = hidden(model.eval())
    assert not torch.allclose(hidden(model.train()), expected, atol=1e-3)
    torch.testing.assert_close(hidden(copy_with_dropout(model, 0.0).train()), expected)
    assert not torch.allclose(hidden(model.train()), expected, atol=1e-3)
    zero = 0.0 if kind == "esm" else 0  # ESM's configuration refuses whole numbers
    model = with_functions(kind, rate=zero)
    assert not torch.allclose(hidden(copy_with_dropout(model, 0.5).train()), hidden(model), atol=1e-3)


@pytest.mark.parametrize("kind", sorted({*WITH_FUNCTIONS} - {"persimmon"}))
def test_one_rate_is_set_in_functions_too(kind):
    model = with_functions(kind, rate=0.3)
    expected = hidden(model.eval())
    set_dropout(model, 0.0)
    torch.testing.assert_close(hidden(model.train()), expected)


def test_names_of_rates():
    rates = dict.fromkeys(("dropout", "dropout_p", "attention_dropout", "dropout_rate", "attn_pdrop"), 0.1)
    others = dict(layerdrop=0.1, drop_prob=0.1, drop_path_rate=0.1, token_dropout=True, dropout_name="x", rate=0.1)
    assert numeric_rates(SimpleNamespace(**rates, **others)) == list(rates)


@pytest.mark.parametrize("kind", ["opt", "starcoder2"])
def test_functions_have_no_rate_per_view(kind):
    with raises_usage("view_dropout"):
        prepare_encoder(with_functions(kind, rate=0.3), (0.05, 0.15))


def test_a_rate_of_attention_may_be_a_number():
    """ESM drops hidden states by modules only."""
    model = with_functions("esm", rate=0.3)
    expected = hidden(model.eval())
    prepare_encoder(model, (0.0, 0.0))
    torch.testing.assert_close(hidden(model.train()), expected)
