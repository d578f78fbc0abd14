"""Models in training: their class, every kind of SentenceTransformer, checkpoints, and models this project exported."""

import json
import re
import shutil
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dense, Normalize, Pooling, StaticEmbedding, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModel,
    DistilBertConfig,
    DistilBertForMaskedLM,
    GPT2Config,
    GPT2Model,
    Qwen3Config,
    Qwen3Model,
    Trainer,
)

from informin import evaluate, fit, load_model
from informin.cli import run_command
from informin.publishing.scores import add_results
from modeling_informin import BertForInforMinCL, RobertaForInforMinCL
from tests.conftest import (
    FOUR_STEPS,
    SIZES,
    WORDS,
    how_to_train,
    make_sentences,
    raises_usage,
    save_bert,
    save_pairs,
    save_sentence_transformer,
    tokenizer_of,
)
from trainer_informin import InforMinTrainer

TEXTS = ["dog", *make_sentences(9)]


def save_other(kind: str, folder, bert):
    """Save a tiny SentenceTransformer that is not native, and return its folder."""
    if kind == "dense":
        return save_sentence_transformer(folder, bert, Dense(32, 8))
    if kind == "static":
        words = {word: i for i, word in enumerate(["[PAD]", "[UNK]", *WORDS])}
        tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        torch.manual_seed(1)
        parts = [StaticEmbedding(tokenizer, embedding_dim=16), Normalize()]
    else:
        save_bert(folder / "source")
        torch.manual_seed(1)
        if kind == "distilbert":
            config = DistilBertConfig(vocab_size=5 + len(WORDS), dim=32, n_layers=2, n_heads=4, hidden_dim=64)
            DistilBertForMaskedLM(config).save_pretrained(folder / "source")
        elif kind.startswith("gpt2"):
            config = GPT2Config(vocab_size=5 + len(WORDS), n_embd=32, n_layer=2, n_head=4, pad_token_id=0)
            GPT2Model(config).save_pretrained(folder / "source")
            if kind == "gpt2":  # its own tokenizer gives no token types
                tokenizer_of(folder / "source", model_input_names=["input_ids", "attention_mask"]).save_pretrained(
                    folder / "source"
                )
        else:
            sizes = {name: SIZES[name] for name in ("hidden_size", "num_hidden_layers", "intermediate_size")}
            heads = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=8, pad_token_id=0)
            config = Qwen3Config(vocab_size=5 + len(WORDS), max_position_embeddings=66, **sizes, **heads)
            Qwen3Model(config).save_pretrained(folder / "source")
        parts = [Transformer(str(folder / "source")), Pooling(32, pooling_mode="lasttoken"), Normalize()]
    SentenceTransformer(modules=parts, device="cpu").save_pretrained(str(folder / "model"), create_model_card=False)
    return folder / "model"


EVALUATED = dict(eval_strategy="steps", eval_steps=1, save_strategy="steps", save_steps=1)  # loads the best checkpoint
SAVED = dict(max_steps=2, save_strategy="steps", save_steps=1)


@pytest.fixture
def train(tmp_path):
    """Return a function that creates a trainer of one step without evaluation; keywords change or add options."""

    def build(model, name: str = "run", **options) -> InforMinTrainer:
        how = FOUR_STEPS | dict(max_steps=1, eval_strategy="no", save_strategy="no", measure_drift=False)
        how |= dict(objective="simcse", report_to=[])
        data = dict(train_dataset=make_sentences(96), eval_dataset=save_pairs(tmp_path / "pairs.tsv"))
        return InforMinTrainer(model, **data, **how_to_train(str(tmp_path / name), **(how | options)))

    return build


def weights(model) -> dict[str, torch.Tensor]:
    return {name: x.detach().clone() for name, x in model.state_dict().items()}


def changed(before: dict, after: dict) -> list[str]:
    return [name for name in before if not before[name].equal(after[name])]


@pytest.mark.parametrize(
    "build, expected",
    {
        "plain": (lambda folder, bert: bert, "BertForInforMinCL"),
        "cls": (
            lambda folder, bert: save_sentence_transformer(folder, bert, pooling="cls", normalize=False),
            "BertForInforMinCL",
        ),
        "mean": (save_sentence_transformer, "BertForInforMinCL"),
        "max": (
            lambda folder, bert: save_sentence_transformer(folder, bert, pooling="max"),
            "SentenceTransformerForInforMinCL",
        ),
        "dense": (
            lambda folder, bert: save_sentence_transformer(folder, bert, Dense(32, 8)),
            "SentenceTransformerForInforMinCL",
        ),
        "memory": (
            lambda folder, bert: SentenceTransformer(str(save_sentence_transformer(folder, bert))),
            "SentenceTransformerForInforMinCL",
        ),
    }.values(),
)
def test_the_class_in_training_is_chosen_by_the_modules(train, tmp_path, bert, build, expected):
    model = build(tmp_path / "model", bert)
    assert type(train(model).model).__name__ == expected


@pytest.mark.parametrize("kind", ["dense", "static", "qwen3"])
def test_any_sentence_transformer_is_trained_and_exported_in_its_own_format(train, tmp_path, bert, kind):
    folder = save_other(kind, tmp_path / kind, bert)
    run = train(str(folder), view="crop", **EVALUATED)
    source = SentenceTransformer(str(folder), device="cpu")
    np.testing.assert_allclose(run.encode(TEXTS), source.encode(TEXTS), atol=1e-5)
    before = weights(run.model)
    run.train()
    moved = set(changed(before, weights(run.model)))
    trained = {name for name, x in run.model.named_parameters() if x.requires_grad}
    assert moved == trained and trained, "every weight that is not frozen has moved"
    run.export(str(tmp_path / "exported"))
    exported = SentenceTransformer(str(tmp_path / "exported"), device="cpu")
    np.testing.assert_allclose(exported.encode(TEXTS), run.encode(TEXTS), atol=1e-5)
    assert not np.allclose(exported.encode(TEXTS), source.encode(TEXTS), atol=1e-4)


def test_a_guide_leaves_the_truncation_of_a_static_model(train, tmp_path, bert):
    folder = save_other("static", tmp_path / "static", bert)
    source, texts = SentenceTransformer(str(folder), device="cpu"), [*TEXTS, "the dog sees the cat " * 6]
    source[0].tokenizer.enable_truncation(20)
    source.save_pretrained(str(folder), create_model_card=False)
    run = train(str(folder), objective="guided", view="crop", learning_rate=0.0)
    np.testing.assert_allclose(run.encode(texts), source.encode(texts), atol=1e-5)
    run.train()
    run.export(str(tmp_path / "exported"))
    exported = SentenceTransformer(str(tmp_path / "exported"), device="cpu")
    np.testing.assert_allclose(exported.encode(texts), source.encode(texts), atol=1e-5)
    rows = [f"{text}\t{number % 2}" for number, text in enumerate(TEXTS)]
    (tmp_path / "labels.tsv").write_text("\n".join(["text\tlabel", *rows]))
    evaluate(str(tmp_path / "exported"), labels=tmp_path / "labels.tsv", output=tmp_path / "scores", device="cpu")
    add_results(tmp_path / "exported", [tmp_path / "scores"])
    assert (tmp_path / "exported" / "results" / "model.json").exists()


def test_a_resumed_run_has_the_same_weights(train, tmp_path, bert):
    folder = save_other("dense", tmp_path / "dense", bert)
    how = SAVED | dict(view="crop", decorrelation_weight=0.1, projector_size=16)
    whole = train(str(folder), **how)
    whole.train()
    (tmp_path / "again").mkdir()
    (tmp_path / "run" / "checkpoint-1").rename(tmp_path / "again" / "checkpoint-1")
    again = train(str(folder), "again", **how)
    again.train(resume_from_checkpoint=True)
    assert not changed(weights(whole.model), weights(again.model))


@pytest.mark.parametrize("name, in_memory, pooler", [("bert", True, "cls"), ("roberta", False, "mean")])
def test_an_exported_model_can_be_trained_again(train, tmp_path, request, name, in_memory, pooler):
    """sentence-transformers leaves out `add_pooling_layer`, so a checkpoint has a pooler that the model lacks."""
    first = train(str(request.getfixturevalue(name)), "first", pooler=pooler)
    first.train()
    first.export(str(tmp_path / "exported"))
    model = str(tmp_path / "exported")
    again = train(SentenceTransformer(model, device="cpu") if in_memory else model, "again", **EVALUATED)
    np.testing.assert_allclose(again.encode(TEXTS), first.encode(TEXTS), atol=1e-5)
    again.train()  # loads the best checkpoint at its end
    again.export(str(tmp_path / "exported again"))
    exported = SentenceTransformer(str(tmp_path / "exported again"), device="cpu")
    np.testing.assert_allclose(exported.encode(TEXTS), again.encode(TEXTS), atol=1e-5)


ALIKE = [  # what was possible for BERT and RoBERTa only
    dict(queue_size=16, attention_mi_weight=1, view_dropout=[0.1, 0.3]),
    dict(view_dropout=[0.2], gradient_cache_chunk_size=8),
]


@pytest.mark.parametrize("options", ALIKE)
def test_every_encoder_is_trained_alike(train, st_mean, options):
    """The same weights have the same loss as a class of this project and as a SentenceTransformer, without dropout."""
    losses = []
    for model in (str(st_mean), SentenceTransformer(str(st_mean), device="cpu")):
        run = train(model, type(model).__name__, view="crop", **options)
        for module in run.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
                if hasattr(module, "rates"):
                    module.rates = (0.0,) * len(module.rates)
        if run.model.mlp is not None:
            torch.nn.init.eye_(run.model.mlp.dense.weight)
            torch.nn.init.zeros_(run.model.mlp.dense.bias)
        batch = run.get_batch_samples(iter(run.get_train_dataloader()), 1, run.args.device)[0][0]
        torch.manual_seed(0)
        losses.append(run.compute_loss(run.model.train(), batch).item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_another_encoder_trains_with_what_bert_has(train, tmp_path, bert):
    folder = save_other("distilbert", tmp_path / "distilbert", bert).with_name("source")  # with its LM head
    run = train(str(folder), mlm_weight=0.1, **ALIKE[0])
    before = weights(run.model)
    run.train()
    moved = changed(before, weights(run.model))
    assert "mlp.dense.weight" in moved and "st.0.model.transformer.layer.0.ffn.lin1.weight" in moved
    assert "lm_head.model.vocab_transform.weight" in moved


@pytest.mark.parametrize(
    "options, option",
    [
        (dict(mlm_weight=0.1), "mlm_weight"),
        (dict(attention_mi_weight=0.1), "attention_mi_weight"),
        (dict(queue_size=16), "queue_size"),
        (dict(projection_head="mlp"), "projection_head"),
        (dict(view_dropout=[0.2]), "view_dropout"),
        (dict(lora_r=2), "lora_r"),
    ],
)
def test_what_a_static_model_lacks_is_refused(train, tmp_path, bert, options, option):
    with raises_usage(option=option):
        train(str(save_other("static", tmp_path / "static", bert)), view="crop", **options)


def test_what_a_decoder_lacks_is_refused(train, tmp_path, bert):
    with raises_usage(option="mlm_weight"):
        train(str(save_other("qwen3", tmp_path / "qwen3", bert)), view="crop", mlm_weight=0.1)


def test_the_pooling_of_a_sentence_transformer_is_its_own(train, tmp_path, bert):
    with raises_usage(option="pooler"):
        train(str(save_other("distilbert", tmp_path / "distilbert", bert)), pooler="cls")


def test_the_pooling_of_an_object_is_its_own(train, st_mean, tmp_path):
    static = SentenceTransformer(str(save_other("static", tmp_path / "static", None)), device="cpu")
    model = SentenceTransformer(str(st_mean), device="cpu")
    for given in (model, static):
        with raises_usage(option="pooler", needed="auto"):
            train(given, pooler="cls", view="crop")
    assert train(model, pooler="mean").trained.finished[1].pooling_mode == "mean"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_in_half_precision_with_frozen_weights_is_trained_in_float32(train, st_mean, dtype):
    model = SentenceTransformer(str(st_mean), device="cpu").to(dtype)
    model[0].auto_model.embeddings.requires_grad_(False)
    run = train(model)
    run.train()
    assert {weight.dtype for weight in run.model.parameters()} == {torch.float32}


@pytest.mark.parametrize("kind", [BertForInforMinCL, RobertaForInforMinCL])
def test_an_object_of_our_classes_is_trained_itself(tmp_path, request, kind):
    folder = request.getfixturevalue("bert" if kind is BertForInforMinCL else "roberta")
    config = AutoConfig.from_pretrained(folder)
    config.informin = {"pooling": "mean", "projection_head": "mlp", "lm_head": False}
    model = kind.from_pretrained(folder, config=config)
    before = weights(model)
    how = FOUR_STEPS | dict(objective="simcse", max_steps=1, eval_strategy="no", save_strategy="no", report_to=[])
    data = dict(train_dataset=make_sentences(96), processing_class=tokenizer_of(folder))
    run = InforMinTrainer(model, **data, **how_to_train(str(tmp_path / "run"), **how))
    run.train()
    assert type(run.model) is kind and set(changed(before, weights(model))) == before.keys()
    run.export(str(tmp_path / "exported"))
    exported = SentenceTransformer(str(tmp_path / "exported"), device="cpu")
    np.testing.assert_allclose(exported.encode(TEXTS), run.encode(TEXTS), atol=1e-5)
    assert exported[1].pooling_mode == "mean"


def state_of(model) -> dict:
    """Return everything of a model but the values of its weights: classes, attributes and hooks of all modules."""
    ours = ("_parameters", "_buffers", "_modules", "training", "config", "tokenizer", "processor")
    state: dict = {"weights": [(name, x.dtype, x.requires_grad) for name, x in model.named_parameters()]}
    for name, module in model.named_modules():
        values = {key: value for key, value in vars(module).items() if key not in ours}
        config = getattr(module, "config", None)
        state[name] = type(module), {key: repr(value) for key, value in values.items()}
        state[f"{name} config"] = config and (config.to_dict(), config._attn_implementation)
    return state


PASSED_IN = {  # what changes modules in training
    "plain": {},
    "one rate": dict(view_dropout=[0.2], gradient_checkpointing=True),
    "two rates": dict(view_dropout=[0.1, 0.3], queue_size=16, attention_mi_weight=0.1),
    "lora": dict(lora_r=2),
}


@pytest.mark.parametrize(
    "kind, name",
    [
        *product(["SentenceTransformer"], PASSED_IN),
        *product(["bert"], ["plain", "two rates"]),
        ("roberta", "one rate"),
    ],
)
def test_an_object_that_is_passed_in_stays_as_it_was(tmp_path, request, kind, name):
    """Except for the values of the weights that are trained: with LoRA, none."""
    if name == "lora":
        pytest.importorskip("peft", reason="the extra lora is not installed")
    if kind == "SentenceTransformer":
        bert = request.getfixturevalue("bert")
        model = SentenceTransformer(str(save_sentence_transformer(tmp_path / "m", bert, Dense(32, 8))), device="cpu")
        tokenizer = None
    else:
        folder = request.getfixturevalue(kind)
        model = (BertForInforMinCL if kind == "bert" else RobertaForInforMinCL).from_pretrained(folder)
        tokenizer = tokenizer_of(folder)
    called = []
    model.register_forward_hook(lambda *args: called.append(1))
    state, before = state_of(model), weights(model)
    how = FOUR_STEPS | dict(
        objective="simcse", max_steps=1, eval_strategy="no", save_strategy="no", report_to=[], measure_drift=True
    )
    how |= PASSED_IN[name]
    data = dict(train_dataset=make_sentences(96), processing_class=tokenizer)
    run = InforMinTrainer(model, **data, **how_to_train(str(tmp_path / "run"), **how))
    run.train()
    run.export(str(tmp_path / "exported"), report=False)
    now = state_of(model)
    assert {key for key in state.keys() | now.keys() if state.get(key) != now.get(key)} == set()
    assert bool(changed(before, weights(model))) == (name != "lora")
    shared = {id(x) for x in model.parameters()} & {id(x) for x in run.model.parameters()}
    assert bool(shared) == (name != "lora")


def test_equal_views_are_refused(train, tmp_path, bert):
    with raises_usage(option="view"):
        train(str(save_other("qwen3", tmp_path / "qwen3", bert)))
    with raises_usage():
        train(str(save_bert(tmp_path / "dry", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)))


def test_the_language_model_head_comes_from_the_checkpoint(train, tmp_path, bert):
    run = train(str(bert), mlm_weight=0.1)
    head = run.model.cls.predictions.transform.dense.weight
    stored = load_file(bert / "model.safetensors")["cls.predictions.transform.dense.weight"]
    assert head.equal(stored)
    AutoModel.from_pretrained(bert).save_pretrained(tmp_path / "plain")
    tokenizer_of(bert).save_pretrained(tmp_path / "plain")
    with raises_usage(option="model_name"):
        train(str(tmp_path / "plain"), "plain-run", mlm_weight=0.1)


def test_a_checkpoint_has_the_tied_weights_of_the_language_model_head(train, bert):
    run = train(str(bert), mlm_weight=0.1, lora_r=2, save_strategy="steps", save_steps=1, warmup_steps=0)
    run.train()
    trained = weights(run.model)
    torch.nn.init.ones_(run.model.lm_head.model.cls.predictions.bias)
    run.trained.load(Path(run.args.output_dir, "checkpoint-1"))
    assert not changed(trained, weights(run.model))


def test_old_names_of_weights_are_read_and_not_written(train, tmp_path, bert):
    """Those of bert-base-uncased. A run that resumed from a checkpoint with them would keep some old weights."""
    old = shutil.copytree(bert, tmp_path / "models" / "old")
    stored = load_file(bert / "model.safetensors")
    renamed = {re.sub("LayerNorm.weight$", "LayerNorm.gamma", name): x for name, x in stored.items()}
    renamed = {re.sub("LayerNorm.bias$", "LayerNorm.beta", name): x for name, x in renamed.items()}
    assert renamed.keys() != stored.keys()
    save_file(renamed, old / "model.safetensors", {"format": "pt"})
    runs = []
    for folder in (old, bert):
        run = train(str(folder), folder.name, mlm_weight=0.1, save_strategy="steps", save_steps=1)
        run.train()
        run.export(report=False)
        runs.append(run)
    assert not changed(*(weights(run.model) for run in runs))
    for file in ("checkpoint-1/model.safetensors", "model.safetensors"):
        one, other = (load_file(Path(run.args.output_dir, file)) for run in runs)
        assert one.keys() == other.keys()


def test_prompts(train, tmp_path, bert):
    folder = save_sentence_transformer(tmp_path / "m", bert, prompts={"query": "the "}, default_prompt_name="query")
    plain = SentenceTransformer(str(folder), device="cpu")
    run = train(str(folder))
    np.testing.assert_allclose(run.encode(TEXTS), plain.encode(TEXTS), atol=1e-5)
    for export, prompt in ((False, "the "), (True, "red ")):
        run = train(str(folder), f"export {export}", prompt="red ", export_prompt=export)
        np.testing.assert_allclose(run.encode(TEXTS), plain.encode(TEXTS, prompt="red "), atol=1e-5)
        run.train()
        run.export()
        exported = SentenceTransformer(str(tmp_path / f"export {export}"), device="cpu")
        assert exported.prompts[exported.default_prompt_name] == prompt


# Low-rank adaptation


@pytest.mark.parametrize("kind, recomputes", [("qwen3", True), ("dense", False), ("gpt2", False)])
def test_lora_trains_only_the_matrices_and_exports_merged_weights(train, tmp_path, bert, kind, recomputes):
    pytest.importorskip("peft", reason="the extra lora is not installed")
    folder = save_other(kind, tmp_path / kind, bert)
    source = SentenceTransformer(str(folder), device="cpu")
    how = dict(max_steps=2, lora_r=4, view="crop", learning_rate=1e-2, gradient_checkpointing=recomputes)
    run = train(str(folder), **how)
    np.testing.assert_allclose(run.encode(TEXTS), source.encode(TEXTS), atol=1e-5)  # an update of 0
    before = weights(run.model)
    run.train()
    moved = changed(before, weights(run.model))
    assert moved and all("lora_" in name or ".linear." in name or name.startswith("mlp.") for name in moved)
    state = weights(run.model)
    run.export(str(tmp_path / "merged"))
    assert not changed(state, weights(run.model)), "an export must not change the model"
    merged = SentenceTransformer(str(tmp_path / "merged"), device="cpu")
    np.testing.assert_allclose(merged.encode(TEXTS), run.encode(TEXTS), atol=1e-5)
    assert merged.state_dict().keys() == source.state_dict().keys()
    if kind == "qwen3":  # without a Dense module, which is trained
        with run.trained.before(run.args) as before:
            np.testing.assert_allclose(before.encode(TEXTS), source.encode(TEXTS), atol=1e-5)


def test_dropout_rates_of_views_leave_that_of_lora(train, bert):
    pytest.importorskip("peft", reason="the extra lora is not installed")
    run = train(str(bert), lora_r=4, lora_dropout=0.4, view_dropout=[0.1, 0.2])
    names = [name for name, module in run.model.named_modules() if type(module) is torch.nn.Dropout and module.p == 0.4]
    assert names and all(".lora_dropout." in name for name in names)
    run.train()


def test_lora_trains_a_model_in_bf16_in_the_precision_of_the_run(train, tmp_path, bert):
    pytest.importorskip("peft", reason="the extra lora is not installed")
    model = SentenceTransformer(str(save_other("dense", tmp_path / "dense", bert)), device="cpu").bfloat16()
    run = train(model, lora_r=4)
    run.train()
    assert {weight.dtype for weight in run.model.parameters()} == {torch.float32}
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}  # whose frozen weights stay


def test_a_version_of_peft_that_transformers_refuses_is_an_error_of_the_option(train, bert, monkeypatch):
    pytest.importorskip("peft", reason="the extra lora is not installed")

    def refuse(*_, **__):
        raise ValueError("please use a version >= 0.22.0")

    monkeypatch.setattr("transformers.integrations.peft.check_peft_version", refuse)
    with raises_usage(option="lora_r"):
        train(str(bert), lora_r=4)


def test_lora_resumes_and_exports_matrices_alone(train, tmp_path, bert):
    pytest.importorskip("peft", reason="the extra lora is not installed")
    folder = save_other("qwen3", tmp_path / "qwen3", bert)
    how = SAVED | dict(lora_r=4, lora_dropout=0.2, lora_merge=False)
    whole = train(str(folder), **how)
    whole.train()
    (tmp_path / "again").mkdir()
    (tmp_path / "run" / "checkpoint-1").rename(tmp_path / "again" / "checkpoint-1")
    again = train(str(folder), "again", **how)
    again.train(resume_from_checkpoint=True)
    assert not changed(weights(whole.model), weights(again.model))
    again.export(str(tmp_path / "adapter"))
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()
    assert not (tmp_path / "adapter" / "model.safetensors").exists()


def test_matrices_alone_need_an_object_with_the_weights_of_its_files(train, st_mean, tmp_path):
    pytest.importorskip("peft", reason="the extra lora is not installed")
    model = SentenceTransformer(str(st_mean), device="cpu")
    how = dict(lora_r=4, lora_merge=False)
    run = train(model, **how)
    run.train()
    run.export(str(tmp_path / "adapter"), report=False)
    exported = SentenceTransformer(str(tmp_path / "adapter"), device="cpu")
    np.testing.assert_allclose(exported.encode(TEXTS), run.encode(TEXTS), atol=1e-5)
    train(model, "whole").train()
    with raises_usage("lora_merge", found="other weights than", fix="save the model"):
        train(model, "again", **how)
    model.save_pretrained(str(tmp_path / "saved"))
    train(str(tmp_path / "saved"), "again", **how)


def with_adapter(st_mean) -> SentenceTransformer:
    """Return a model in memory with an adapter of peft that changes its embeddings."""
    peft = pytest.importorskip("peft", reason="the extra lora is not installed")
    model = SentenceTransformer(str(st_mean), device="cpu")
    before = model.encode(TEXTS)
    torch.manual_seed(0)
    model.add_adapter(peft.LoraConfig(r=4, target_modules=["query", "value"], init_lora_weights=False))
    assert np.abs(model.encode(TEXTS) - before).max() > 0.1
    return model


def test_a_model_in_memory_with_an_adapter_is_trained_and_exported(train, st_mean, tmp_path):
    run = train(with_adapter(st_mean), **EVALUATED)
    before = run.encode(TEXTS)
    run.train()
    run.export(str(tmp_path / "exported"))
    assert (tmp_path / "exported" / "adapter_model.safetensors").is_file()
    for exported in (SentenceTransformer(str(tmp_path / "exported"), device="cpu"), load_model(tmp_path / "exported")):
        np.testing.assert_allclose(exported.encode(TEXTS), run.encode(TEXTS), atol=1e-5)
    assert np.abs(run.encode(TEXTS) - before).max() > 1e-3


def test_a_model_in_memory_with_an_adapter_is_fitted(st_mean, tmp_path):
    model = with_adapter(st_mean)
    fitted = fit(model, make_sentences(64), task="search")
    fitted.save(tmp_path / "fitted")
    expected = fitted.adapter.transform(model.encode(TEXTS))
    saved = SentenceTransformer(str(tmp_path / "fitted"), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(saved, expected, atol=1e-5)


def test_an_encoder_that_adds_token_types_is_not_packed_and_not_trained(train, tmp_path, bert):
    """As GPT-2 with the tokenizer of a BERT: SentenceTransformer gives it the types, and training does not."""
    folder = save_other("gpt2 with types", tmp_path / "gpt2", bert)
    expected = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(load_model(folder, device="cpu").encode(TEXTS), expected, atol=1e-5)
    with raises_usage(option="model_name", found="cannot be trained"):
        train(str(folder), view="crop")


def test_operations_are_those_that_trainer_counts(bert, tmp_path):
    """Also for a batch of another size than the first."""
    how = how_to_train(str(tmp_path), **FOUR_STEPS | dict(eval_strategy="no"))
    run = InforMinTrainer(str(bert), train_dataset=make_sentences(64), **how)
    for shape in ((4, 6), (2, 9)):
        inputs = {"input_ids": torch.zeros(shape, dtype=torch.long)}
        assert run.floating_point_ops(inputs) == Trainer.floating_point_ops(run, inputs) > 0


OWN_CODE = '''
import torch
from transformers import BertModel


class OwnBert(BertModel):
    """Reads tokens without their positions."""

    def forward(self, input_ids=None, position_ids=None, **others):
        position_ids = torch.zeros_like(input_ids) if position_ids is None else position_ids
        return super().forward(input_ids=input_ids, position_ids=position_ids, **others)
'''


@pytest.fixture
def own_code(st_mean, tmp_path) -> Path:
    """A model as jina-embeddings-v2, whose configuration has the model type of BERT."""
    folder = tmp_path / "own"
    shutil.copytree(st_mean, folder)
    (folder / "own_code.py").write_text(OWN_CODE)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModel": "own_code.OwnBert"}}))
    return folder


def test_code_that_did_not_run_is_named_and_forgotten(train, own_code, tmp_path, caplog):
    """Else the code of the source would run with weights that were trained without it."""
    pooling = own_code / "1_Pooling" / "config.json"
    pooling.write_text(pooling.read_text().replace('"mean"', '"max"'))  # not one of BertForInforMinCL
    run = train(str(own_code))
    assert not run.trained.is_native
    assert "own_code.OwnBert" in caplog.text and "trust_remote_code" in caplog.text
    run.train()
    run.export(str(tmp_path / "exported"))
    for trusts in (False, True):
        exported = SentenceTransformer(str(tmp_path / "exported"), device="cpu", trust_remote_code=trusts)
        np.testing.assert_allclose(exported.encode(TEXTS), run.encode(TEXTS), atol=1e-5)


def test_missing_weights_of_a_model_with_its_own_code_name_the_option(own_code):
    weights = load_file(own_code / "model.safetensors")
    weights = {name: value for name, value in weights.items() if "position" not in name}
    save_file(weights, own_code / "model.safetensors", metadata={"format": "pt"})
    with raises_usage("model_name", fix="trust_remote_code"):
        load_model(own_code)


def test_a_bert_with_its_own_code_keeps_it(train, own_code, tmp_path):
    """Also if it is exported from a checkpoint."""
    run = train(str(own_code), trust_remote_code=True, save_strategy="steps", save_steps=1)
    run.train()
    run.export(str(tmp_path / "exported"))
    checkpoint, again = tmp_path / "run" / "checkpoint-1", tmp_path / "again"
    words = ["--model_name", str(checkpoint), "--output_dir", str(again), "--trust_remote_code"]
    assert run_command("export", *words) == 0
    for folder in (tmp_path / "exported", again):
        exported = SentenceTransformer(str(folder), device="cpu", trust_remote_code=True)
        np.testing.assert_allclose(exported.encode(TEXTS), run.encode(TEXTS), atol=1e-5)
    assert run.record().remote_code
    card = (tmp_path / "exported" / "README.md").read_text(encoding="utf-8")
    assert ", trust_remote_code=True)" in card and "AutoModel" not in card
