"""Natural pairs: where they come from, what is skipped and refused, and which candidates are negatives."""

import json
import logging

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch.nn.functional import normalize

from informin.cli.train_options import parse
from informin.objectives.term import embeddings_of_guide
from informin.training.batch import PadRows, StackedViews, TokenTables, names_to_read
from informin.training.data import as_data, load_sentences, tokenize
from informin.training.guide import CachedGuide
from informin.training.inputs import DataArguments
from informin.training.plain import two_views
from informin.views import Pair
from informin.views.view import SentenceTokens
from modeling_informin import InforMinOutput
from tests.conftest import FOUR_STEPS, how_to_train, make_sentences, raises_usage, tokenizer_of
from tests.support import one_layer
from tests.training.helpers import trained, weights_of
from trainer_informin import InforMinTrainer, InforMinTrainingArguments

bert = one_layer.bert
COLUMNS = Pair.columns
TITLES, BODIES = make_sentences(64), make_sentences(64, seed=1)
PAIRS = list(zip(TITLES, BODIES))
TABLE = {"body": BODIES, "year": list(range(64)), "title": TITLES}


def pairs_of(sentences) -> list[tuple[str, str]]:
    rows = list(sentences)
    assert all(tuple(row) == COLUMNS for row in rows)
    return [(row["anchor"], row["positive"]) for row in rows]


@pytest.mark.parametrize("streaming", [False, True], ids=["dataset", "stream"])
@pytest.mark.parametrize("kind", [".csv", ".tsv", ".jsonl", ".parquet", ".arrow"])
def test_pairs_are_read_from_files(tmp_path, kind, streaming):
    path, frame = tmp_path / f"a{kind}", pd.DataFrame(TABLE)
    if kind == ".jsonl":
        path.write_text("\n".join(json.dumps(dict(zip(TABLE, row))) for row in zip(*TABLE.values())))
    elif kind == ".parquet":
        frame.to_parquet(path)
    elif kind == ".arrow":
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, pa.table(TABLE).schema) as writer:
            writer.write_table(pa.table(TABLE))
    else:
        frame.to_csv(path, index=False, sep="," if kind == ".csv" else "\t")
    how = DataArguments(train_file=[str(path)], text_column=["title", "body"], streaming=streaming)
    found = pairs_of(load_sentences(how, 1, COLUMNS))
    assert sorted(found) == sorted(PAIRS) and (streaming or found == PAIRS)


@pytest.mark.parametrize(
    "given, text_column",
    [
        (PAIRS, None),
        ([list(pair) for pair in PAIRS], None),
        ([{"n": 1, "title": title, "body": body} for title, body in PAIRS], ("title", "body")),
        (datasets.Dataset.from_dict({"positive": BODIES, "anchor": TITLES}), None),
        (datasets.Dataset.from_dict({"question": TITLES, "answer": BODIES}), None),
        (datasets.Dataset.from_dict(TABLE), ("title", "body")),
        (datasets.Dataset.from_dict(TABLE).to_iterable_dataset(), ["title", "body"]),
        (datasets.DatasetDict({"train": datasets.Dataset.from_dict({"anchor": TITLES, "positive": BODIES})}), None),
    ],
    ids=["tuples", "lists", "dictionaries", "anchor and positive", "two columns", "named", "stream", "splits"],
)
def test_pairs_of_every_kind_are_equal(given, text_column):
    assert pairs_of(as_data(given, text_column, COLUMNS)[1]) == PAIRS


@pytest.mark.parametrize("kind", ["file", "dataset", "stream"])
def test_columns_of_one_text_are_joined(tmp_path, kind):
    columns = ["title", "body, title"]
    data = datasets.Dataset.from_dict({name: TABLE[name] for name in ("title", "body")})
    if kind == "file":
        data.to_csv(tmp_path / "a.csv")
        found = load_sentences(DataArguments(train_file=[str(tmp_path / "a.csv")], text_column=columns), 1, COLUMNS)
    else:
        with raises_usage("text_column", found="twice"):
            as_data(data, columns, COLUMNS)
        columns, data = ["title", "body, year"], data.add_column("year", ["then"] * 64)
        found = as_data(data if kind == "dataset" else data.to_iterable_dataset(), columns, COLUMNS)[1]
    last = [f"{body} {title if kind == 'file' else 'then'}" for title, body in PAIRS]
    assert pairs_of(found) == list(zip(TITLES, last))


@pytest.mark.parametrize("kind", ["list", "dataset", "file"])
def test_blank_and_equal_texts_are_skipped_and_counted(tmp_path, caplog, kind):
    rows = [*PAIRS[:3], (TITLES[3], " "), *PAIRS[4:7], (TITLES[7], TITLES[7] + " "), *PAIRS[8:]]
    given = datasets.Dataset.from_dict(dict(zip(COLUMNS, map(list, zip(*rows)))))
    with caplog.at_level(logging.WARNING, "informin"):
        if kind == "file":
            given.to_csv(tmp_path / "a.csv")
            found = load_sentences(DataArguments(train_file=[str(tmp_path / "a.csv")]), 1, COLUMNS)
        else:
            found = as_data(rows if kind == "list" else given, None, COLUMNS)[1]
    assert pairs_of(found) == PAIRS[:3] + PAIRS[4:7] + PAIRS[8:]
    assert "2 rows of 64" in caplog.text and "row 3, in which the column positive is blank" in caplog.text
    stream = as_data(given.to_iterable_dataset(), None, COLUMNS)[1]
    assert pairs_of(stream) == pairs_of(found)


@pytest.mark.parametrize(
    "given, text_column, option, found",
    [
        (TITLES, None, "train_dataset", "row 0"),
        ([*PAIRS, ("a", 1)], None, "train_dataset", "in row 64"),
        (
            [{"anchor": "a", "positive": "b"}, {"anchor": "a", "positive": 2}],
            None,
            "train_dataset",
            "row 1: the column",
        ),
        (datasets.Dataset.from_dict(TABLE), None, "train_dataset", "body, year, title"),
        (datasets.Dataset.from_dict(TABLE), ["title", "text"], "train_dataset", "body, year, title"),
        (datasets.Dataset.from_dict(TABLE), ["title", "year"], "train_dataset", "column year"),
        (datasets.Dataset.from_dict(TABLE), "title,body", "text_column", "1 text"),
        (datasets.Dataset.from_dict(TABLE), ["title", "title"], "text_column", "twice"),
        (list(zip(TITLES, TITLES)), None, "train_dataset", "no row with different texts"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_is_not_pairs_is_refused(given, text_column, option, found):
    with raises_usage(option, found=found):
        as_data(given, text_column, COLUMNS)


def test_files_without_the_columns_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text("a dog\n")
    (tmp_path / "a.csv").write_text("title,body,year\na,b,1\n")
    for file, columns, option, found in (
        ("a.txt", None, "train_file", "has no columns"),
        ("a.csv", None, "text_column", "'anchor', and "),
        ("a.csv", ["title", "text"], "text_column", "'text', and "),
        ("a.csv", ["title"], "text_column", "1 text"),
    ):
        with raises_usage(option, found=found):
            load_sentences(DataArguments(train_file=[str(tmp_path / file)], text_column=columns), 1, COLUMNS)
    (tmp_path / "b.jsonl").write_text('{"anchor": "a", "positive": "b"}\n{"anchor": "a", "positive": 3}\n')
    with raises_usage(found="line 2: the column positive contains 3"):
        load_sentences(DataArguments(train_file=[str(tmp_path / "b.jsonl")]), 1, COLUMNS)


def test_two_columns_need_the_view(bert, unscored):
    """The same columns joined with a comma are one text."""
    data = datasets.Dataset.from_dict({"anchor": TITLES, "positive": BODIES})
    with raises_usage("train_dataset", fix="Set `view` to pair"):
        InforMinTrainer(str(bert), unscored(), train_dataset=data)
    with raises_usage("text_column", fix="anchor,positive"):
        InforMinTrainer(str(bert), unscored(), train_dataset=data, text_column=["anchor", "positive"])
    trainer = InforMinTrainer(str(bert), unscored(), train_dataset=data, text_column="anchor,positive")
    assert trainer.sentences["text"][0] == f"{TITLES[0]} {BODIES[0]}"


def test_the_command_line_names_two_columns(bert, tmp_path):
    words = ["--view", "pair", "--text_column", "title", "subject,body", "--model_name", str(bert), "--use_cpu"]
    run = parse(words)
    assert run.data.text_column == ["title", "subject,body"] and run.view == Pair()
    recipe = tmp_path / "a.yaml"
    recipe.write_text("text_column: [title, body]\nview: pair\n")
    assert parse(["--recipe", str(recipe), *words[5:]]).data.text_column == ["title", "body"]


@pytest.fixture
def unscored(tmp_path):
    """Build the arguments of a run of two steps without evaluation; keywords change or add options."""
    how = FOUR_STEPS | dict(max_steps=2, eval_strategy="no")
    return lambda **changes: InforMinTrainingArguments(str(tmp_path / "run"), **(how | changes))


@pytest.fixture
def tokenizer(bert):
    return tokenizer_of(bert)


def batch_of(tokenizer, pairs):
    rows = tokenize(datasets.Dataset.from_dict(dict(zip(COLUMNS, map(list, zip(*pairs))))), tokenizer, 32, "", COLUMNS)
    return PadRows(tokenizer, names_to_read(COLUMNS))(list(rows))


def test_the_second_text_is_the_second_view(tokenizer):
    rows = StackedViews(SentenceTokens(tokenizer), view=Pair())(batch_of(tokenizer, PAIRS))
    expected = tokenizer(TITLES + BODIES, padding=True, return_tensors="pt")
    assert all(rows[name].equal(expected[name]) for name in ("input_ids", "attention_mask"))
    assert "shared" not in rows


def test_texts_of_a_pair_are_not_its_negatives(tokenizer):
    """Pairs 0 and 1 have the same first text, 1 and 2 the same second one; the second text of 3 is the first of 0."""
    pairs = [("a dog", "a cat"), ("a dog", "a bird"), ("a man", "a bird"), ("a street", "a dog"), ("red", "blue")]
    rows = StackedViews(SentenceTokens(tokenizer), view=Pair())(batch_of(tokenizer, pairs))
    negatives = two_views(InforMinOutput(pooler_output=torch.arange(10), projection=torch.arange(10)), rows).negatives
    assert negatives.int().tolist() == [
        [0, 0, 1, 0, 1],
        [0, 0, 0, 0, 1],
        [1, 0, 0, 1, 1],
        [1, 1, 1, 0, 1],
        [1, 1, 1, 1, 0],
    ]


@pytest.mark.parametrize("side", ["left", "right"])
def test_tables_of_pairs_give_the_batches_of_lists(tokenizer, side):
    tokenizer.padding_side = side
    data = datasets.Dataset.from_dict(dict(zip(COLUMNS, (TITLES, BODIES))))
    rows = tokenize(data, tokenizer, 6, "", COLUMNS).add_column("row", range(64)).add_column("second_row", range(64))
    names = names_to_read(COLUMNS, rows.column_names)
    pad, tables = PadRows(tokenizer, names), TokenTables(rows, names)
    found, expected = pad(tables.__getitems__([3, 60, 3])), pad([rows[place] for place in (3, 60, 3)])
    assert list(found) == list(expected) == names and "truncated" not in names
    assert all(found[name].equal(x) for name, x in expected.items())


def test_the_threshold_of_a_guide_is_that_of_a_first_and_a_second_text(tmp_path):
    """Titles are at cosine 1, bodies too, and a title and a body at 0."""
    vectors = np.repeat(np.eye(2, dtype=np.float16), 8, axis=0)
    np.save(tmp_path / "a.npy", vectors)
    guide = CachedGuide(tmp_path / "a.npy", torch.device("cpu"), torch.arange(16))
    assert guide.quantile(0.3) == 1
    guide.texts = 2
    assert guide.quantile(0.3) == 0


def test_pairs_train_in_every_form(bert, unscored):
    """Also as tokens, and a second text matters."""
    data = datasets.Dataset.from_dict(dict(zip(COLUMNS, (TITLES, BODIES))))
    args = unscored(objective="simcse", view="pair", save_strategy="no", max_steps=1, max_seq_length=32)
    expected = weights_of(trained(str(bert), args, train_dataset=data))
    others = weights_of(trained(str(bert), args, train_dataset=list(zip(TITLES, BODIES[::-1]))))
    assert any(not x.equal(expected[name]) for name, x in others.items())
    tokens = tokenize(data, tokenizer_of(bert), 32, "", COLUMNS)
    for form, given in {"texts": PAIRS, "tokens": tokens, "stream": data.to_iterable_dataset()}.items():
        found = trained(str(bert), args, train_dataset=given)
        if form != "stream":  # which has another order
            assert all(x.equal(expected[name]) for name, x in weights_of(found).items())
        record = found.record()
        assert record.options["view"] == "pair" and (form == "tokens" or record.data["sentences"] in (64, None))


def test_each_view_has_the_guide_of_its_own_text(bert, tmp_path):
    how = dict(objective="guided", guided_weight=1.0, distillation_weight=1.0, view="pair", eval_strategy="no")
    how = how_to_train(str(tmp_path), **(FOUR_STEPS | how))
    trainer = InforMinTrainer(str(bert), train_dataset=PAIRS, **how)
    rows = trainer.get_batch_samples(iter(trainer.get_train_dataloader()), 1, trainer.args.device)[0][0]
    vectors = torch.arange(32.0).reshape(16, 2)
    views = two_views(InforMinOutput(pooler_output=vectors.repeat(2, 1), projection=vectors.repeat(2, 1)), rows)
    for term in trainer.terms:
        found = embeddings_of_guide(term._guide, views)
        for texts, own, indices in ((TITLES, found[0], views.row), (BODIES, found[1], views.second_row)):
            expected = normalize(torch.from_numpy(trainer.encode([texts[place % 64] for place in indices])))
            torch.testing.assert_close(own, expected, atol=2e-3, rtol=0)  # float16


@pytest.mark.parametrize(
    "options, option",
    [
        (dict(queue_size=16), "queue_size"),
        (dict(objective="ct", reconstruction_weight=1.0), "contrastive_tension_weight"),
        *((dict(objective=objective), "view") for objective in ("ct", "tsdae", "isbert")),
    ],
)
def test_terms_that_read_one_text_of_a_pair_are_refused(bert, tmp_path, options, option):
    how = FOUR_STEPS | dict(objective="simcse", view="pair", eval_strategy="no") | options
    with raises_usage(option):
        InforMinTrainer(str(bert), train_dataset=PAIRS, **how_to_train(str(tmp_path), **how))


def test_attention_maps_of_pairs_are_refused(bert, tmp_path):
    """Their tokens differ."""
    how = FOUR_STEPS | dict(objective="simcse", attention_mi_weight=1.0, view="pair", eval_strategy="no")
    with raises_usage("attention_mi_weight"):
        InforMinTrainer(str(bert), train_dataset=PAIRS, **how_to_train(str(tmp_path), **how))


def test_tokens_of_one_text_are_refused(bert, tmp_path):
    args = InforMinTrainingArguments(str(tmp_path), **FOUR_STEPS, objective="simcse", view="pair", eval_strategy="no")
    tokens = tokenize(datasets.Dataset.from_dict({"text": TITLES}), tokenizer_of(bert), 32)
    with raises_usage("train_dataset", found="no positive_input_ids"):
        InforMinTrainer(str(bert), args, train_dataset=tokens)
    one = InforMinTrainer(str(bert), args, train_dataset=PAIRS, data_collator=PadRows(tokenizer_of(bert)))
    with raises_usage("data_collator", found="positive_input_ids"):
        one.train()
