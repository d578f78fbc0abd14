"""Rows of a forward pass (two views and a masked copy), and the outputs that terms use."""

import itertools

import datasets
import pyarrow as pa
import pytest
import torch

from informin.objectives.term import Masking
from informin.training.batch import (
    IGNORED,
    TOKENS,
    PadRows,
    StackedViews,
    TokenMasker,
    TokenTables,
    names_to_read,
    sentence_ids,
    step_seed,
)
from informin.training.plain import two_views
from informin.views import MASK, Crop, Repetition
from informin.views.view import SentenceTokens, View
from modeling_informin import InforMinOutput
from tests.conftest import WORDS, make_sentences, tokenizer_of


@pytest.fixture
def tokenizer(encoder):
    return tokenizer_of(encoder)


@pytest.fixture
def batch(tokenizer):
    return dict(tokenizer(make_sentences(40), padding=True, return_tensors="pt"))


def test_two_views_are_the_batch_twice(batch, tokenizer):
    stacked = StackedViews(SentenceTokens(tokenizer))
    rows = stacked(batch)
    assert stacked.copies == 2 and set(rows) == {"input_ids", "attention_mask", "sentence_ids"}
    for name in ("input_ids", "attention_mask"):
        first, second = rows[name].chunk(2)
        assert torch.equal(first, batch[name]) and torch.equal(second, batch[name])


def test_contrast_views_are_untouched_by_mlm(batch, tokenizer):
    """torch_mask_tokens changes its argument. The authors' code masks its contrastive views this way."""
    before = batch["input_ids"].clone()
    stacked = StackedViews(SentenceTokens(tokenizer), Masking(0.5, of_views=False))
    rows = stacked(batch, seed=1)
    assert stacked.copies == 3
    first, second, masked = rows["input_ids"].chunk(3)
    assert torch.equal(first, before) and torch.equal(second, before) and torch.equal(batch["input_ids"], before)
    assert not torch.equal(masked, before)
    assert (rows["lm_labels"][:80] == IGNORED).all()
    labels = rows["lm_labels"][80:]
    chosen = labels != IGNORED
    assert torch.equal(labels[chosen], before[chosen])
    assert torch.equal(masked[~chosen], before[~chosen])


def test_masked_views_are_two_draws_and_no_third_copy(batch, tokenizer):
    stacked = StackedViews(SentenceTokens(tokenizer), Masking(0.5, of_views=True))
    rows = stacked(batch, seed=1)
    assert stacked.copies == 2
    first, second = rows["input_ids"].chunk(2)
    assert not torch.equal(first, second) and not torch.equal(first, batch["input_ids"])
    assert not torch.equal(stacked(batch, seed=2)["input_ids"], rows["input_ids"])
    assert (rows["lm_labels"].chunk(2)[0] != IGNORED).any() and (rows["lm_labels"].chunk(2)[1] != IGNORED).any()
    assert torch.equal(rows["original_ids"], batch["input_ids"])


def test_masking_rates(tokenizer):
    """15% of the words: 80% of them become [MASK], 10% a random word, 10% stay. Special tokens are never masked."""
    ids = torch.full((400, 50), tokenizer.convert_tokens_to_ids("dog"))
    ids[:, 0], ids[:, -1] = tokenizer.cls_token_id, tokenizer.sep_token_id
    masked, labels = TokenMasker(tokenizer, 0.15)(ids, seed=0)
    chosen = labels != IGNORED
    assert not chosen[:, [0, -1]].any()
    assert chosen[:, 1:-1].float().mean().item() == pytest.approx(0.15, abs=0.01)
    is_mask = masked[chosen] == tokenizer.mask_token_id
    is_same = masked[chosen] == ids[chosen]
    assert is_mask.float().mean().item() == pytest.approx(0.8, abs=0.03)
    assert is_same.float().mean().item() == pytest.approx(0.1, abs=0.02)


def test_mask_depends_only_on_its_seed(batch, tokenizer):
    masker = TokenMasker(tokenizer, 0.15)
    torch.manual_seed(1)
    first = masker(batch["input_ids"], seed=5)[0]
    state = torch.get_rng_state()
    torch.manual_seed(2)
    assert torch.equal(masker(batch["input_ids"], seed=5)[0], first)
    assert not torch.equal(masker(batch["input_ids"], seed=6)[0], first)
    torch.set_rng_state(state)


def test_step_seed_differs_in_every_part():
    seeds = {step_seed(*parts) for parts in [(1, 2, 0, 0), (2, 1, 0, 0), (1, 2, 1, 0), (1, 2, 0, 1), (1, 3, 0, 0)]}
    assert len(seeds) == 5
    assert step_seed(1, 2, 0, 0) == step_seed(1, 2, 0, 0)


def test_sentence_ids_are_equal_for_equal_sentences_only(tokenizer):
    """Padding on either side does not matter; the order and number of words do."""
    sentences = make_sentences(2000)
    batch = dict(tokenizer(sentences, padding=True, return_tensors="pt"))
    ids = sentence_ids(batch["input_ids"], batch["attention_mask"])
    assert ids.dtype == torch.int64 and len(set(ids.tolist())) == 2000
    wider = dict(tokenizer(sentences[:5], padding="max_length", max_length=50, return_tensors="pt"))
    assert torch.equal(sentence_ids(wider["input_ids"], wider["attention_mask"]), ids[:5])
    tokenizer.padding_side = "left"
    left = dict(tokenizer(sentences, padding=True, return_tensors="pt"))
    assert torch.equal(sentence_ids(left["input_ids"], left["attention_mask"]), ids)
    tokenizer.padding_side = "right"
    near = dict(tokenizer(["a dog sees a cat", "a cat sees a dog", "a dog sees a", "dog a sees a cat"], padding=True))
    near_ids = sentence_ids(torch.tensor(near["input_ids"]), torch.tensor(near["attention_mask"]))
    assert len(set(near_ids.tolist())) == 4


@pytest.mark.parametrize("of_views", [False, True])
def test_sentence_ids_are_computed_before_masking(batch, tokenizer, of_views):
    rows = StackedViews(SentenceTokens(tokenizer), Masking(0.5, of_views))(batch, seed=1)
    assert torch.equal(rows["sentence_ids"], sentence_ids(batch["input_ids"], batch["attention_mask"]))


@pytest.mark.parametrize("masking", [None, Masking(0.5, True), Masking(0.5, False)], ids=["none", "views", "copy"])
@pytest.mark.parametrize("maps", [0, 2])
def test_terms_use_the_first_two_copies(batch, tokenizer, masking, maps):
    """Only the losses of masked tokens come from all rows."""
    stacked = StackedViews(SentenceTokens(tokenizer), masking)
    rows, count, length = stacked(batch, seed=1), *batch["input_ids"].shape
    copies, heads = torch.arange(stacked.copies).repeat_interleave(count), {"queue": object()}
    outputs = InforMinOutput(
        pooler_output=10 + copies[:, None].expand(-1, 6),
        projection=copies[:, None].expand(-1, 5),
        attentions=tuple(
            10 * layer + copies[:, None, None, None].expand(-1, 4, length, length) for layer in range(maps)
        ),
        lm_losses=masking and torch.rand(7),
        heads=heads if masking else None,
    )
    views = two_views(outputs, rows)
    assert views.z1.shape == (count, 5) and (views.z1 == 0).all() and (views.z2 == 1).all()
    assert views.embedding1.shape == (count, 6) and (views.embedding1 == 10).all() and (views.embedding2 == 11).all()
    assert views.row is views.general is views.general_row is None
    assert torch.equal(views.mask, batch["attention_mask"]) and views.heads == (heads if masking else {})
    for view, of_view in enumerate((views.maps1, views.maps2)):
        assert (of_view is None) == (maps == 0)
        for layer in range(maps):
            assert of_view.shape == (count, 2, 4, length, length) and (of_view[:, layer] == 10 * layer + view).all()
    assert views.lm_losses is outputs.lm_losses and (views.lm_losses is None) == (masking is None)


def places(batch):
    """Add indices, as for rows with a guide."""
    return batch | {"row": torch.arange(len(batch["input_ids"])) + 100}


def test_rows_keep_the_indices_of_their_sentences(batch, tokenizer):
    rows = StackedViews(SentenceTokens(tokenizer), Masking(0.5, False))(places(batch), seed=1)
    count = len(batch["input_ids"])
    assert rows["row"].tolist() == [*range(100, 100 + count)] and len(rows["input_ids"]) == 3 * count


@pytest.mark.parametrize("view", [None, Crop()], ids=["dropout", "crop"])
def test_copies_of_a_sentence_are_not_its_negatives(tokenizer, view):
    batch = dict(tokenizer(["the dog runs", "a cat", "the dog runs"], padding=True, return_tensors="pt"))
    rows = StackedViews(SentenceTokens(tokenizer), view=view)(batch, seed=1)
    outputs = InforMinOutput(pooler_output=torch.arange(6), projection=torch.arange(6))
    negatives = two_views(outputs, rows).negatives
    expected = [[0, 1, 0], [1, 0, 1], [0, 1, 0]]  # the contrast ignores a sentence's own second view
    assert negatives.int().tolist() == expected
    rows["sentence_ids"][2] += 1
    assert torch.equal(two_views(outputs, rows).negatives, ~torch.eye(3, dtype=torch.bool))


@pytest.mark.parametrize("side", ["right", "left"])
def test_longer_second_views_widen_the_first(tokenizer, side):
    class Doubled(View):
        def change(self, tokens, generator):
            return tokens.repeat(2)

    tokenizer.padding_side = side
    batch = dict(tokenizer(["the dog runs", "a cat"], padding=True, return_tensors="pt"))
    rows = StackedViews(SentenceTokens(tokenizer), view=Doubled())(batch)
    expected = ["the dog runs", "a cat", "the dog runs the dog runs", "a cat a cat"]
    together = tokenizer(expected, padding=True, return_tensors="pt")
    assert torch.equal(rows["input_ids"], together["input_ids"])
    assert torch.equal(rows["attention_mask"], together["attention_mask"])


def test_masked_tokens_of_both_views_are_not_shared(tokenizer):
    class FirstAndLast(View):
        keeps_tokens = masks_tokens = True

        def change(self, tokens, generator):
            mask = tokens.new_tensor([MASK])
            return torch.cat([mask, tokens[1:]]), torch.cat([tokens[:-1], mask])

    batch = dict(tokenizer(["the dog runs today", "a cat sleeps"], padding=True, return_tensors="pt"))
    rows = StackedViews(SentenceTokens(tokenizer), view=FirstAndLast())(batch)
    assert rows["shared"].tolist() == [[0, -1, 2, 3, -1, 5], [0, -1, 2, -1, 4, -1]]
    assert (rows["input_ids"] == tokenizer.mask_token_id).sum(1).tolist() == [1, 1, 1, 1]


def test_the_masked_copy_is_the_sentence_if_both_views_change(batch, tokenizer):
    masking = Masking(0.5, of_views=False)
    views = [
        StackedViews(SentenceTokens(tokenizer), masking, view)(batch, seed=1)
        for view in (None, Crop(spans="independent"))
    ]
    plain, cropped = (rows["input_ids"].chunk(3) for rows in views)
    assert plain[2].equal(cropped[2]) and not any(plain[copy].equal(cropped[copy]) for copy in (0, 1))
    assert cropped[2].shape == batch["input_ids"].shape
    assert views[0]["sentence_ids"].equal(views[1]["sentence_ids"])
    assert views[1]["original_ids"].equal(batch["input_ids"])


@pytest.mark.parametrize("masking", [None, Masking(0.5, False), Masking(0.5, True)], ids=["none", "copy", "views"])
def test_a_single_view_stands_for_both(batch, tokenizer, masking):
    stacked = StackedViews(SentenceTokens(tokenizer), masking, encodes_once=True)
    rows, count = stacked(places(batch), seed=1), len(batch["input_ids"])
    copies = 2 if masking and not masking.of_views else 1
    assert len(rows["input_ids"]) == copies * count and len(rows["row"]) == count
    outputs = InforMinOutput(pooler_output=torch.arange(copies * count), projection=torch.arange(copies * count))
    views = two_views(outputs, rows)
    for view in (views.z1, views.z2, views.embedding1, views.embedding2):
        assert view.tolist() == [*range(count)]
    assert views.row.tolist() == [*range(100, 100 + count)]


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(
    "view", [Crop(), Crop(spans="independent"), Repetition(rate=0.9)], ids=["crop", "crops", "repetition"]
)
def test_attention_maps_are_compared_at_the_tokens_that_both_views_have(tokenizer, view, side):
    """The maps name the two tokens of each position, so they agree at shared tokens, wherever these are."""
    tokenizer.padding_side = side
    words = " ".join(WORDS)  # each token once
    batch = dict(tokenizer([words, "the dog sleeps", "a cat"], padding=True, return_tensors="pt"))
    rows = StackedViews(SentenceTokens(tokenizer), view=view)(batch, seed=4)
    ids = rows["input_ids"]
    maps = (1000 * ids[:, None, :, None] + ids[:, None, None, :]).expand(-1, 4, -1, -1)
    maps = maps * rows["attention_mask"][:, None, :, None] * rows["attention_mask"][:, None, None, :]
    views = two_views(InforMinOutput(pooler_output=ids, projection=ids, attentions=(maps, 2 * maps)), rows)
    tokens = [set(row[mask.bool()].tolist()) for row, mask in zip(ids, rows["attention_mask"])]
    for row in range(3):
        first, mask = ids[row].tolist(), views.mask[row].tolist()
        real = rows["attention_mask"][row].tolist()
        shared = [place for place, word in enumerate(first) if real[place] and word in tokens[row + 3]]
        assert [place for place, shown in enumerate(mask) if shown] == shared and len(shared) > 2
        for layer, times in enumerate((1, 2)):
            for i, j in itertools.product(range(len(first)), repeat=2):
                expected = times * (1000 * first[i] + first[j]) if i in shared and j in shared else 0
                assert (views.maps2[row, layer, :, i, j] == expected).all()
                assert not expected or (views.maps1[row, layer, :, i, j] == expected).all()
    assert any(tokens[row] != tokens[row + 3] for row in range(3)) == isinstance(view, Crop)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("columns", [(), ("row",), ("other",)])
def test_tables_give_the_batches_of_lists(tokenizer, side, columns):
    """Also of selected and shuffled rows, in more than one chunk, and with another format."""
    tokenizer.padding_side = side
    ids = [[5 + number] * (1 + number % 7) for number in range(40)]
    data = {"input_ids": ids, "attention_mask": [[1] * len(one) for one in ids]}
    data |= {name: list(range(40)) for name in columns}
    parts = [datasets.Dataset.from_dict(data).select(range(start, start + 20)) for start in (0, 20)]
    rows = datasets.concatenate_datasets(parts).shuffle(seed=1).select(range(30)).with_format("torch")
    names = names_to_read((), rows.column_names)
    pad, tables = PadRows(tokenizer, names), TokenTables(rows, names)
    assert len(tables) == 30
    for indices in ([3, 29, 0, 3], [7]):
        found = pad(tables.__getitems__(indices))
        expected = pad([rows.with_format(None)[index] for index in indices])
        assert found.keys() == expected.keys() == {"input_ids", "attention_mask", *({"row"} & set(columns))}
        for name, x in expected.items():
            assert torch.equal(found[name], x)
            assert found[name].dtype == torch.int64
        assert found["attention_mask"][:, -1 if side == "left" else 0].all()


def test_a_null_among_tokens_is_an_error(tokenizer):
    rows = datasets.Dataset.from_dict({"input_ids": [[5, None], [6]], "attention_mask": [[1, 1], [1]]})
    with pytest.raises(pa.ArrowInvalid):
        PadRows(tokenizer)(TokenTables(rows, TOKENS).__getitems__([0, 1]))
