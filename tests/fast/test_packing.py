"""Packed texts give the hidden states, losses and gradients of padded ones, and are used only where they can be."""

import copy

import pytest
import torch
from sentence_transformers.models import Pooling
from transformers import AutoConfig, AutoModel

from informin.fast import packing
from informin.fast.forward import padded_again
from informin.fast.packing import has_position_table, pack, packed_copy, padding_index_of
from informin.fast.plan import can_pack
from tests.conftest import FOUR_STEPS, WORDS, how_to_train, make_sentences, raises_usage, tokenizer_of
from tests.fast.test_cpu_threads import cores
from trainer_informin import InforMinTrainer

SIZES = dict(
    hidden_size=64,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=128,
    vocab_size=500,
    max_position_embeddings=600,
    initializer_range=0.1,
)
DISTILBERT = dict(
    dim=64, n_layers=3, n_heads=4, hidden_dim=128, vocab_size=500, max_position_embeddings=600, initializer_range=0.1
)
GROUPED = SIZES | dict(num_key_value_heads=2, bos_token_id=1, eos_token_id=2, pad_token_id=0)
OFFSET = SIZES | dict(pad_token_id=1)
SPECIAL_IDS = dict(pad_token_id=0, cls_token_id=1, sep_token_id=2, bos_token_id=1, eos_token_id=2)
KINDS = {  # sliding windows are shorter than the longest text
    "bert": SIZES,
    "roberta": OFFSET,
    "xlm-roberta": OFFSET,
    "camembert": OFFSET,
    "data2vec-text": OFFSET,
    "electra": SIZES | dict(embedding_size=32),
    "albert": SIZES | dict(embedding_size=32),
    "distilbert": DISTILBERT,
    "nomic_bert": SIZES,
    "ernie": SIZES,
    "modernbert": SIZES | SPECIAL_IDS | dict(local_attention=16),
    "qwen2": GROUPED,
    "qwen3": GROUPED | dict(head_dim=16),
    "llama": GROUPED,
    "mistral": GROUPED | dict(sliding_window=16),
    "gemma3_text": GROUPED | dict(head_dim=16, use_bidirectional_attention=True, sliding_window=16),
}
PADDED = {
    "mpnet": OFFSET,
    "deberta-v2": SIZES,
    "t5": dict(d_model=64, d_kv=16, d_ff=64, num_layers=2, num_heads=4, vocab_size=500),
    "mamba": dict(hidden_size=64, num_hidden_layers=2, vocab_size=500),
    "esm": OFFSET | dict(mask_token_id=3, token_dropout=True),  # its embeddings depend on the padding
}
LENGTHS = [5, 40, 40, 12, 3, 40, 1]
# Special tokens as text: some are BERT's, some RoBERTa's. Each treats the others as unknown words.
SPECIAL = ["<pad> the dog [PAD] sleeps", "<pad><pad> [PAD] [PAD]", "</s> [SEP] cat <mask> [MASK] <pad>"]
SENTENCES = ["dog", *make_sentences(9), " ".join(WORDS[:20]), "the dog", "today", *SPECIAL]
OBJECTIVES = {
    "simcse": {},
    "simcse with MLM": dict(mlm_weight=0.1),
    "simcse with a queue": dict(queue_size=16),
}


def tiny(kind: str, sizes: dict):
    """Return a model of an architecture with random weights."""
    torch.manual_seed(1)
    return AutoModel.from_config(AutoConfig.for_model(kind, **sizes), attn_implementation=None).eval()


def batch_of(lengths=LENGTHS):
    """Return random token ids, padded on the right with 1, and their mask."""
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    ids = torch.randint(5, 500, mask.shape, generator=torch.Generator().manual_seed(0))
    return torch.where(mask.bool(), ids, 1), mask


def states(encoder, ids, mask, multiple=1, embedded=False):
    """Return the packed row and the hidden states (T, d) of the tokens, in the order of the batch."""
    packed = pack(ids, mask, padding_index_of(encoder), multiple)
    row = packed.features()
    if embedded:
        row["inputs_embeds"] = encoder.get_input_embeddings()(row.pop("input_ids"))
    hidden = packed_copy(encoder)(**row).last_hidden_state[0]
    return packed, hidden[packed.places[mask.bool()]]


def gradients(model) -> dict[str, torch.Tensor]:
    return {name: x.grad.clone() for name, x in model.named_parameters() if x.grad is not None}


def gradients_of(model, output) -> dict[str, torch.Tensor]:
    """Return the gradients of a function whose gradient differs at every number."""
    model.zero_grad()
    weights = torch.linspace(-1, 1, output.numel()).view_as(output)
    (weights * output.sin()).sum().backward()
    return gradients(model)


@pytest.mark.parametrize("kind", KINDS)
def test_hidden_states_and_gradients_of_16_architectures_equal_those_of_padded_batches(kind):
    encoder = tiny(kind, KINDS[kind])
    ids, mask = batch_of()
    assert can_pack(encoder)
    before = encoder.config._attn_implementation
    padded = encoder(input_ids=ids, attention_mask=mask).last_hidden_state[mask.bool()]
    expected = gradients_of(encoder, padded)
    for multiple, embedded in ((1, False), (64, True)):
        _, found = states(encoder, ids, mask, multiple, embedded)
        torch.testing.assert_close(found, padded, atol=5e-5, rtol=1e-5)
        own = gradients_of(encoder, found)
        assert len(expected) > 10 and own.keys() <= expected.keys()
        scale = max(gradient.abs().max() for gradient in expected.values()).item()
        for name, gradient in expected.items():
            ours = own.get(name, torch.zeros(())).expand_as(gradient)
            torch.testing.assert_close(ours, gradient, atol=1e-5 * scale, rtol=1e-3, msg=name)
    assert encoder.config._attn_implementation == before


@pytest.mark.parametrize("kind", PADDED)
def test_models_that_cannot_be_packed_say_so(kind):
    assert not can_pack(tiny(kind, PADDED[kind]))


def test_a_model_that_mixes_the_texts_of_a_row_is_not_packed(bert):
    """Its class takes attention functions, but its code reads the neighbors of a token."""
    encoder = AutoModel.from_pretrained(bert)
    assert can_pack(encoder)
    other = AutoModel.from_pretrained(bert)
    other.encoder.layer[0].register_forward_hook(lambda module, given, output: output + output.roll(1, dims=-2))
    assert not can_pack(other)


@pytest.mark.parametrize("side", ["right", "left"])
def test_position_ids_are_those_of_the_model_with_special_tokens_as_text(encoder, side):
    tokenizer, model = tokenizer_of(encoder), AutoModel.from_pretrained(encoder).eval()
    padded = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    expected = model(**padded).last_hidden_state[padded["attention_mask"].bool()]
    tokenizer.padding_side = side
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    _, found = states(model, batch["input_ids"], batch["attention_mask"])
    torch.testing.assert_close(found, expected, atol=5e-5, rtol=1e-5)


def test_a_row_has_no_padding_the_longest_text_first_and_runs_of_equal_length():
    ids = torch.tensor([[7, 8, 0], [1, 2, 3], [5, 6, 0]])
    packed = pack(ids, (ids > 0).long())
    assert packed.input_ids.tolist() == [[1, 2, 3, 7, 8, 5, 6]] and packed.runs == [(1, 3), (2, 2)]
    assert packed.position_ids.tolist() == [[0, 1, 2, 0, 1, 0, 1]] and packed.rows.tolist() == [1, 0, 2]
    assert packed.ends.tolist() == [0, 3, 5, 7] and packed.texts.tolist() == [[0, 0, 0, 1, 1, 2, 2]]
    assert packed.places.tolist() == [[3, 4, -1], [0, 1, 2], [5, 6, -1]]
    filled = pack(ids, (ids > 0).long(), multiple=8)
    assert filled.runs == [(1, 3), (2, 2), (1, 1)] and filled.input_ids.shape == filled.position_ids.shape == (1, 8)
    assert filled.places.equal(packed.places) and filled.ends.tolist() == [0, 3, 5, 7, 8]
    assert max(length for _, length in pack(ids, (ids > 0).long(), multiple=64).runs) == 3, "no longer than a text"


@pytest.mark.parametrize(
    "kind, index, table", [("bert", None, True), ("xlm-roberta", 1, True), ("modernbert", None, False)]
)
def test_positions_of_an_encoder(kind, index, table):
    encoder = tiny(kind, KINDS[kind])
    assert (padding_index_of(encoder), has_position_table(encoder)) == (index, table)


@pytest.mark.parametrize("kind", ["bert", "qwen3"])
def test_attention_dropout_only_in_training(kind):
    encoder = tiny(kind, KINDS[kind])
    for name, module in encoder.named_modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5 if name.endswith("attention.self.dropout") else 0.0
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.5
    for training in (False, True):
        encoder.train(training)
        once, again = (states(encoder, *batch_of())[1] for _ in range(2))
        assert once.equal(again) != training


def test_bf16_has_products_of_few_shapes_and_attention_in_float32(monkeypatch):
    """Memory would grow with every new number of tokens: oneDNN keeps code and buffers for each shape."""
    encoder = tiny("bert", SIZES)
    ids, mask = batch_of()
    _, exact = states(encoder, ids, mask)
    rows, types = [], set()
    attend = packing.scaled_dot_product_attention

    def spy(query, *args, **options):
        types.add((query.dtype, torch.is_autocast_enabled("cpu")))
        return attend(query, *args, **options)

    monkeypatch.setattr(packing, "scaled_dot_product_attention", spy)
    dense = encoder.encoder.layer[0].intermediate.dense
    dense.register_forward_hook(lambda _, given, out: rows.append(given[0].shape[1]))
    with torch.autocast("cpu", torch.bfloat16):
        _, found = states(encoder, ids, mask, packing.BF16_ROWS)
        states(encoder, ids[1:], mask[1:], packing.BF16_ROWS)
    assert rows == [256, 256] and 128 < mask.sum() < 256 and types == {(torch.float32, False)}
    assert 1e-5 < (found - exact).abs().max() < 0.3, "or this is no bf16"
    both = [torch.cat([x.flatten() for x in gradients_of(encoder, output).values()]) for output in (found, exact)]
    assert torch.cosine_similarity(*both, dim=0) > 0.99


@pytest.mark.parametrize("kind", KINDS)
def test_bf16_weights_have_attention_of_multiples_of_16_tokens(kind, monkeypatch):
    """Tokens of the next text, which fill a span up, change nothing: packed texts are as exact as padded ones."""
    encoder = tiny(kind, KINDS[kind]).requires_grad_(False)
    ids, mask = batch_of()
    exact, in_half = (
        model(input_ids=ids, attention_mask=mask).last_hidden_state[mask.bool()].float()
        for model in (encoder, copy.deepcopy(encoder).bfloat16())
    )
    lengths, attend = set(), packing.scaled_dot_product_attention

    def spy(query, *args, **options):
        lengths.add(query.shape[2])
        return attend(query, *args, **options)

    monkeypatch.setattr(packing, "scaled_dot_product_attention", spy)
    for multiple, at_the_end in ((packing.BF16_ROWS, {35}), (1, {5, 3, 1})):  # 115 tokens of filler, or none
        lengths.clear()
        _, found = states(encoder.bfloat16(), ids, mask, multiple)
        assert lengths == {16, 48} | at_the_end
        error, allowed = (found.float() - exact).abs().mean(), (in_half - exact).abs().mean()
        assert 0 < error < 1.5 * allowed


def test_autocast_does_not_change_whether_a_model_is_packed(bert):
    with torch.autocast("cpu", torch.bfloat16):
        assert can_pack(AutoModel.from_pretrained(bert))


@pytest.mark.parametrize("pooling", ["cls", "mean", "lasttoken", "max"])
def test_texts_that_are_padded_again_have_the_same_embeddings(pooling):
    encoder = tiny("bert", SIZES)
    packed, _ = states(encoder, *batch_of(), multiple=64)
    features = packed.features()
    features["token_embeddings"] = packed_copy(encoder)(**features).last_hidden_state
    pool = Pooling(SIZES["hidden_size"], pooling_mode=pooling)
    found = pool(padded_again(features))["sentence_embedding"]
    torch.testing.assert_close(found, pool(features)["sentence_embedding"][: len(LENGTHS)])


# Training


def trainer_of(folder, output_dir, **options) -> InforMinTrainer:
    how = FOUR_STEPS | dict(max_steps=1, eval_strategy="no", save_strategy="no", report_to=[]) | options
    return InforMinTrainer(str(folder), train_dataset=make_sentences(96), **how_to_train(str(output_dir), **how))


def first_batches(run, number: int) -> list[dict]:
    """Return the first batches of a run, in training mode and without dropout."""
    for module in run.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    run.model.train()
    return run.get_batch_samples(iter(run.get_train_dataloader()), number, run.args.device)[0]


def first_batch(run) -> dict:
    return first_batches(run, 1)[0]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_step_reads_no_number_from_a_tensor(bert, tmp_path, monkeypatch, objective):
    """On a GPU, each would wait for all queued work."""
    run = trainer_of(bert, tmp_path, objective="simcse", **OBJECTIVES[objective])
    batch = first_batch(run)

    def read(self, *args):
        raise AssertionError("a number of a tensor was read")

    for name in ("item", "tolist", "__bool__", "__int__", "__float__", "nonzero"):
        monkeypatch.setattr(torch.Tensor, name, read)
    rows = batch["split_batch"]
    embeddings, _, tokens, _ = rows.forward.run(rows)
    (embeddings.sum() + (0 if tokens is None else tokens.sum())).backward()
    if rows.first_view is not None:
        with torch.no_grad():
            rows.forward.batch = rows
            rows.forward.embed_with(run.model.heads["queue"].encoder, batch["input_ids"], batch["attention_mask"])


@pytest.mark.parametrize(
    "options, expected",
    [
        ({}, True),
        (dict(padding_free=False), False),
        (dict(objective="micse", queue_size=16, warmup_steps=0), True),
        (dict(objective="micse", queue_size=16, warmup_steps=0, attention_mi_form="code"), False),
        (dict(objective="scd", projector_size=32), True),
        (dict(gradient_checkpointing=True), False),
        (dict(neftune_noise_alpha=5.0), False),  # scaled by the length of the padded batch
    ],
    ids=str,
)
def test_training_is_packed_where_supported(bert, tmp_path, options, expected):
    run = trainer_of(bert, tmp_path, **options)
    packed = "packed" in first_batch(run)["split_batch"].parts[0].features
    assert packed == expected == bool(run.trained.packing)


@pytest.mark.parametrize(
    "reason, options",
    {
        "attention maps of padding": dict(attention_mi_weight=0.1, attention_mi_form="code"),
        "`gradient_checkpointing`": dict(gradient_checkpointing=True),
        "`neftune_noise_alpha`": dict(neftune_noise_alpha=5.0),
    }.items(),
)
def test_incompatible_options_are_refused(bert, tmp_path, reason, options):
    with raises_usage(option="padding_free", found=reason):
        trainer_of(bert, tmp_path, padding_free=True, **options)


@pytest.mark.parametrize("number", [1, 2])
def test_packed_views_have_their_own_dropout_rates(bert, tmp_path, number):
    """Without dropout in the first view, only the second one is random."""
    with cores(number):
        run = trainer_of(bert, tmp_path, objective="scd", projector_size=32, view_dropout=[0.0, 0.5])
        run.model.train()
        (batch,) = run.get_batch_samples(iter(run.get_train_dataloader()), 1, run.args.device)[0]
        rows = batch["split_batch"]
        assert run.model.forward_pass.plan.packs and len(rows.parts) == 2
        (first, second), (again, other) = (rows.forward.run(rows)[0].chunk(2) for _ in range(2))
    run.model.eval()
    padded = {name: batch[name][: len(first)] for name in ("input_ids", "attention_mask")}
    expected = run.trained.finished(padded)["sentence_embedding"]
    torch.testing.assert_close(first, again)
    torch.testing.assert_close(first, expected, rtol=1e-4, atol=1e-5)
    assert (second - other).abs().max() > 0.1 and (second - first).abs().max() > 0.1
