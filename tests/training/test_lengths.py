"""The maximum length of training sentences, derived from the data if needed, and warnings about truncation."""

import datasets
import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from informin.training.data import fitting_length
from tests.conftest import make_sentences
from trainer_informin import InforMinTrainer

GUIDED = dict(objective="guided", eval_strategy="no", save_strategy="no", report_to=[])
LONG = [" ".join(pair) for pair in zip(*(make_sentences(240, seed)[i::6] for seed in (0, 1) for i in range(5)))]


@pytest.mark.parametrize(
    ("counts", "longest", "length"),
    [
        ([5] * 100, 256, 32),
        (range(1, 101), 256, 96),
        (range(1, 101), 64, 64),
        ([10] * 95 + [200] * 5, 256, 32),
        ([10] * 94 + [200] * 6, 256, 200),
        ([], 256, 32),
        ([], 20, 20),
    ],
)
def test_95_percent_of_the_sentences_fit(counts, longest, length):
    assert fitting_length(np.array(list(counts)), longest) == length


def test_guided_training_and_its_guide_use_long_sentences(bert, arguments, monkeypatch):
    lengths = []
    monkeypatch.setattr(
        "informin.training.guide.load_guide",
        lambda folder, encoder, texts: lengths.append(encoder.max_seq_length) or stop(),
    )

    def stop():
        raise StopIteration

    with pytest.raises(StopIteration):
        InforMinTrainer(str(bert), arguments(**GUIDED), train_dataset=LONG)
    assert len(lengths) == 1 and 40 < lengths[0] <= 66


def test_the_length_is_recorded_and_kept_when_resuming(bert, arguments, tmp_path):
    options = GUIDED | dict(max_steps=2)
    trainer = InforMinTrainer(str(bert), arguments(**options), train_dataset=LONG)
    longest = max(map(len, trainer.train_dataset["input_ids"]))
    assert longest > 32 and trainer.record().options["max_seq_length"] >= longest
    assert trainer.model.config.informin["max_seq_length"] == trainer.max_seq_length
    # The same options with other sentences have another length.
    assert InforMinTrainer(str(bert), arguments(**options), train_dataset=make_sentences(40)).max_seq_length == 32


def test_objectives_of_papers_keep_their_length_and_warn(bert, arguments, caplog):
    trainer = InforMinTrainer(str(bert), arguments(eval_strategy="no"), train_dataset=LONG)
    assert trainer.max_seq_length == 32 == max(map(len, trainer.train_dataset["input_ids"]))
    tokens = [len(sentence.split()) + 2 for sentence in LONG]
    cut = sum(n > 32 for n in tokens)
    assert f"{cut} of 40 training sentences ({cut / 40:.1%}) are truncated at `max_seq_length` 32. " in caplog.text
    whole = sum(n <= 66 for n in tokens) / 40
    assert f"`max_seq_length` 66 would fit {whole:.0%} of them." in caplog.text
    assert set(trainer.train_dataset.column_names) == {"input_ids", "attention_mask"}


@pytest.mark.parametrize(("long", "said"), [(2, False), (3, True)])
def test_no_warning_for_few_truncated_sentences(bert, arguments, caplog, long, said):
    sentences = [*make_sentences(40 - long), *(LONG[i] + " the dog " * 12 for i in range(long))]
    InforMinTrainer(str(bert), arguments(eval_strategy="no"), train_dataset=sentences)
    assert ("are truncated" in caplog.text) == said


def test_the_beginning_of_a_stream_is_measured(bert, arguments, caplog):
    stream = datasets.Dataset.from_dict({"text": LONG}).to_iterable_dataset()
    InforMinTrainer(str(bert), arguments(eval_strategy="no"), train_dataset=stream)
    assert "of 40 first sentences of the stream" in caplog.text


def test_the_length_of_a_paper_is_at_most_that_of_the_model(st_mean, arguments):
    model = SentenceTransformer(str(st_mean), device="cpu")
    model.max_seq_length = 16
    trainer = InforMinTrainer(model, arguments(eval_strategy="no"), train_dataset=LONG)
    assert trainer.max_seq_length == 16 == max(map(len, trainer.train_dataset["input_ids"]))


def test_a_given_length_is_kept(bert, arguments):
    trainer = InforMinTrainer(str(bert), arguments(**GUIDED, max_seq_length=12), train_dataset=LONG)
    assert trainer.max_seq_length == 12 == max(map(len, trainer.train_dataset["input_ids"]))


@pytest.mark.parametrize("unknown, said", [(1, False), (20, True)])
@pytest.mark.parametrize("is_stream", [False, True])
def test_a_tokenizer_for_another_script_is_a_warning(bert, arguments, caplog, unknown, said, is_stream):
    sentences = [*make_sentences(40 - unknown), *(f"ตั๋ว หมาย เลข {'หนึ่ง ' * n}" for n in range(unknown))]
    data = datasets.Dataset.from_dict({"text": sentences})
    data = data.to_iterable_dataset() if is_stream else data
    InforMinTrainer(str(bert), arguments(eval_strategy="no"), train_dataset=data)
    assert ("[UNK]" in caplog.text) == said
