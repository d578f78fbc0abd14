"""What people pass to a Trainer: models, optimizers, streams, evaluators, losses, and options of saving."""

import logging
import shutil
import warnings
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from accelerate.state import AcceleratorState
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer
from sentence_transformers.sentence_transformer import evaluation as evaluators
from tokenizers import Tokenizer, normalizers
from torch.utils.data import Dataset, IterableDataset
from transformers import (
    AutoModel,
    DistilBertConfig,
    MPNetConfig,
    PreTrainedTokenizerFast,
    T5Config,
    T5EncoderModel,
    TrainerCallback,
    TrainingArguments,
    get_linear_schedule_with_warmup,
)

from informin.evaluation.development import as_development
from informin.evaluation.pairs import load_pairs
from informin.model.records import RunRecord
from informin.training.data import as_data, check_tokens
from informin.views import Crop
from modeling_informin import BertForInforMinCL
from tests.conftest import make_sentences, raises_usage, save_letters, tokenizer_of
from tests.publishing.helpers import change_json
from tests.training.helpers import assert_same, logged, stream_of, trained, weights_of
from trainer_informin import InforMinTrainer, InforMinTrainingArguments

SENTENCES = make_sentences(64)
GRADES = [i / 20 for i in range(20)]
PAIRS = (SENTENCES[:20], SENTENCES[20:40], GRADES)
EVALUATORS = {
    "similarity": evaluators.EmbeddingSimilarityEvaluator(*PAIRS, name="dev"),
    "triplets": evaluators.TripletEvaluator(SENTENCES[:9], SENTENCES[9:18], SENTENCES[18:27], name="dev"),
    "binary": evaluators.BinaryClassificationEvaluator(*PAIRS[:2], [i % 2 for i in range(20)], name="dev"),
    "retrieval": evaluators.InformationRetrievalEvaluator(
        {"q": SENTENCES[0]}, {str(i): text for i, text in enumerate(SENTENCES[:9])}, {"q": {"3"}}, name="dev"
    ),
    "reranking": evaluators.RerankingEvaluator(
        [{"query": SENTENCES[0], "positive": [SENTENCES[1]], "negative": SENTENCES[2:5]}], name="dev"
    ),
    "translation": evaluators.TranslationEvaluator(SENTENCES[:9], SENTENCES[9:18], name="dev"),
    "paraphrases": evaluators.ParaphraseMiningEvaluator(
        {str(i): text for i, text in enumerate(SENTENCES[:9])}, duplicates_list=[("1", "2")], name="dev"
    ),
    "without a name": evaluators.EmbeddingSimilarityEvaluator(*PAIRS),
    "several": evaluators.SequentialEvaluator(
        [
            evaluators.EmbeddingSimilarityEvaluator(*PAIRS, name="sts"),
            evaluators.TripletEvaluator(SENTENCES[:9], SENTENCES[9:18], SENTENCES[18:27], name="t"),
        ]
    ),
}
METRICS = {
    "similarity": "eval_dev_spearman_cosine",
    "triplets": "eval_dev_cosine_accuracy",
    "without a name": "eval_spearman_cosine",
    "several": "eval_sequential_score",
}


@pytest.fixture
def scored(arguments):
    """Build the arguments of a run of two steps, scored before and after each; keywords change or add options."""
    return lambda **changes: arguments(**(dict(max_steps=2, eval_steps=1) | changes))


def test_an_optimizer_of_another_model_is_refused(bert, unscored):
    other = torch.optim.SGD(AutoModel.from_pretrained(bert).parameters(), lr=0.5)
    trainer = InforMinTrainer(str(bert), unscored(), train_dataset=SENTENCES, optimizers=(other, None))
    with raises_usage(option="optimizers"):
        trainer.train()
    assert trainer.state.global_step == 0


def test_an_optimizer_built_before_lora_is_refused(st_mean, unscored):
    pytest.importorskip("peft")
    model = SentenceTransformer(str(st_mean), device="cpu")
    frozen = torch.optim.SGD(model.parameters(), lr=0.5)
    trainer = InforMinTrainer(
        model, unscored(objective="simcse", lora_r=2), train_dataset=SENTENCES, optimizers=(frozen, None)
    )
    with raises_usage(option="optimizers"):
        trainer.train()


def test_an_optimizer_without_the_head_is_warned_about(st_mean, unscored, caplog):
    """The head is new: the model that the caller has does not contain it."""
    model = SentenceTransformer(str(st_mean), device="cpu")
    own = torch.optim.SGD(model.parameters(), lr=0.5)
    trainer = InforMinTrainer(model, unscored(max_steps=1), train_dataset=SENTENCES, optimizers=(own, None))
    trainer.train()
    assert [record.levelname for record in caplog.records if "mlp.dense" in record.getMessage()] == ["WARNING"]
    caplog.clear()
    InforMinTrainer(model, unscored(objective="scd"), train_dataset=SENTENCES).create_optimizer()
    assert not [record for record in caplog.records if "optimizer" in record.getMessage()]


def test_an_optimizer_of_the_model_in_training_trains_it(bert, unscored):
    trainer = InforMinTrainer(str(bert), unscored(), train_dataset=SENTENCES)
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.5)
    before = weights_of(trainer)
    trainer.train()
    assert any(not weight.equal(before[name]) for name, weight in trainer.model.state_dict().items())


@pytest.mark.parametrize("kind", ["class", "objects"])
def test_the_record_has_the_optimizer_of_the_user(bert, unscored, kind, capsys):
    """A run with another optimizer is another run, and does not read the state of this one."""
    trainer = InforMinTrainer(str(bert), unscored(max_steps=1), train_dataset=SENTENCES, **optimizer_of(kind))
    if kind == "objects":
        trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.5, momentum=0.9)
        trainer.lr_scheduler = torch.optim.lr_scheduler.ConstantLR(trainer.optimizer, factor=0.5)
    before = trainer.record().options
    trainer.train()
    options = trainer.record().options
    assert options == before and options["optim"] == "SGD" and options["learning_rate"] == 0.5
    assert "adam_beta1" not in options and "learning rate 0.5," in capsys.readouterr().out
    if kind == "class":
        assert options["optim_args"] == {"momentum": 0.9} and options["lr_scheduler_type"] == "linear"
    else:
        assert options["lr_scheduler_type"] == "ConstantLR" and "warmup_steps" not in options
    with raises_usage(option="resume_from_checkpoint", found="optim SGD, now adamw"):
        InforMinTrainer(str(bert), trainer.args, train_dataset=SENTENCES).train("last")


def test_a_run_whose_given_schedule_has_another_length_is_not_resumed(bert, unscored):
    def run(steps: int) -> InforMinTrainer:
        trainer = InforMinTrainer(str(bert), unscored(max_steps=1, save_steps=1), train_dataset=SENTENCES)
        trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.5)
        trainer.lr_scheduler = get_linear_schedule_with_warmup(trainer.optimizer, 0, steps)
        return trainer

    run(4).train()
    run(4).train("last")
    with raises_usage(option="resume_from_checkpoint", found="lr_scheduler_kwargs"):
        run(8).train("last")


def optimizer_of(kind: str) -> dict:
    how = {"lr": 0.5, "momentum": 0.9}
    return {"optimizer_cls_and_kwargs": (torch.optim.SGD, how)} if kind == "class" else {}


def test_trainer_creates_the_optimizer_that_is_recorded(bert, unscored):
    trainer = trained(str(bert), unscored(max_steps=1, optim="sgd", save_strategy="no"), train_dataset=SENTENCES)
    before = trainer.record().options
    trainer.train()  # a second time
    assert before["optim"] == "sgd" and trainer.record().options == before
    assert before["lr_scheduler_type"] == "linear" and before["learning_rate"] == trainer.args.learning_rate


class Averaging(torch.optim.SGD):
    """Adds 1 to the weights while they are evaluated, as a schedule-free optimizer uses averages of them."""

    is_average = False

    def eval(self) -> None:
        self.shift(0 if self.is_average else 1)
        self.is_average = True

    def train(self) -> None:
        self.shift(-1 if self.is_average else 0)
        self.is_average = False

    @torch.no_grad()
    def shift(self, by: float) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                weight += by


@pytest.mark.parametrize("is_scored", [True, False])
def test_the_averages_of_an_optimizer_are_evaluated_saved_and_exported(bert, scored, unscored, is_scored, tmp_path):
    seen = []

    def score(encode):
        seen.append(encode(SENTENCES[:8]))
        return {"x": float(len(seen))}

    args = scored() if is_scored else unscored()
    how = {"optimizer_cls_and_kwargs": (Averaging, {"lr": 0.0})}
    trainer = InforMinTrainer(str(bert), args, train_dataset=SENTENCES, eval_dataset=score, **how)
    before, embeddings = weights_of(trainer), trainer.encode(SENTENCES[:8])
    trainer.train()
    trainer.export(tmp_path / "model", report=False)
    assert len(seen) == 3 * is_scored
    expected = seen[-1] if is_scored else trainer.encode(SENTENCES[:8])
    assert not np.allclose(expected, embeddings)
    for folder in (tmp_path / "model", Path(args.output_dir) / "checkpoint-2"):
        found = SentenceTransformer(str(folder), device="cpu").encode(SENTENCES[:8])
        np.testing.assert_allclose(found, expected, atol=1e-3)
    name = "bert.encoder.layer.0.output.dense.weight"
    torch.testing.assert_close(trainer.model.state_dict()[name], before[name] + 1)


class StopAfterStep3(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop |= state.global_step == 3


def test_the_best_checkpoint_is_not_averaged_again(bert, scored):
    """The run ends between two evaluations, when the optimizer has the weights that it trains."""
    args = scored(max_steps=4, eval_steps=2, load_best_model_at_end=True, metric_for_best_model="x")
    how = {"optimizer_cls_and_kwargs": (Averaging, {"lr": 0.0}), "callbacks": [StopAfterStep3()]}
    how["eval_dataset"] = lambda encode: {"x": len(encode(SENTENCES[:8]))}
    trainer = InforMinTrainer(str(bert), args, train_dataset=SENTENCES, **how)
    before = weights_of(trainer)
    trainer.train()
    trainer.evaluate()
    name = "bert.encoder.layer.0.output.dense.weight"
    torch.testing.assert_close(trainer.model.state_dict()[name], before[name] + 1)


@pytest.fixture
def compiled(monkeypatch) -> list[str]:
    """Names of backends, one for each call of `torch.compile`, which compiles nothing: its import takes seconds."""
    backends = []

    def keep(model, backend, **how):
        backends.append(backend)
        return model

    monkeypatch.setattr(torch, "compile", keep)
    return backends


def test_trainers_with_and_without_compiling_may_be_built_together(bert, arguments, compiled):
    """Accelerate compiles as the last trainer asks for, and the record is that of each trainer."""
    how = dict(max_steps=1, eval_strategy="no", save_strategy="no", objective="simcse")
    all_args = [arguments(**how), arguments(**how, torch_compile_backend="eager"), arguments(**how)]
    trainers = [InforMinTrainer(str(bert), args, train_dataset=SENTENCES) for args in all_args]
    for trainer, expected in zip(trainers, ([], ["eager"], [])):
        compiled.clear()
        trainer.train()
        assert compiled == expected and trainer.args.torch_compile == bool(expected)


def test_what_a_launcher_compiles_is_recorded(bert, arguments, monkeypatch, compiled):
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "EAGER")
    args = arguments(max_steps=1, eval_strategy="no", save_strategy="no", objective="simcse")
    trainer = trained(str(bert), args, train_dataset=SENTENCES)
    assert compiled == ["eager"]
    assert trainer.record().options["torch_compile"] and "padding_free" not in trainer.record().options


class Precisions(TrainerCallback):
    """Notes in which precision accelerate computes each step."""

    def __init__(self):
        self.seen = []

    def on_step_begin(self, args, state, control, **kwargs):
        self.seen.append(AcceleratorState().mixed_precision)


def test_trainers_of_two_precisions_may_be_built_together(bert, arguments):
    """Accelerate has one precision in a process, that of the last trainer."""
    how = dict(max_steps=1, eval_strategy="no", save_strategy="no", objective="simcse")
    alone = trained(str(bert), arguments(**how), train_dataset=SENTENCES)
    all_args = [arguments(**how), arguments(**how, bf16=True), arguments(**how)]
    notes = [Precisions() for _ in all_args]
    trainers = [
        InforMinTrainer(str(bert), args, train_dataset=SENTENCES, callbacks=[note])
        for args, note in zip(all_args, notes)
    ]
    torch.manual_seed(trainers[0].args.seed)
    for trainer in trainers[:2]:
        trainer.train()
    assert_same(weights_of(trainers[0]), weights_of(alone))
    assert [note.seen for note in notes[:2]] == [["no"], ["bf16"]]
    assert trainers[1].record().options["precision"] == "bf16"
    assert logged(trainers[0], "loss")[0] != logged(trainers[1], "loss")[0]


def encoder_of(config, folder: Path, bert: Path) -> str:
    """Save a new encoder with mean pooling and the tokenizer of a BERT, and return its folder."""
    kind = T5EncoderModel if config.model_type == "t5" else AutoModel
    encoder = kind(config) if kind is T5EncoderModel else kind.from_config(config)
    encoder.save_pretrained(folder / "encoder")
    tokenizer_of(bert).save_pretrained(folder / "encoder")
    modules = [Transformer(str(folder / "encoder")), Pooling(32, pooling_mode="mean")]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(folder / "model"))
    return str(folder / "model")


def test_noise_is_added_to_the_embeddings_of_every_encoder(bert, unscored, tmp_path):
    """T5 has a second module with the weights of its embeddings, which it does not call."""
    folder = encoder_of(T5Config(vocab_size=40, d_model=32, d_kv=8, num_layers=2, num_heads=4, d_ff=64), tmp_path, bert)
    losses = []
    for alpha in (None, 5.0):
        how = dict(max_steps=1, objective="simcse", padding_free=False, save_strategy="no")
        args = unscored(**how, neftune_noise_alpha=alpha)
        losses.append(logged(trained(folder, args, train_dataset=SENTENCES), "loss"))
    assert losses[1] != losses[0]


def test_what_an_encoder_cannot_do_is_refused(bert, unscored, tmp_path):
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
    folder = encoder_of(MPNetConfig(vocab_size=40, **sizes), tmp_path, bert)
    with raises_usage(option="gradient_checkpointing"):
        InforMinTrainer(folder, unscored(objective="simcse", gradient_checkpointing=True), train_dataset=SENTENCES)
    with raises_usage(option="gradient_checkpointing"):
        args = unscored(objective="simcse", view="crop", gradient_checkpointing=True)
        InforMinTrainer(str(save_letters(tmp_path / "static")), args, train_dataset=SENTENCES)
    with raises_usage(option="neftune_noise_alpha"):
        args = unscored(objective="simcse", view="crop", neftune_noise_alpha=5.0)
        InforMinTrainer(str(tmp_path / "static"), args, train_dataset=SENTENCES)


def test_an_object_in_memory_is_no_repository(st_mean, bert, unscored, tmp_path):
    """The record has neither the name of a class as a Hub id, nor a path."""
    model = SentenceTransformer(str(st_mean), device="cpu")
    trainer = trained(model, unscored(max_steps=1, objective="simcse", save_strategy="no"), train_dataset=SENTENCES)
    trainer.export(report=False)
    folder = Path(trainer.args.output_dir)
    assert trainer.record().base_model["hub_id"] is None and "base_model:" not in (folder / "README.md").read_text()
    named = BertForInforMinCL.from_pretrained(bert)
    trainer = InforMinTrainer(named, unscored(), train_dataset=SENTENCES, processing_class=tokenizer_of(bert))
    entry = trainer.record().base_model
    assert (entry["name"], entry["hub_id"]) == (bert.name, None)
    model.truncate_dim = 8
    with raises_usage(option="model_name", found="truncate_dim"):
        InforMinTrainer(model, unscored(objective="simcse"), train_dataset=SENTENCES)


@pytest.mark.parametrize("options", [{}, {"lora_r": 2}])
def test_a_tokenizer_without_a_padding_token_is_an_error_that_says_what_to_do(st_mean, unscored, tmp_path, options):
    folder = shutil.copytree(st_mean, tmp_path / "model")
    change_json(folder / "tokenizer_config.json", pad_token=None)
    with raises_usage(option="model_name", fix="pad_token"):
        InforMinTrainer(str(folder), unscored(objective="simcse", **options), train_dataset=SENTENCES)


def test_methods_of_trainer_that_need_labels_or_another_card(bert, unscored):
    trainer = trained(str(bert), unscored(max_steps=1, save_strategy="no"), train_dataset=SENTENCES)
    with raises_usage():
        trainer.predict(SENTENCES)
    trainer.export(report=False)
    card = Path(trainer.args.output_dir, "README.md")
    text = card.read_text()
    card.unlink()
    trainer.create_model_card()
    assert card.read_text() == text


@pytest.mark.parametrize("missing, objective", [("attention_mask", "simcse"), ("row", "guided")])
def test_a_collator_must_keep_what_training_reads(bert, unscored, missing, objective):
    tokenizer = tokenizer_of(bert)

    def collate(rows):
        batch = tokenizer.pad([{name: row[name] for name in ("input_ids", "attention_mask")} for row in rows])
        return {name: torch.tensor(batch[name]) for name in batch if name != missing}

    trainer = InforMinTrainer(str(bert), unscored(objective=objective), train_dataset=SENTENCES, data_collator=collate)
    with raises_usage(option="data_collator", found=missing):
        trainer.train()


def test_tokenized_rows_fit_the_encoder(bert, unscored):
    tokenizer = tokenizer_of(bert)
    long = [dict(tokenizer("the dog " * 40))] * 32
    for rows in (long, datasets.Dataset.from_list(long)):
        with raises_usage(option="train_dataset", found="82 tokens"):
            InforMinTrainer(str(bert), unscored(), train_dataset=rows)
    with raises_usage(option="train_dataset", needed="attention_mask"):
        InforMinTrainer(str(bert), unscored(), train_dataset=[{"input_ids": [2, 5, 3]}] * 32)
    row, empty = {"input_ids": [2, 5, 3], "attention_mask": [1, 1, 1]}, {"input_ids": [], "attention_mask": []}
    for rows in ([row, empty] * 16, datasets.Dataset.from_list([row, empty] * 16)):
        with raises_usage("train_dataset", found="no tokens in row 1"):
            InforMinTrainer(str(bert), unscored(), train_dataset=rows)
    other = [{"input_ids": [2, len(tokenizer), 3], "attention_mask": [1, 1, 1]}] * 32
    with raises_usage(option="train_dataset", found=f"token id {len(tokenizer)}"):
        InforMinTrainer(str(bert), unscored(), train_dataset=other)


FINE = {"input_ids": [2, 5, 3], "attention_mask": [1, 1, 1]}
FAULTY = {
    "a mask of zeros": {"input_ids": [2, 5, 3], "attention_mask": [0, 0, 0]},
    "a shorter mask": {"input_ids": [2, 5, 3], "attention_mask": [1, 1]},
    "a null": {"input_ids": None, "attention_mask": [1]},
    "a null mask": {"input_ids": [2, 5, 3], "attention_mask": None},
    "a null token": {"input_ids": [2, None, 3], "attention_mask": [1, 1, 1]},
    "a negative id": {"input_ids": [2, -1, 3], "attention_mask": [1, 1, 1]},
    "no mask": {"input_ids": [2, 5, 3]},
    "tensors (1, L)": {name: torch.tensor([values]) for name, values in FINE.items()},
    "text": {"input_ids": "the dog", "attention_mask": [1, 1, 1]},
}


@pytest.mark.parametrize("row", FAULTY.values(), ids=FAULTY)
def test_a_faulty_row_of_tokens_is_named(row, monkeypatch):
    monkeypatch.setattr("informin.training.data.CHECKED_AT_ONCE", 2)
    names = list(FINE)
    as_list = [FINE] * 5 + [row, FINE]
    tables = [] if any(isinstance(cell, str | torch.Tensor) for cell in row.values()) else [as_list]
    for rows in (as_list, *map(datasets.Dataset.from_list, tables)):
        with raises_usage(option="train_dataset", found="row 5"):
            check_tokens(rows, 32, None, names)
    with raises_usage(option="train_dataset", found="input_ids"):
        check_tokens(datasets.Dataset.from_dict({name: [[[1, 2]]] * 4 for name in names}), 32, None, names)


def test_rows_of_tokens_may_be_arrays_tensors_and_padded():
    names = list(FINE)
    rows = [{name: torch.tensor(FINE[name]) for name in names}, {name: np.array(FINE[name]) for name in names}]
    rows += [{"input_ids": [2, 5, 3, 0], "attention_mask": (1, 1, 1, 0)}]
    assert check_tokens(rows, 32, 6, names) == check_tokens(datasets.Dataset.from_list(rows), 32, 6, names) == 4


def test_a_view_is_an_object_or_a_name(bert, unscored):
    for view in (Crop, "swap"):
        with raises_usage(option="view"):
            InforMinTrainer(str(bert), unscored(), train_dataset=SENTENCES, view=view)


def test_other_arguments_are_refused(bert, tmp_path):
    for args in (TrainingArguments(str(tmp_path), use_cpu=True), SENTENCES):
        with raises_usage(option="args", needed="InforMinTrainingArguments"):
            InforMinTrainer(str(bert), args, train_dataset=SENTENCES)


def test_a_table_of_pairs_is_refused_with_the_way_out():
    table = pd.DataFrame({"anchor": SENTENCES, "positive": SENTENCES[::-1]})
    with raises_usage(option="train_dataset", fix="Dataset.from_pandas"):
        as_data(table, columns=("anchor", "positive"))
    with raises_usage(option="train_dataset", fix="one column"):
        as_data(table)


def test_data_sets_without_rows_or_the_split_train_are_refused(bert, unscored):
    empty = datasets.Dataset.from_dict({name: [] for name in FINE})
    for data in (empty, datasets.DatasetDict({"test": datasets.Dataset.from_dict({"text": SENTENCES})})):
        with raises_usage(option="train_dataset"):
            InforMinTrainer(str(bert), unscored(), train_dataset=data)


@pytest.mark.parametrize("as_list", [False, True])
def test_options_of_sentences_hold_for_tokenized_rows(bert, unscored, as_list):
    rows = datasets.Dataset.from_dict(dict(tokenizer_of(bert)(["the dog " * 20, *SENTENCES])))
    data = list(rows) if as_list else rows
    assert InforMinTrainer(str(bert), unscored(), train_dataset=data).record().options["max_seq_length"] == 42
    with raises_usage(option="train_dataset", found="42 tokens", needed="at most 20"):
        InforMinTrainer(str(bert), unscored(max_seq_length=20), train_dataset=data)
    of_rows = InforMinTrainer(str(bert), unscored(max_train_samples=32), train_dataset=data)
    sample = of_rows.train_dataset
    assert of_rows.record().options["max_train_samples"] == 32
    of_text = InforMinTrainer(str(bert), unscored(max_train_samples=32), train_dataset=rows.num_rows * ["the dog"])
    assert len(sample) == len(of_text.train_dataset) == 32


@pytest.mark.parametrize("kind", ["object", "lora", "native", "distilbert"])
def test_a_given_tokenizer_is_that_of_every_model(bert, st_mean, unscored, tmp_path, kind):
    """It truncates in training, in `encode` and in the exported model, and the objects of the user stay."""
    model: object = str(st_mean)
    if kind == "object":
        model = SentenceTransformer(model, device="cpu")
    elif kind == "distilbert":
        sizes = dict(dim=32, n_layers=2, n_heads=4, hidden_dim=64, max_position_embeddings=66)
        model = encoder_of(DistilBertConfig(vocab_size=len(tokenizer_of(bert)), **sizes), tmp_path / kind, bert)
    elif kind == "lora":
        pytest.importorskip("peft", reason="the extra lora is not installed")
    tokenizer = tokenizer_of(bert, truncation_side="left", model_max_length=10**9)
    options = dict(objective="simcse", max_steps=1, save_strategy="no", **({"lora_r": 2} if kind == "lora" else {}))
    trainer = trained(model, unscored(**options), train_dataset=SENTENCES, processing_class=tokenizer)
    assert trainer.processing_class.truncation_side == "left" and trainer.trained.length == 66
    assert tokenizer.model_max_length == 10**9
    if kind == "object":
        assert model.tokenizer.truncation_side == "right"
    trainer.export(tmp_path / "model", report=False)
    exported = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    assert exported.tokenizer.truncation_side == "left"
    long = ["the dog " * 40 + "sees", "the dog " * 40 + "sings"]
    np.testing.assert_allclose(exported.encode(long), trainer.encode(long), atol=1e-5)
    assert not np.allclose(*trainer.encode(long), atol=1e-3)


def test_a_given_tokenizer_of_a_static_model(unscored, tmp_path):
    model = SentenceTransformer(str(save_letters(tmp_path / "static")), device="cpu")
    other = Tokenizer.from_str(model.tokenizer.to_str())
    other.normalizer = normalizers.Replace("dog", "cat")
    for tokenizer in (other, PreTrainedTokenizerFast(tokenizer_object=other, pad_token="[UNK]")):
        args = unscored(objective="guided")
        trainer = InforMinTrainer(model, args, train_dataset=SENTENCES, processing_class=tokenizer)
        assert trainer.processing_class.tokenize("dog") == model.tokenizer.encode("cat").tokens
        np.testing.assert_array_equal(trainer.encode("the dog"), model.encode("the cat"))


@pytest.mark.parametrize("kind", ["object", "native"])
def test_a_given_tokenizer_needs_a_padding_token(st_mean, bert, unscored, kind):
    model = str(st_mean) if kind == "native" else SentenceTransformer(str(st_mean), device="cpu")
    tokenizer = tokenizer_of(bert)
    tokenizer.pad_token = None
    with raises_usage(option="processing_class", fix="pad_token"):
        InforMinTrainer(model, unscored(), train_dataset=SENTENCES, processing_class=tokenizer)


def test_a_tokenizer_must_fit_the_encoder(bert, unscored):
    tokenizer = tokenizer_of(bert)
    tokenizer.add_tokens(["zebra"])
    with raises_usage(option="model_name", found="tokens"):
        InforMinTrainer(str(bert), unscored(), train_dataset=SENTENCES, processing_class=tokenizer)


def test_a_frozen_model_is_refused(st_mean, unscored):
    model = SentenceTransformer(str(st_mean), device="cpu").requires_grad_(False)
    with raises_usage(option="model_name"):
        InforMinTrainer(model, unscored(objective="simcse"), train_dataset=SENTENCES)
    trainer = InforMinTrainer(str(st_mean), unscored(objective="simcse"), train_dataset=SENTENCES)
    trainer.model.requires_grad_(False)
    with raises_usage(found="frozen"):
        trainer.train()


@pytest.mark.parametrize("kind", ["without a name", "several"])
def test_the_primary_metric_of_an_evaluator_selects_the_best_checkpoint(bert, scored, kind):
    trainer = InforMinTrainer(str(bert), scored(), train_dataset=SENTENCES, eval_dataset=EVALUATORS[kind])
    trainer.train()
    metric = trainer.args.metric_for_best_model
    assert len(logged(trainer, metric)) == 3 and trainer.args.greater_is_better
    assert trainer.state.best_metric == max(logged(trainer, metric)[1:])
    assert metric == METRICS[kind] and trainer.state.best_model_checkpoint
    if kind == "several":
        assert logged(trainer, "eval_sts_spearman_cosine") and logged(trainer, "eval_t_cosine_accuracy")


def test_evaluators_of_sentence_transformers(bert, unscored):
    trainer = InforMinTrainer(str(bert), unscored(), train_dataset=SENTENCES)
    for kind, evaluator in EVALUATORS.items():
        metrics = trainer.evaluate(evaluator)
        first = next(iter(metrics))
        assert first == METRICS.get(kind, f"eval_{evaluator.primary_metric}"), "the primary metric comes first"
        assert np.isfinite([*metrics.values()]).all(), metrics


def test_an_evaluator_gives_the_scores_of_the_exported_model(bert, unscored, tmp_path):
    how = dict(train_dataset=SENTENCES, eval_dataset=EVALUATORS["similarity"])
    trainer = InforMinTrainer(str(bert), unscored(max_steps=1, save_strategy="no"), **how)
    trainer.train()
    trainer.export(str(tmp_path / "model"), report=False)
    model = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    expected = EVALUATORS["similarity"](model)["dev_spearman_cosine"]
    assert trainer.evaluate()["eval_dev_spearman_cosine"] == pytest.approx(expected, abs=1e-4)


def test_without_evaluation_data_nothing_is_evaluated(bert, arguments):
    """The default is to evaluate, which Trainer would refuse. What asks for an evaluation is an error."""
    trainer = InforMinTrainer(str(bert), arguments(max_steps=1), train_dataset=SENTENCES)
    trainer.train()
    assert trainer.args.eval_strategy == "no" and trainer.state.best_model_checkpoint is None
    assert Path(trainer.args.output_dir, f"checkpoint-{trainer.state.global_step}").exists()
    for option, value in {"metric_for_best_model": "eval_spearman", "save_strategy": "best"}.items():
        with raises_usage(option=option):
            InforMinTrainer(str(bert), arguments(**{option: value}), train_dataset=SENTENCES)


def test_a_function_may_return_scores_of_any_name(bert, scored):
    def gap(encode):
        x = encode(SENTENCES[:4])
        return {"gap": float(x[0] @ x[1]), "other": 1.0}

    trainer = InforMinTrainer(str(bert), scored(), train_dataset=SENTENCES, eval_dataset=gap)
    trainer.train()
    assert len(logged(trainer, "eval_gap")) == 3 and trainer.args.metric_for_best_model == "eval_gap"
    assert trainer.record().chosen


def test_a_score_with_the_name_of_the_duration_is_refused(bert, unscored):
    trainer = InforMinTrainer(str(bert), unscored(), train_dataset=SENTENCES)
    with raises_usage(option="eval_dataset", needed="another name"):
        trainer.evaluate(lambda encode: {"own": 0.5, "runtime": 123.0})
    assert trainer.evaluate({"own": lambda encode: {"runtime": 123.0}})["eval_own_runtime"] == 123.0


def test_lower_can_be_better_and_a_missing_metric_is_named(bert, scored):
    values = iter([3.0, 1.0, 2.0, 1.0])
    how = dict(metric_for_best_model="error", greater_is_better=False)
    trainer = InforMinTrainer(
        str(bert), scored(**how), train_dataset=SENTENCES, eval_dataset=lambda encode: {"error": next(values)}
    )
    trainer.train()
    assert trainer.state.best_global_step == 1
    shutil.rmtree(trainer.args.output_dir)
    other = scored(metric_for_best_model="absent")
    trainer = InforMinTrainer(str(bert), other, train_dataset=SENTENCES, eval_dataset=lambda encode: {"error": 1.0})
    with raises_usage(option="metric_for_best_model", needed="eval_error"):
        trainer.train()


def test_data_sets_are_scored_by_their_columns(bert, unscored):
    trainer = InforMinTrainer(str(bert), unscored(), train_dataset=SENTENCES)
    for columns, metric in (
        (dict(zip(("sentence1", "sentence2", "score"), PAIRS)), "eval_spearman"),
        ({"text": SENTENCES, "label": [i % 2 for i in range(64)]}, "eval_v_measure"),
        ({"query": SENTENCES[:9], "document": SENTENCES[9:18]}, "eval_mrr_10"),
    ):
        scores = trainer.evaluate(datasets.Dataset.from_dict(columns))
        assert next(iter(scores)) == metric and np.isfinite([*scores.values()]).all(), scores


def test_scores_of_other_data_have_its_name(bert, unscored, pairs_file, capsys):
    trainer = InforMinTrainer(str(bert), unscored(), train_dataset=SENTENCES, eval_dataset=pairs_file)
    other = shutil.copy(pairs_file, pairs_file.with_name("other.tsv"))
    for given, name in ((other, "other.tsv"), ({"test": other}, "test"), (None, "pairs.tsv")):
        trainer.evaluate(given)
        assert name in capsys.readouterr().out
    trainer.log({"eval_own": 0.5})
    assert capsys.readouterr().out == "step 0  own 0.5\n"


def test_named_sets(bert, scored, pairs_file):
    given = {"dev": load_pairs(pairs_file), "own": lambda encode: 1.0}
    trainer = InforMinTrainer(str(bert), scored(), train_dataset=SENTENCES, eval_dataset=given)
    trainer.train()
    assert trainer.args.metric_for_best_model == "eval_dev_spearman" and logged(trainer, "eval_own") == [1.0] * 3
    assert trainer.record().development == "dev, own"
    with raises_usage(option="eval_dataset"):
        as_development([lambda encode: {"a": 1.0}, lambda encode: {"a": 2.0}]).score(lambda texts: np.zeros((1, 2)))


@pytest.mark.parametrize(
    "given", [{("a", "b", 1)}, {"dev": None}, [], datasets.Dataset.from_dict({"sentence1": ["a"]}), 5], ids=str
)
def test_other_evaluation_data_are_refused(given):
    with raises_usage(option="eval_dataset"):
        as_development(given)


def test_a_resumed_run_keeps_the_metric_of_a_function(bert, scored):
    trainer = InforMinTrainer(str(bert), scored(), train_dataset=SENTENCES, eval_dataset=EVALUATORS["similarity"])
    trainer.train()
    shutil.rmtree(Path(trainer.args.output_dir) / "checkpoint-2")
    again = InforMinTrainer(str(bert), scored(), train_dataset=SENTENCES, eval_dataset=EVALUATORS["similarity"])
    again.train("last")
    assert_same(weights_of(again), weights_of(trainer))
    assert again.state.best_metric == trainer.state.best_metric


def test_a_run_whose_metric_has_another_direction_is_not_resumed(bert, scored):
    def run(**how) -> InforMinTrainer:
        args = scored(metric_for_best_model="error", max_steps=1, **how)
        return InforMinTrainer(str(bert), args, train_dataset=SENTENCES, eval_dataset=lambda encode: {"error": 1.0})

    run(greater_is_better=False).train()
    run(greater_is_better=False).train("last")
    with raises_usage(option="resume_from_checkpoint", found="greater_is_better False, now True"):
        run().train("last")


STREAMED = FAULTY | {"too long": {"input_ids": [2] * 41, "attention_mask": [1] * 41}}


@pytest.mark.parametrize("name", ["a mask of zeros", "a shorter mask", "a negative id", "no mask", "too long"])
@pytest.mark.parametrize("place", [1, 1_200], ids=["first", "later"])
def test_a_tokenized_stream_is_checked_while_it_is_read(bert, unscored, name, place):
    faulty = STREAMED[name]
    rows = [FINE] * place + [faulty] + [FINE] * (1_231 - place)
    stream = datasets.IterableDataset.from_generator(lambda: iter(rows))
    with raises_usage(option="train_dataset"):
        trainer = InforMinTrainer(str(bert), unscored(max_seq_length=40, max_steps=80), train_dataset=stream)
        trainer.train()


def test_a_tokenized_stream_has_the_length_of_its_longest_row(bert, unscored):
    rows = [FINE, {"input_ids": [2] + [5] * 40 + [3], "attention_mask": [1] * 42}] * 16
    stream = datasets.Dataset.from_list(rows).to_iterable_dataset()
    trainer = trained(str(bert), unscored(max_steps=1), train_dataset=stream)
    assert trainer.record().options["max_seq_length"] == 42


@pytest.mark.parametrize("rows", [SENTENCES, [{"text": text} for text in SENTENCES]], ids=["strings", "rows"])
def test_streams_of_pytorch_are_refused_with_the_way_out(bert, unscored, rows):
    class Rows(IterableDataset):
        def __iter__(self):
            return iter(rows)

    with raises_usage(option="train_dataset", fix="datasets.IterableDataset.from_generator"):
        InforMinTrainer(str(bert), unscored(), train_dataset=Rows())


@pytest.mark.parametrize("is_tokenized", [False, True])
def test_map_style_data_sets_are_read_to_their_length(bert, unscored, is_tokenized):
    """Theirs is known from `__len__` alone: `__getitem__` gives an item for any number."""
    tokenizer = tokenizer_of(bert)

    class Rows(Dataset):
        def __len__(self):
            return len(SENTENCES)

        def __getitem__(self, place):
            assert place < len(self)
            text = SENTENCES[place % len(SENTENCES)]
            return {**tokenizer(text)} if is_tokenized else {"text": text}

    trainer = InforMinTrainer(str(bert), unscored(), train_dataset=Rows())
    assert len(trainer.train_dataset) == len(SENTENCES)
    with raises_usage(option="train_dataset"):
        InforMinTrainer(str(bert), unscored(), train_dataset=object())


def test_a_stream_needs_a_number_of_steps(bert, unscored, tmp_path):
    with raises_usage("max_steps"):
        InforMinTrainer(str(bert), unscored(max_steps=-1), train_dataset=stream_of(tmp_path, SENTENCES))


def test_a_stream_cannot_be_grouped_by_length(bert, unscored, tmp_path):
    with raises_usage("train_sampling_strategy"):
        how = unscored(train_sampling_strategy="group_by_length")
        InforMinTrainer(str(bert), how, train_dataset=stream_of(tmp_path, SENTENCES))


def test_workers_of_a_stream_tokenize(bert, unscored, tmp_path, monkeypatch):
    """Threads of tokenizers do not exist in a forked worker, which would wait for them forever."""
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    tokenizer_of(bert)(SENTENCES * 9)  # starts the threads
    args = unscored(dataloader_num_workers=2, dataloader_multiprocessing_context="fork")
    trainer = trained(str(bert), args, train_dataset=stream_of(tmp_path, SENTENCES))
    assert trainer.state.global_step == 2


def test_tokenized_rows_keep_their_transform(bert, unscored):
    rows = datasets.Dataset.from_dict(dict(tokenizer_of(bert)(SENTENCES, return_token_type_ids=False)))

    def cut(batch: dict[str, list]) -> dict[str, list]:
        return {name: [row[:3] for row in batch[name]] for name in ("input_ids", "attention_mask")}

    trainer = InforMinTrainer(str(bert), unscored(), train_dataset=rows.with_transform(cut))
    assert next(iter(trainer.get_train_dataloader()))["input_ids"].shape[1] == 3


def test_a_loss_of_the_user_is_logged_without_terms(bert, unscored):
    class Mine(InforMinTrainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            rows = {name: inputs[name] for name in ("input_ids", "attention_mask")}
            return model(**rows).pooler_output.pow(2).mean()

    trainer = Mine(str(bert), unscored(), train_dataset=SENTENCES)
    trainer.train()
    assert len(logged(trainer, "loss")) == 2 and not logged(trainer, "terms/contrast")


def test_the_latest_checkpoint_is_kept_unless_the_best_is_loaded(bert, scored, pairs_file):
    how = dict(metric_for_best_model="uniformity", load_best_model_at_end=False, save_total_limit=1)
    trainer = InforMinTrainer(str(bert), scored(**how), train_dataset=SENTENCES, eval_dataset=pairs_file)
    trainer.train()
    assert [path.name for path in Path(trainer.args.output_dir).glob("checkpoint-*")] == ["checkpoint-2"]
    assert trainer.record().chosen is False


def test_a_best_score_without_a_checkpoint_is_named(bert, scored, caplog):
    scores = iter([0, 2, 1])
    how = dict(train_dataset=SENTENCES, eval_dataset=lambda encode: {"own": next(scores)})
    trainer = trained(str(bert), scored(save_steps=2, metric_for_best_model="own", greater_is_better=True), **how)
    assert "that of step 1, which has no checkpoint" in caplog.text and trainer.record().kept_step == 2


def test_resume_from_something_else_is_refused(bert, unscored):
    trainer = InforMinTrainer(str(bert), unscored(), train_dataset=SENTENCES)
    for value in ("", 4, 1.5):
        with raises_usage(option="resume_from_checkpoint"):
            trainer.train(resume_from_checkpoint=value)


@pytest.mark.parametrize("when", ["before", "after"])
def test_evaluation_may_be_set_later(bert, unscored, pairs_file, when):
    args = unscored(max_steps=1, save_strategy="no")
    if when == "before":
        args.set_evaluate("steps", steps=1)
    trainer = InforMinTrainer(str(bert), args, train_dataset=SENTENCES, eval_dataset=pairs_file)
    if when == "after":
        trainer.args.set_evaluate("steps", steps=1)
    trainer.train()
    assert logged(trainer, "eval_spearman")


@pytest.mark.parametrize("has_data", [False, True])
@pytest.mark.parametrize(
    "switch", [lambda args: args.set_evaluate("no"), lambda args: setattr(args, "eval_strategy", "no")]
)
def test_evaluation_may_be_switched_off_later(bert, arguments, pairs_file, has_data, switch):
    args = arguments(max_steps=1, metric_for_best_model="spearman")
    switch(args)
    trainer = InforMinTrainer(str(bert), args, train_dataset=SENTENCES, eval_dataset=pairs_file if has_data else None)
    trainer.train()
    assert not trainer.record().history and not trainer.record().chosen and args.eval_on_start


def test_the_best_checkpoint_needs_an_evaluation_strategy(bert, unscored, pairs_file):
    args = unscored(save_strategy="best", metric_for_best_model="spearman")
    with raises_usage(option="save_strategy", fix="eval_strategy"):
        InforMinTrainer(str(bert), args, train_dataset=SENTENCES, eval_dataset=pairs_file)


def test_a_run_with_another_tokenizer_is_not_resumed(bert, unscored):
    def with_side(side: str) -> InforMinTrainer:
        tokenizer = tokenizer_of(bert)
        tokenizer.truncation_side = side
        return InforMinTrainer(
            str(bert), unscored(save_steps=1, max_steps=1), train_dataset=SENTENCES, processing_class=tokenizer
        )

    with_side("right").train()
    with_side("right").train("last")
    with raises_usage(option="resume_from_checkpoint", found="settings_sha256"):
        with_side("left").train("last")


@pytest.mark.parametrize("as_list", [False, True])
def test_a_run_with_other_tokenized_rows_is_not_resumed(bert, unscored, as_list):
    def with_rows(sentences: list[str]) -> InforMinTrainer:
        rows = datasets.Dataset.from_dict(dict(tokenizer_of(bert)(sentences, return_token_type_ids=False)))
        data = list(rows) if as_list else rows
        return InforMinTrainer(str(bert), unscored(save_steps=1, max_steps=1), train_dataset=data)

    with_rows(SENTENCES).train()
    with_rows(SENTENCES).train("last")
    with raises_usage(option="resume_from_checkpoint", found="tokenized rows"):
        with_rows(SENTENCES[::-1]).train("last")
    args = unscored(save_steps=1, max_steps=1)
    with raises_usage(option="resume_from_checkpoint", found="the sentences"):
        InforMinTrainer(str(bert), args, train_dataset=SENTENCES[::-1]).train("last")


def test_resuming_a_short_run_logs_no_warning(bert, arguments, caplog):
    how = dict(max_steps=2, eval_strategy="no", save_steps=1, logging_steps=25)
    transformers_log = logging.getLogger("transformers")
    propagates, transformers_log.propagate = transformers_log.propagate, True
    try:
        trainer = InforMinTrainer(str(bert), arguments(**how), train_dataset=SENTENCES)
        trainer.train()
        assert [entry["step"] for entry in trainer.state.log_history if "loss" in entry] == [1, 2]
        shutil.rmtree(Path(trainer.args.output_dir) / "checkpoint-2")
        InforMinTrainer(str(bert), arguments(**how), train_dataset=SENTENCES).train("last")
    finally:
        transformers_log.propagate = propagates
    assert "logging_steps" not in caplog.text


def test_encode_says_once_that_texts_are_truncated(bert, unscored, caplog):
    caplog.set_level("INFO")
    trainer = InforMinTrainer(str(bert), unscored(), train_dataset=SENTENCES)
    trainer.encode(SENTENCES[:2])
    assert "truncated" not in caplog.text
    for _ in range(2):
        trainer.encode(["the dog " * 80])
    assert caplog.text.count("truncated") == 1


def test_encode_takes_one_string_or_any_texts(bert, unscored):
    encode = InforMinTrainer(str(bert), unscored(), train_dataset=SENTENCES).encode
    both = encode(SENTENCES[:2])
    assert encode(SENTENCES[0]).shape == (32,) and both.shape == (2, 32) and encode([]).shape == (0, 32)
    column = datasets.Dataset.from_dict({"text": SENTENCES[:2]})["text"]
    for given in (np.array(SENTENCES[:2]), tuple(SENTENCES[:2]), iter(SENTENCES[:2]), column):
        np.testing.assert_array_equal(encode(given), both)


def test_callbacks_early_stopping_and_unknown_arguments(bert, unscored, arguments, pairs_file):
    seen = []

    class Seen(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            seen.append(state.global_step)
            control.should_training_stop = True

    InforMinTrainer(str(bert), unscored(), train_dataset=SENTENCES, callbacks=[Seen()]).train()
    assert seen == [1]
    with pytest.raises(TypeError):
        InforMinTrainer(str(bert), unscored(), train_dataset=SENTENCES, compute_metrics=len)
    with raises_usage(option="model"):
        InforMinTrainer(AutoModel.from_pretrained(bert), unscored(), train_dataset=SENTENCES)
    with raises_usage(option="eval_dataset"):
        InforMinTrainer(str(bert), unscored(), train_dataset=SENTENCES).evaluate()


def test_copies_of_a_sentence_are_not_its_negatives(bert, unscored):
    """A batch of one sentence has no negatives, so the contrast is 0."""
    args = unscored(max_steps=1, objective="simcse", save_strategy="no")
    trainer = InforMinTrainer(str(bert), args, train_dataset=["the old dog sleeps"] * 32)
    trainer.train()
    assert logged(trainer, "terms/contrast") == pytest.approx([0], abs=1e-6)


def test_a_record_has_the_scores_of_training_and_is_read_as_it_was_written(bert, scored, pairs_file, tmp_path):
    trainer = trained(str(bert), scored(), train_dataset=SENTENCES, eval_dataset=pairs_file)
    history = trainer.record().history
    assert [entry["step"] for entry in history] == [0, 1, 2]
    trainer.evaluate()
    assert trainer.record().history == history
    record = RunRecord.load(Path(trainer.args.output_dir) / "checkpoint-1")
    assert record.base_model["name"] == "tiny-bert" and record.steps == 1 and not record.chosen
    record.save(tmp_path)
    assert RunRecord.load(tmp_path) == record and RunRecord.load(tmp_path / "absent") is None
    assert str(tmp_path) not in (tmp_path / "training.json").read_text()


def test_sentences_in_the_place_of_the_collator_are_trained(bert, pairs_file, tmp_path):
    """As in InforMinTrainer(model, args, sentences, pairs); a collator is a function."""
    args = InforMinTrainingArguments(str(tmp_path / "run"), max_steps=2, per_device_train_batch_size=8, use_cpu=True)
    trainer = InforMinTrainer(str(bert), args, SENTENCES, str(pairs_file))
    assert len(trainer.train_dataset) == len(SENTENCES) and trainer.eval_dataset is not None


@pytest.mark.parametrize(
    "name, here",
    [
        ("tokenizer", "processing_class"),
        ("loss", "objective"),
        ("evaluator", "eval_dataset"),
        ("compute_metrics", "eval_dataset"),
        ("model_name", "model"),
        ("train_file", "train_dataset"),
    ],
)
def test_keywords_of_other_trainers_are_refused_with_the_name_here(name, here):
    with pytest.raises(TypeError, match=f"{name}.*`{here}`"):
        InforMinTrainer(**{name: None})


@pytest.mark.parametrize(
    "name, here",
    [
        ("temperature", "Contrast"),
        ("temp", "Contrast"),
        ("mlm_weight", "MaskedLM"),
        ("crop_min_fraction", "Crop"),
        ("evaluation_strategy", "eval_strategy"),
        ("batch_size", "per_device_train_batch_size"),
        ("learing_rate", "learning_rate"),
        ("overwrite_output_dir", "folder"),
    ],
)
def test_arguments_of_other_programs_are_refused_with_the_name_here(name, here):
    with pytest.raises(TypeError, match=f"{name}.*{here}"):
        InforMinTrainingArguments("o", **{name: 1})


def test_a_subclass_takes_its_own_keywords(bert):
    class Named(InforMinTrainer):
        def __init__(self, *args, nickname="", **kwargs):
            super().__init__(*args, **kwargs)
            self.nickname = nickname

    args = InforMinTrainingArguments(use_cpu=True, per_device_train_batch_size=8)
    assert Named(str(bert), args, train_dataset=make_sentences(8), nickname="a").nickname == "a"


def rates_of(model: torch.nn.Module) -> set[float]:
    return {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)}


@pytest.mark.parametrize("given", ["model", "finished", "checkpoint", "checkpoint with LoRA"])
def test_a_model_of_a_trainer_with_another_dropout_rate_is_trained_with_its_own(bert, unscored, tmp_path, given):
    first = InforMinTrainer(str(bert), unscored(objective="simcse", view_dropout=[0.4]), train_dataset=SENTENCES)
    assert rates_of(first.model) == {0.4}
    first.save_model(str(tmp_path / "saved"))
    if given == "checkpoint with LoRA":
        pytest.importorskip("peft", reason="the extra lora is not installed")
    models = {
        "model": first.model,
        "finished": first.trained.finished,
        "checkpoint": SentenceTransformer(str(tmp_path / "saved"), device="cpu"),
        "checkpoint with LoRA": str(tmp_path / "saved"),
    }
    how = {"processing_class": first.processing_class} if given == "model" else {}
    lora = dict(lora_r=4, lora_dropout=0.1) if "LoRA" in given else {}
    args = unscored(objective="simcse", **lora)
    again = InforMinTrainer(models[given], args, train_dataset=SENTENCES, **how)
    assert rates_of(again.model) == {0.1} and again.model.base_model.config.hidden_dropout_prob == 0.1
    assert rates_of(first.model) == {0.4}


def test_a_model_of_a_fast_trainer_is_trained_without_the_fast_path(bert, unscored):
    first = InforMinTrainer(str(bert), unscored(objective="simcse"), train_dataset=SENTENCES)
    args, tokenizer = unscored(objective="simcse", fast=False), first.processing_class
    again = trained(first.model, args, train_dataset=SENTENCES, processing_class=tokenizer)
    plain = trained(str(bert), unscored(objective="simcse", fast=False), train_dataset=SENTENCES)
    assert logged(again, "loss") == logged(plain, "loss")


def test_a_quantized_model_is_refused(bert, unscored):
    parts = [Transformer(str(bert)), Pooling(32)]
    model = SentenceTransformer(modules=parts, device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.ao.quantization is deprecated
        torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8, inplace=True)
    with raises_usage(option="model", found="has quantized weights"):
        InforMinTrainer(model, unscored(objective="simcse"), train_dataset=SENTENCES)


def test_a_second_call_of_train_says_from_which_weights_it_continues(bert, unscored, caplog):
    how = dict(save_strategy="no", objective="simcse")
    trainer = InforMinTrainer(str(bert), unscored(**how), train_dataset=SENTENCES)
    trainer.train()
    assert "earlier call" not in caplog.text
    trainer.train()
    assert "after 2 steps of an earlier call of `train`" in caplog.text
