"""Packed batches give the same embeddings, logits and gradients as padded ones, and are used only where supported."""

import pytest
import torch
from transformers import AutoModel, BertModel

import modeling_informin
from informin.models import packing
from informin.models.packing import Packed, can_pack, layer_forward, packed_forward
from tests.conftest import FOUR_STEPS, WORDS, how_to_train, make_sentences, raises_usage, tokenizer_of
from trainer_informin import InforMinTrainer

PACKED = ["bert", "roberta"]
# Special tokens as text: some are BERT's, some RoBERTa's. Each treats the others as unknown words.
SPECIAL = ["<pad> the dog [PAD] sleeps", "<pad><pad> [PAD] [PAD]", "</s> [SEP] cat <mask> [MASK] <pad>"]
SENTENCES = ["dog", *make_sentences(9), " ".join(WORDS[:20]), "the dog", "today", *SPECIAL]
OBJECTIVES = {
    "simcse": {},
    "informin": dict(reconstruction_weight=0.4),
    "simcse with MLM": dict(objective="simcse", mlm_weight=0.1),
    "simcse on masked views": dict(objective="simcse", mlm_weight=0.1, masked_views=True),
    "simcse with a queue": dict(objective="simcse", queue_size=16),
    "simcse of crops": dict(objective="simcse", false_negative_fraction=0.2, view="crop"),
    "decorrelation": dict(objective="scd", projector_size=32, view_dropout=[0.1]),
    "guided": dict(objective="guided", guided_weight=1, replay_weight=1, replay_size=4),
}


def batch_of(folder, side="right"):
    tokenizer = tokenizer_of(folder)
    tokenizer.padding_side = side
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    return batch["input_ids"], batch["attention_mask"]


def gradients(model) -> dict[str, torch.Tensor]:
    return {name: x.grad.clone() for name, x in model.named_parameters() if x.grad is not None}


def assert_same_gradients(model, packed: torch.Tensor, padded: torch.Tensor) -> None:
    """Compare gradients of the weights, for a function whose gradient differs at every number."""
    weights = torch.linspace(-1, 1, padded.numel()).view_as(padded)
    found = []
    for output in (packed, padded):
        model.zero_grad()
        (weights * output.sin()).sum().backward()
        found.append(gradients(model))
    missing = {name for name in found[1] if name not in found[0] and found[1][name].abs().max() > 0}
    assert not missing and len(found[0]) > 10
    for name in found[0]:
        torch.testing.assert_close(found[0][name], found[1][name], atol=1e-5, rtol=1e-4, msg=name)


@pytest.fixture(params=["by runs", "at once"])
def attention(request, monkeypatch):
    """The CPU path and the GPU path, which uses nested tensors."""
    if request.param == "at once":
        monkeypatch.setattr(packing, "attend_by_runs", packing.attend_at_once)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("pooling", modeling_informin.POOLINGS)
@pytest.mark.parametrize("name", PACKED)
@pytest.mark.usefixtures("attention")
def test_embeddings_and_gradients_equal_those_of_padded_batches(request, name, pooling, side):
    folder = request.getfixturevalue(name)
    encoder = AutoModel.from_pretrained(folder).eval()
    ids, mask = batch_of(folder, side)
    assert can_pack(encoder) and not mask.all()
    packed, tokens = packed_forward(encoder, ids, mask, pooling)
    hidden = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
    padded = modeling_informin.pool(pooling, hidden, mask)
    assert tokens is None
    torch.testing.assert_close(packed, padded, atol=1e-5, rtol=0)
    assert_same_gradients(encoder, packed, padded)


@pytest.mark.usefixtures("attention")
@pytest.mark.parametrize("pooling", modeling_informin.POOLINGS)
def test_wanted_tokens_come_in_the_order_of_the_batch(bert, pooling):
    encoder = AutoModel.from_pretrained(bert).eval()
    ids, mask = batch_of(bert)
    wanted = mask.bool() & (torch.rand(mask.shape, generator=torch.Generator().manual_seed(0)) < 0.3)
    embeddings, tokens = packed_forward(encoder, ids, mask, pooling, wanted)
    hidden = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(tokens, hidden[wanted], atol=1e-5, rtol=0)
    torch.testing.assert_close(embeddings, modeling_informin.pool(pooling, hidden, mask), atol=1e-5, rtol=0)


def test_a_mask_is_packed_once_until_it_changes():
    mask = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 1, 0]])
    packed = Packed.once(mask)
    assert Packed.once(mask) is packed and Packed.once(mask.clone()) is not packed
    mask[2, 1] = 0
    assert Packed.once(mask).runs == [(1, 3), (1, 2), (1, 1)]
    with torch.no_grad():
        assert Packed.once(mask) is not Packed.once(mask)


def test_packed_row_has_no_padding_and_runs_of_equal_length():
    mask = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 1, 0]])
    packed = Packed.of(mask)
    assert packed.order.tolist() == [1, 0, 2] and packed.runs == [(1, 3), (2, 2)]
    assert packed.starts.tolist() == [0, 3, 5] and packed.at.tolist() == [3, 4, 5, 0, 1, 6, 7]


def test_last_layer_computes_only_first_tokens_for_cls(bert):
    """Feed-forward layers of other layers process every token, without padding."""
    encoder = AutoModel.from_pretrained(bert).eval()
    ids, mask = batch_of(bert)
    rows = []
    for layer in encoder.encoder.layer:
        layer.intermediate.register_forward_hook(lambda module, args, output: rows.append(len(args[0])))
    packed_forward(encoder, ids, mask, "cls")
    assert rows == [mask.sum()] * (len(rows) - 1) + [len(SENTENCES)] and len(rows) > 1
    rows.clear()
    packed_forward(encoder, ids, mask, "mean")
    assert rows == [mask.sum()] * len(rows)


@pytest.mark.usefixtures("attention")
def test_attention_dropout_only_in_training(bert):
    layer = AutoModel.from_pretrained(bert).encoder.layer[0]
    for module in (layer.attention.output, layer.output):
        module.dropout.p = 0.0
    packed, hidden = (
        Packed.of(torch.ones(4, 5, dtype=torch.long)),
        torch.randn(20, layer.attention.self.query.in_features),
    )
    once, again = (layer_forward(layer.eval(), hidden, packed) for _ in range(2))
    assert once.equal(again)
    once, again = (layer_forward(layer.train(), hidden, packed) for _ in range(2))
    assert not once.equal(again)


def test_other_class_of_the_same_name_is_not_packed(bert):
    class Other(BertModel):
        pass

    assert can_pack(AutoModel.from_pretrained(bert)) and not can_pack(Other.from_pretrained(bert))
    assert not can_pack(AutoModel.from_pretrained(bert, is_decoder=True))


# Training


def trainer_of(folder, output_dir, **options) -> InforMinTrainer:
    how = FOUR_STEPS | dict(max_steps=1, eval_strategy="no", save_strategy="no", report_to=[]) | options
    return InforMinTrainer(str(folder), train_dataset=make_sentences(96), **how_to_train(str(output_dir), **how))


def one_step(folder, output_dir, **options) -> tuple[float, dict]:
    """Return loss and gradients of the first batch, without dropout."""
    run = trainer_of(folder, output_dir, **options)
    for module in run.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    run.model.train()
    batch = run.get_batch_samples(iter(run.get_train_dataloader()), 1, run.args.device)[0][0]
    loss = run.compute_loss(run.model, batch)
    loss.backward()
    return loss.item(), gradients(run.model)


@pytest.mark.parametrize("pooler", ["cls", "mean"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_loss_and_gradient_of_every_objective_equal_those_of_padded_batches(bert, tmp_path, objective, pooler):
    options = dict(objective="simcse", pooler=pooler, bf16=False) | OBJECTIVES[objective]
    if objective == "informin":
        options["objective"] = "informin"
    (loss, packed), (expected, padded) = (
        one_step(bert, tmp_path / str(on), padding_free=on, **options) for on in (True, False)
    )
    assert loss == pytest.approx(expected, abs=1e-5)
    assert packed.keys() == padded.keys()
    scale = max(gradient.abs().max() for gradient in padded.values())
    for name in packed:
        torch.testing.assert_close(packed[name], padded[name], atol=1e-5 * scale.item(), rtol=1e-3, msg=name)


@pytest.mark.parametrize(
    "options, expected",
    [
        ({}, True),
        (dict(padding_free=False), False),
        (dict(objective="micse", queue_size=16, warmup_steps=0), False),
        (dict(objective="scd", projector_size=32), False),
        (dict(gradient_checkpointing=True), False),
        (dict(neftune_noise_alpha=5.0), False),  # scaled by the length of the padded batch
    ],
    ids=str,
)
def test_training_is_padding_free_where_supported(bert, tmp_path, options, expected):
    run = trainer_of(bert, tmp_path, **options)
    assert (run.model.packed_forward is not None) == expected == bool(run.trained.packing)


@pytest.mark.parametrize(
    "reason, options",
    {
        "`view_dropout`": dict(view_dropout=[0.1, 0.2]),
        "attention maps": dict(attention_mi_weight=0.1),
        "`gradient_checkpointing`": dict(gradient_checkpointing=True),
        "`neftune_noise_alpha`": dict(neftune_noise_alpha=5.0),
    }.items(),
)
def test_incompatible_options_are_refused(bert, tmp_path, reason, options):
    with raises_usage(option="padding_free", found=reason):
        trainer_of(bert, tmp_path, padding_free=True, **options)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_bf16_has_products_of_few_shapes_and_attention_in_float32(bert, monkeypatch, pooling):
    """Memory would grow with every new number of tokens: oneDNN keeps code and buffers for each shape."""
    encoder = AutoModel.from_pretrained(bert).eval()
    ids, mask = batch_of(bert)
    exact, _ = packed_forward(encoder, ids, mask, pooling)
    rows, types = [], set()
    attend = packing.scaled_dot_product_attention

    def spy(query, *args, **options):
        types.add((query.dtype, torch.is_autocast_enabled("cpu")))
        return attend(query, *args, **options)

    monkeypatch.setattr(packing, "scaled_dot_product_attention", spy)
    encoder.encoder.layer[0].intermediate.dense.register_forward_hook(lambda _, given, out: rows.append(len(given[0])))
    with torch.autocast("cpu", torch.bfloat16):
        found, _ = packed_forward(encoder, ids, mask, pooling)
        packed_forward(encoder, ids[1:], mask[1:], pooling)
    assert rows == [256, 256] and 128 < mask.sum() < 256 and types == {(torch.float32, False)}
    assert 1e-5 < (found - exact).abs().max() < 0.05, "the zeros have an effect, or this is no bf16"
    weights = torch.linspace(-1, 1, exact.numel()).view_as(exact)
    gradient = []
    for output in (found, exact):
        encoder.zero_grad()
        (weights * output).sum().backward()
        gradient.append(torch.cat([x.flatten() for x in gradients(encoder).values()]))
    assert torch.cosine_similarity(*gradient, dim=0) > 0.999
