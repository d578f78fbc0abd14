"""Views that change the tokens of one sentence: word repetition and span cropping."""

import itertools

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from informin.training.batch import StackedViews
from informin.views import MASK, Augment, Crop, Repetition, SpanMask, View
from informin.views.augment import delete_spans, swap_spans
from informin.views.crop import crop_span
from informin.views.repetition import repeat_tokens
from informin.views.span_mask import mask_span
from informin.views.view import SentenceTokens
from tests.conftest import make_sentences, raises_usage, tokenizer_of


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def tokenizer(encoder):
    return tokenizer_of(encoder)


@pytest.fixture
def batch(tokenizer):
    return dict(tokenizer(make_sentences(40), padding=True, return_tensors="pt"))


def rows_of(batch):
    return [ids[mask.bool()].tolist() for ids, mask in zip(batch["input_ids"], batch["attention_mask"])]


@pytest.mark.parametrize("length, most", [(1, 1), (2, 2), (3, 2), (10, 3), (40, 12)])
def test_repetition_repeats_up_to_a_fraction_of_the_tokens(length, most):
    """At most max(2, int(0.32 * length)) tokens, each once, next to the original; every number occurs."""
    tokens, numbers = torch.arange(length), set()
    for seed in range(200):
        repeated = repeat_tokens(tokens, 0.32, generator(seed))
        times = repeated.bincount(minlength=length)
        assert set(times.tolist()) <= {1, 2} and torch.equal(repeated, repeated.sort().values)
        numbers.add(len(repeated) - length)
    assert numbers == set(range(most + 1))


def test_crop_is_a_contiguous_span_of_allowed_length():
    tokens, lengths, starts = torch.arange(100, 120), set(), set()
    for seed in range(500):
        span = crop_span(tokens, 0.3, 0.6, generator(seed))
        assert torch.equal(span, torch.arange(int(span[0]), int(span[0]) + len(span)))
        lengths.add(len(span))
        starts.add(int(span[0]))
    assert lengths == set(range(6, 13)) and min(starts) == 100 and max(starts) >= 112


@pytest.mark.parametrize("length", [1, 2, 3])
def test_crop_of_short_sentence_keeps_a_token(length):
    for seed in range(20):
        assert 1 <= len(crop_span(torch.arange(length), 0.01, 1.0, generator(seed))) <= length


@pytest.mark.parametrize("view", [Repetition(), Crop()], ids=["repetition", "crop"])
def test_special_tokens_and_prompt_are_kept(tokenizer, view):
    batch = dict(tokenizer([f"the dog {text}" for text in make_sentences(40)], padding=True, return_tensors="pt"))
    tokens, changed = SentenceTokens(tokenizer, prompt="the dog "), 0
    for before, after in zip(rows_of(batch), view.both_views(batch, tokens, seed=3)[1].tokens):
        assert after[:3] == before[:3] and after[-1] == before[-1]
        words = after[3:-1]
        assert set(words) <= set(before[3:-1]) and words
        changed += after != before
    assert changed > 10


@pytest.mark.parametrize("view", [Repetition(), Crop()], ids=["repetition", "crop"])
def test_seed_determines_the_second_views(batch, tokenizer, view):
    """They do not depend on the global random state."""
    tokens = SentenceTokens(tokenizer)
    torch.manual_seed(1)
    first = view.both_views(batch, tokens, seed=5)[1].tokens
    torch.manual_seed(2)
    assert view.both_views(batch, tokens, seed=5)[1].tokens == first
    assert view.both_views(batch, tokens, seed=6)[1].tokens != first


def test_second_views_fit_the_encoder(batch, tokenizer):
    class Doubled(View):
        def change(self, tokens, generator):
            return tokens.repeat(2)

    second = Doubled().both_views(batch, SentenceTokens(tokenizer, longest=12), seed=0)[1]
    for before, after in zip(rows_of(batch), second.tokens):
        words = before[1:-1] * 2
        assert after == [before[0], *words[:10], before[-1]]


def test_sentence_without_words_stays_as_it_is(tokenizer):
    batch = dict(tokenizer(["", "dog"], padding=True, return_tensors="pt"))
    tokens = SentenceTokens(tokenizer)
    assert Crop().both_views(batch, tokens, 0)[1].tokens[0] == rows_of(batch)[0]


def test_unknown_words_are_not_special_tokens(tokenizer):
    ids = torch.tensor(tokenizer("xyz dog xyz")["input_ids"])
    start, words, end = SentenceTokens(tokenizer).split(ids)
    assert (len(start), len(words), len(end)) == (1, 3, 1) and words[0] == tokenizer.unk_token_id


@pytest.mark.parametrize(
    "kind, options, option",
    [
        (Repetition, dict(rate=-0.1), "repetition_rate"),
        (Repetition, dict(rate=1.1), "repetition_rate"),
        (Crop, dict(min_fraction=0), "crop_min_fraction"),
        (Crop, dict(min_fraction=0.8, max_fraction=0.7), "crop_min_fraction"),
        (Crop, dict(max_fraction=1.2), "crop_max_fraction"),
        (Crop, dict(min_tokens=0), "crop_min_tokens"),
        (Crop, dict(spans="both"), "crop_spans"),
        (SpanMask, dict(length=0), "span_mask_length"),
        (Augment, dict(first="none", second="none"), "augment_second"),
        (Augment, dict(first="dropout"), "augment_first"),
        (Augment, dict(feature_cutoff=1.0), "augment_feature_cutoff"),
        (Augment, dict(spans=0), "augment_spans"),
        (Augment, dict(span_fraction=0.6), "augment_span_fraction"),
    ],
)
def test_options_out_of_range_are_refused(kind, options, option):
    with raises_usage(option):
        kind(**options)


def test_a_view_must_change_tokens():
    class Nothing(View):
        pass

    with pytest.raises(TypeError, match="change"):
        Nothing()


@pytest.mark.parametrize("length", [1, 2, 5])
def test_one_mask_stands_for_a_span(length):
    tokens, starts = torch.arange(100, 110), set()
    for seed in range(200):
        masked = mask_span(tokens, length, generator(seed))
        (place,) = (masked == MASK).nonzero()[:, 0].tolist()
        assert masked.tolist() == [*range(100, 100 + place), MASK, *range(100 + place + length, 110)]
        starts.add(place)
    assert starts == set(range(11 - length))
    assert mask_span(tokens[:6], length, generator()).equal(tokens[:6]), "a short text stays as it is"


def test_masked_spans_are_mask_tokens_without_a_place(batch, tokenizer):
    first, second = SpanMask().both_views(batch, SentenceTokens(tokenizer), seed=3)
    assert first is None
    number = 0
    for before, after, places in zip(rows_of(batch), second.tokens, second.places, strict=True):
        assert [before[place] if place != MASK else tokenizer.mask_token_id for place in places] == after
        assert places.count(MASK) == after.count(tokenizer.mask_token_id) == (len(before) >= 9)
        number += places.count(MASK)
    assert number > 5
    tokenizer.mask_token = None
    with raises_usage("view"):
        StackedViews(SentenceTokens(tokenizer), view=SpanMask())


def test_spans_are_deleted_and_swapped():
    tokens = torch.arange(40)
    for seed in range(100):
        kept, swapped = (change(tokens, 3, 0.1, generator(seed)) for change in (delete_spans, swap_spans))
        gaps = [one for one in (kept[1:] - kept[:-1]).tolist() if one > 1]
        assert kept.equal(kept.sort().values) and 28 <= len(kept) <= 36 and len(gaps) <= 3
        assert swapped.sort().values.equal(tokens) and not swapped.equal(tokens)
    once = [swap_spans(torch.arange(12), 1, 0.25, generator(seed)).tolist() for seed in range(100)]
    assert all(1 <= sum(a + 1 != b for a, b in itertools.pairwise(one)) <= 4 for one in once), "at most five runs"
    for length in (1, 2):
        assert len(delete_spans(tokens[:length], 9, 0.5, generator())) == 1
        assert len(swap_spans(tokens[:length], 9, 0.5, generator())) == length


def test_each_view_has_its_own_augmentation(batch, tokenizer):
    view = Augment(first="deletion", second="shuffle", deletion=0.5)
    first, second = view.both_views(batch, SentenceTokens(tokenizer), seed=3)
    changed = 0
    for before, one, other in zip(rows_of(batch), first.tokens, second.tokens, strict=True):
        assert sorted(other) == sorted(before) and other[0] == before[0] and other[-1] == before[-1]
        assert len(one) <= len(before) and set(one) <= set(before)
        changed += (len(one) < len(before)) + (other != before)
    assert changed > 40 and first.factors is second.factors is None
    assert view.options() == {"augment_first": "deletion", "augment_second": "shuffle", "augment_deletion": 0.5}


def test_cutoffs_are_tokens_and_features(batch, tokenizer):
    view = Augment(first="feature_cutoff", second="token_cutoff", feature_cutoff=0.25, token_cutoff=0.5)
    first, second = view.both_views(batch, SentenceTokens(tokenizer, prompt="", width=32), seed=3)
    assert [*first.tokens] == [*second.tokens] == rows_of(batch)
    for row, features, tokens in zip(rows_of(batch), first.factors, second.factors, strict=True):
        assert features.shape == (1, 32) and (features == 0).sum() == 8 and set(features.unique().tolist()) == {0, 1}
        assert tokens.shape == (len(row), 1) and (tokens == 0).sum() == (len(row) - 2) // 2
        assert tokens[0] == tokens[-1] == 1, "special tokens stay"
    assert len({tuple(one[0].tolist()) for one in first.factors}) > 30, "each sentence has its own"


def spans_of(view, length=40, number=400):
    """Return the two spans of many draws, as first and last place."""
    for seed in range(number):
        first, second = view.change(torch.arange(length), generator(seed))
        for span in (first, second):
            assert torch.equal(span, torch.arange(int(span[0]), int(span[-1]) + 1))
        yield (int(first[0]), int(first[-1])), (int(second[0]), int(second[-1]))


def test_independent_spans_lie_anywhere():
    spans = list(spans_of(Crop(spans="independent", min_fraction=0.1, max_fraction=0.5)))
    for place in (0, 1):
        lengths = {last - first + 1 for first, last in (both[place] for both in spans)}
        assert min(lengths) == 4 and max(lengths) == 20
    assert any(two[0] - one[1] > 5 or one[0] - two[1] > 5 for one, two in spans), "also far from each other"
    assert len({one for one, _ in spans}) > 100 and any(one != two for one, two in spans)


def test_nearby_spans_touch_overlap_or_contain():
    spans = list(spans_of(Crop(spans="nearby", min_fraction=0.1, max_fraction=0.5)))
    assert all(two[0] <= one[1] + 1 and one[0] <= two[1] + 1 for one, two in spans)
    assert any(two[0] == one[1] + 1 or one[0] == two[1] + 1 for one, two in spans), "adjacent"
    assert any(one[0] <= two[0] and two[1] <= one[1] for one, two in spans), "contained"
    assert any(one[0] < two[0] <= one[1] < two[1] for one, two in spans), "overlapping"
    first, second = (sum(both[k][1] - both[k][0] + 1 for both in spans) / len(spans) for k in (0, 1))
    # means of Beta(4, 2) and Beta(2, 4), rounded down
    assert first == pytest.approx(4 + 16 * 2 / 3 - 0.5, abs=0.7) and second == pytest.approx(4 + 16 / 3 - 0.5, abs=0.7)


@pytest.mark.parametrize("spans", ["independent", "nearby"])
def test_spans_have_at_least_some_tokens(spans):
    view = Crop(spans=spans, min_fraction=0.01, max_fraction=0.3, min_tokens=7)
    assert min(last - first + 1 for both in spans_of(view) for first, last in both) == 7
    for length in (1, 2, 6):
        assert all(both == ((0, length - 1),) * 2 for both in spans_of(view, length, 5))


@pytest.mark.parametrize("spans", ["second", "independent", "nearby"])
def test_spans_respect_sentence_ends(spans):
    """Sentences of 3, 2 and 4 tokens; a single one is cropped as usual."""
    words = ["[UNK]", "[CLS]", "[SEP]", "a", "b", ".", "?!", "##."]
    rust = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="[UNK]"))
    tokens = SentenceTokens(PreTrainedTokenizerFast(tokenizer_object=rust, pad_token="[UNK]"))
    text = torch.tensor([3, 4, 5, 3, 6, 3, 4, 4, 7])
    assert tokens.sentence_ends(text) == [2, 4]
    view, seen = Crop(spans=spans, min_fraction=0.2, max_fraction=0.8, sentence_ends=True), set()
    for seed in range(200):
        changed = view.change_words(text, tokens, generator(seed))
        for span in changed if isinstance(changed, tuple) else (changed,):
            assert torch.equal(span, torch.arange(int(span[0]), int(span[-1]) + 1))
            seen.add((int(span[0]), int(span[-1])))
    assert {(0, 2), (3, 4), (5, 8), (0, 4), (3, 8)} <= seen <= {(0, 2), (3, 4), (5, 8), (0, 4), (3, 8), (0, 8)}
    alone = [view.change_words(text[5:], tokens, generator(seed)) for seed in range(20)]
    assert any(len(span) < 4 for one in alone for span in (one if isinstance(one, tuple) else (one,)))


def test_sentences_of_other_scripts_end_in_a_vocabulary_of_bytes():
    """GPT-2, RoBERTa and Qwen store the ideographic full stop as three bytes that are written as other letters."""
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    words = ["[UNK]", *(split.pre_tokenize_str(text)[0][0] for text in ("天", "。", "؟", "\u06d4", "।", "،"))]
    rust = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="[UNK]"))
    rust.decoder = decoders.ByteLevel()
    tokens = SentenceTokens(PreTrainedTokenizerFast(tokenizer_object=rust, pad_token="[UNK]"))
    assert tokens.sentence_ends(torch.tensor([1, 2, 1, 3, 1, 4, 1, 5, 1, 6, 1])) == [1, 3, 5, 7]


@pytest.mark.parametrize("view", [Repetition(), Crop(max_fraction=0.7)], ids=["repetition", "crop"])
def test_places_are_those_of_the_tokens_in_the_first_view(batch, tokenizer, view):
    _, second = view.both_views(batch, SentenceTokens(tokenizer, longest=8), seed=3)
    for before, after, places in zip(rows_of(batch), second.tokens, second.places, strict=True):
        assert [before[place] for place in places] == after and places == sorted(places)


def test_the_token_that_a_tokenizer_appends_is_not_a_word():
    """Qwen3-Embedding appends its padding token, which last-token pooling reads, and not its end of sentence."""
    words = {"<pad>": 0, "<end>": 1, "a": 2, "b": 3, "c": 4, "d": 5}
    rust = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    rust.pre_tokenizer = pre_tokenizers.Whitespace()
    rust.post_processor = processors.TemplateProcessing(single="$A <pad>", special_tokens=[("<pad>", 0)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=rust, pad_token="<pad>", eos_token="<end>")
    start, middle, end = SentenceTokens(tokenizer).split(torch.tensor(tokenizer("a b c d")["input_ids"]))
    assert (start.tolist(), middle.tolist(), end.tolist()) == ([], [2, 3, 4, 5], [0])
