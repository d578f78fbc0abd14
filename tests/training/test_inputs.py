"""The inputs of a trainer: model, sentences or tokenized rows, evaluation data, and errors for unsupported inputs."""

import shutil

import datasets
import numpy as np
import pytest
import torch
from informin.models.checkpoint import Checkpoint
from informin.models.native_loading import load_trainable
from transformers import AutoModel, DataCollatorWithPadding, TrainingArguments, set_seed

from informin.errors import UsageError
from informin.evaluation import load_pairs
from informin.training import streams
from informin.training.data_options import DataArguments
from informin.training.sentences import load_sentences, tokenize
from tests.conftest import make_sentences, raises_usage, resolve_for, save_pairs, tokenizer_of
from trainer_informin import InforMinTrainer

SENTENCES = make_sentences(64)


@pytest.fixture
def unscored(arguments):
    """Build the arguments of a run of two steps without evaluation; keywords change or add options."""
    return lambda **changes: arguments(**(dict(max_steps=2, eval_strategy="no") | changes))


def trained(*args, **kwargs) -> InforMinTrainer:
    """Build and train, without checkpoints of an earlier run. The trainer sets the seed when it is built."""
    trainer = InforMinTrainer(*args, **kwargs)
    shutil.rmtree(trainer.args.run_dir, ignore_errors=True)
    trainer.train()
    return trainer


def assert_same_weights(first: InforMinTrainer, second: InforMinTrainer) -> None:
    torch.testing.assert_close(first.model.state_dict(), second.model.state_dict(), rtol=0, atol=0)


def test_tokenized_rows_are_not_sampled(bert, unscored):
    rows = datasets.Dataset.from_dict(dict(tokenizer_of(bert)(SENTENCES)))
    with raises_usage(option="max_train_samples", found="has no effect on tokenized rows"):
        InforMinTrainer(str(bert), unscored(max_train_samples=20), rows)
    stream = datasets.Dataset.from_dict({"text": SENTENCES}).to_iterable_dataset()
    with raises_usage(option="max_train_samples", found="of a stream cannot be read by several workers"):
        InforMinTrainer(str(bert), unscored(max_train_samples=20, dataloader_num_workers=2), stream)


@pytest.mark.parametrize("kind", ["blank ones too", "tuple", "data set", "rows", "rows and text", "list of rows"])
def test_sentences_and_tokenized_rows_give_equal_weights(bert, unscored, kind):
    table = datasets.Dataset.from_dict({"n": range(64), "text": SENTENCES})
    rows = tokenize(table.select_columns("text"), tokenizer_of(bert), 32)
    data = {
        "blank ones too": [*SENTENCES[:9], "", " \n", *SENTENCES[9:]],
        "tuple": tuple(SENTENCES),
        "data set": table,
        "rows": rows,
        "rows and text": rows.add_column("text", SENTENCES),
        "list of rows": list(rows),
    }[kind]
    ours, theirs = (trained(str(bert), unscored(), given) for given in (data, SENTENCES))
    assert_same_weights(ours, theirs)
    known = theirs.record()["data"]
    assert known["sentences"] == 64 and known["sources"] == ["sentences"]
    assert ours.record()["data"] == (None if "rows" in kind else known)


def test_stream_of_sentences(bert, unscored):
    stream = datasets.Dataset.from_dict({"n": range(64), "text": SENTENCES}).to_iterable_dataset()
    trainer = trained(str(bert), unscored(), stream)
    assert trainer.state.global_step == 2 and trainer.record()["data"]["sha256"] is None


@pytest.mark.parametrize("large", [False, True], ids=["files", "parts of files"])
def test_stream_of_files_resumes_at_the_same_position(bert, unscored, tmp_path, monkeypatch, large):
    """The run continues into the next epoch: 64 sentences, 6 batches of 16."""
    if large:
        monkeypatch.setattr(streams, "PARTS", 4)
        monkeypatch.setattr(streams, "PART_BYTES", 1)
    files = [tmp_path / f"{number}.txt" for number in range(2)]
    for number, file in enumerate(files):
        file.write_text("\n".join(["", *SENTENCES[number::2]]), encoding="utf-8")

    def run(name, resume=None):
        stream = load_sentences(DataArguments(train_file=list(map(str, files)), streaming=True), seed=1)
        assert stream.num_shards == (8 if large else 2)
        how = dict(max_steps=6, save_strategy="steps", save_steps=2, save_total_limit=9, per_device_train_batch_size=16)
        args = unscored(**how)
        args.output_dir = str(tmp_path / name)
        trainer, read = InforMinTrainer(str(bert), args, stream), []
        batches = trainer.get_batch_samples

        def seen(*given):
            stacked, number = batches(*given)
            read.extend(batch["sentence_ids"] for batch in stacked)
            return stacked, number

        trainer.get_batch_samples = seen
        trainer.train(resume)
        return trainer, read

    whole, read = run("whole")
    assert len(torch.cat(read[:4]).unique()) == 64 and not torch.cat(read[4:]).equal(torch.cat(read[:2]))
    shutil.copytree(tmp_path / "whole" / "checkpoint-2", tmp_path / "again" / "checkpoint-2")
    again, rest = run("again", "last")
    assert torch.stack(rest).equal(torch.stack(read[2:]))
    assert_same_weights(again, whole)


def test_sentences_are_truncated_at_max_seq_length(bert, unscored):
    rows = InforMinTrainer(str(bert), unscored(max_seq_length=6), SENTENCES).train_dataset
    assert max(map(len, rows["input_ids"])) == 6 < max(len(sentence.split()) for sentence in SENTENCES)


@pytest.mark.parametrize(
    "options",
    [dict(), dict(objective="scd", projector_size=8), dict(objective="micse", queue_size=16, mlm_weight=0.1)],
    ids=["informin", "scd", "micse-mlm"],
)
def test_model_name_gives_the_same_weights_as_a_loaded_model(encoder, unscored, options):
    args = resolve_for(unscored(**options), encoder)
    set_seed(args.seed)
    model = load_trainable(Checkpoint(encoder), args.model_settings)
    by_hand = trained(model, args, SENTENCES, processing_class=tokenizer_of(encoder))
    by_name = trained(model=str(encoder), args=unscored(**options), train_dataset=SENTENCES)
    assert_same_weights(by_name, by_hand)
    assert by_name.record()["base_model"]["name"] == encoder.name and by_hand.record()["base_model"] is None


def test_given_tokenizer_is_used(bert, unscored):
    tokenizer = tokenizer_of(bert)
    tokenizer.truncation_side = "left"
    trainer = InforMinTrainer(str(bert), unscored(max_seq_length=4), SENTENCES, processing_class=tokenizer)
    assert trainer.processing_class is tokenizer
    last = tokenizer.convert_tokens_to_ids([sentence.split()[-1] for sentence in SENTENCES])
    assert [ids[-2] for ids in trainer.train_dataset["input_ids"]] == last


@pytest.mark.parametrize("kind", [str, lambda path: path, load_pairs], ids=["text", "path", "pairs"])
def test_eval_dataset_may_be_a_path(bert, arguments, pairs_file, kind):
    trainer = InforMinTrainer(str(bert), arguments(), SENTENCES, kind(pairs_file))
    scores = trainer.evaluate()
    assert trainer.eval_dataset.name == "pairs.tsv" and -100 <= scores["eval_spearman"] <= 100
    assert trainer.evaluate(load_pairs(pairs_file))["eval_spearman"] == scores["eval_spearman"]


def test_default_arguments_are_those_of_the_paper(bert, pairs_file, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    args = InforMinTrainer(str(bert), train_dataset=make_sentences(128), eval_dataset=pairs_file).args
    assert (args.objective, args.per_device_train_batch_size, args.learning_rate) == ("informin", 128, 3e-5)
    assert args.output_dir == "outputs/tiny-bert-informin-batch128-lr3e-5-seed42"


def test_supported_arguments_of_trainer(bert, unscored):
    collator = DataCollatorWithPadding(tokenizer_of(bert), pad_to_multiple_of=16)
    trainer = InforMinTrainer(
        str(bert),
        unscored(),
        SENTENCES,
        data_collator=collator,
        optimizer_cls_and_kwargs=(torch.optim.SGD, {"lr": 1.0}),
        compute_metrics=None,
        model_init=None,
    )
    assert next(iter(trainer.get_train_dataloader()))["input_ids"].shape == (16, 16)
    assert isinstance(trainer.create_optimizer(), torch.optim.SGD)


@pytest.mark.parametrize(
    "name, reason, fix",
    [
        ("compute_metrics", "there are no predictions to compare", "Give `eval_dataset` a function"),
        ("preprocess_logits_for_metrics", "evaluation encodes sentences", ""),
        ("compute_loss_func", "the objective defines the loss", "Add a loss"),
        ("model_init", "the model is built only once", "use `informin study`"),
    ],
)
def test_unsupported_arguments_of_trainer_are_rejected(bert, unscored, name, reason, fix):
    with raises_usage(option=name, found=f"is not supported: {reason}", fix=fix):
        InforMinTrainer(str(bert), unscored(), SENTENCES, **{name: lambda *_: None})


def test_arguments_of_another_class_are_rejected(bert, tmp_path):
    with raises_usage(option="args", found="is a TrainingArguments", needed="InforMinTrainingArguments"):
        InforMinTrainer(str(bert), TrainingArguments(str(tmp_path), use_cpu=True), SENTENCES)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda trainer: trainer.predict(SENTENCES), "`predict`"),
        (lambda trainer: trainer.push_to_hub(blocking=False), "`blocking`"),
        (lambda trainer: trainer.push_to_hub("text", False), "`blocking`"),
        (lambda trainer: trainer.push_to_hub(tags="x", language="en"), "tags, language"),
        (lambda trainer: trainer.create_model_card(), "`create_model_card`"),
    ],
    ids=["predict", "blocking", "positional blocking", "card options", "card"],
)
def test_unsupported_methods_of_trainer_are_rejected(bert, unscored, call, message):
    with pytest.raises(UsageError) as error:
        call(InforMinTrainer(str(bert), unscored(), SENTENCES))
    assert message in str(error.value)


def test_encode_returns_one_vector_of_one_string(bert, unscored):
    encode = InforMinTrainer(str(bert), unscored(), SENTENCES).encode
    both = encode(SENTENCES[:2])
    assert encode(SENTENCES[0]).shape == (32,) and both.shape == (2, 32) and encode([]).shape == (0, 32)
    torch.testing.assert_close(encode(SENTENCES[0]), both[0])
    column = datasets.Dataset.from_dict({"text": SENTENCES[:2]})["text"]
    for given in (np.array(SENTENCES[:2]), tuple(SENTENCES[:2]), iter(SENTENCES[:2]), column):
        torch.testing.assert_close(encode(given), both, rtol=0, atol=0)
    for wrong, found in ((5, "is a int"), ([None], "contains None"), (b"a", "is a bytes")):
        with raises_usage(option="sentences", found=found, needed="a list of sentences"):
            encode(wrong)


def test_list_with_other_items_is_rejected(bert, unscored):
    with raises_usage(option="train_dataset", found="contains None", needed="sentences, or a dataset"):
        InforMinTrainer(str(bert), unscored(), [*SENTENCES, None])


@pytest.mark.parametrize(
    "data, kind",
    [
        ("sentences.txt", "str"),
        (DataCollatorWithPadding(None), "DataCollatorWithPadding"),  # third in Trainer's arguments
        (None, "NoneType"),
    ],
)
def test_training_data_of_another_type_are_rejected(bert, unscored, data, kind):
    with raises_usage(option="train_dataset", found=f"is a {kind}", needed="a list of sentences, or a dataset"):
        InforMinTrainer(str(bert), unscored(), data)


def test_blank_and_missing_texts_are_dropped(bert, unscored):
    table = datasets.Dataset.from_dict({"text": [*SENTENCES, None, "", "\t"]})
    trainer = InforMinTrainer(bert, unscored(), table)  # a Path is a valid model name
    assert len(trainer.train_dataset) == trainer.record()["data"]["sentences"] == 64


def test_models_of_another_type_are_rejected(bert, unscored):
    plain = AutoModel.from_pretrained(bert)
    with raises_usage(
        option="model", found="is a BertModel", needed="the name of an encoder, a SentenceTransformer, or a model from"
    ):
        InforMinTrainer(plain, unscored(), SENTENCES, processing_class=tokenizer_of(bert))
    args = unscored()
    built = load_trainable(Checkpoint(bert), args.model_settings)
    with raises_usage(option="processing_class", found="is missing", needed="the tokenizer of the given model"):
        InforMinTrainer(built, args, SENTENCES)


def test_evaluate_takes_other_pairs_and_rejects_a_call_without_any(bert, unscored, pairs_file):
    trainer = InforMinTrainer(bert, unscored(), SENTENCES)
    scores = trainer.evaluate(pairs_file)
    assert scores["eval_spearman"] == trainer.evaluate(load_pairs(pairs_file))["eval_spearman"]
    with raises_usage(option="eval_dataset", found="is missing"):
        trainer.evaluate()


def test_objective_may_be_set_after_construction(bert, arguments):
    args = arguments(objective="simcse", eval_strategy="no")
    args.objective = "informin"
    args = InforMinTrainer(bert, args, SENTENCES).args
    assert args.reconstruction_weight == 0.4 and [term.name for term in args.terms] == ["contrast", "reconstruction"]


@pytest.mark.parametrize("given", [{("a", "b", 1)}, {"dev": None}, datasets.Dataset.from_dict({"sentence1": ["a"]})])
def test_evaluation_data_of_another_type_are_rejected(bert, unscored, given):
    with pytest.raises(UsageError) as error:
        InforMinTrainer(bert, unscored(), SENTENCES, given)
    found = "has a NoneType with the name dev" if isinstance(given, dict) else f"is a {type(given).__name__}"
    assert f"`eval_dataset` {found}" in str(error.value)


def test_data_set_without_text_is_rejected(bert, unscored):
    with raises_usage(option="train_dataset", found="has the columns phrase, n", needed="text or input_ids"):
        InforMinTrainer(bert, unscored(), datasets.Dataset.from_dict({"phrase": SENTENCES, "n": range(64)}))


def test_changing_objective_options_of_a_trainer_is_rejected(bert, unscored):
    trainer = InforMinTrainer(bert, unscored(objective="simcse"), SENTENCES)
    trainer.args.temperature = 0.5
    with raises_usage(found="Options of the objective changed after the trainer was created"):
        trainer.train()


def test_scores_outside_training_are_not_recorded(bert, arguments, pairs_file, tmp_path):
    trainer = trained(bert, arguments(max_steps=4, eval_steps=2), SENTENCES, pairs_file)
    history = trainer.record()["history"]
    assert [entry["step"] for entry in history] == [0, 2, 4]
    trainer.evaluate(save_pairs(tmp_path / "other.tsv", seed=5))
    trainer.evaluate()
    assert trainer.record()["history"] == history
