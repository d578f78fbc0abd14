"""Every fast path gives the loss and the gradients of the plain path, informin/training/plain.py."""

import shutil

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Normalize, Pooling, StaticEmbedding, Transformer
from transformers import (
    AutoModel,
    DistilBertConfig,
    DistilBertForMaskedLM,
    ElectraConfig,
    ElectraForMaskedLM,
    MPNetConfig,
    MPNetForMaskedLM,
    Qwen3Config,
)

import informin.fast.speed as speed
from informin.fast.forward import FastForward
from informin.fast.plan import plan_of
from informin.training.batch import PadRows, StackedViews
from informin.training.plain import forward, plain_step
from informin.views import View
from informin.views.encoder import set_dropout
from informin.views.view import SentenceTokens
from tests.conftest import (
    FOUR_STEPS,
    SIZES,
    WORDS,
    how_to_train,
    make_sentences,
    raises_usage,
    save_bert,
    save_sentence_transformer,
    tokenizer_of,
)
from tests.fast.test_cpu_threads import cores
from trainer_informin import InforMinTrainer, InforMinTrainingArguments

OBJECTIVES = {
    "simcse": {},
    "informin": dict(objective="informin", reconstruction_weight=0.4),
    "MLM": dict(mlm_weight=0.1),
    "ct": dict(objective="ct"),
    "isbert": dict(objective="isbert", mlm_weight=0.1),
    "diffcse": dict(objective="diffcse", replaced_tokens_weight=1, replaced_fraction=1),
    "vascl of masked views": dict(
        objective="vascl", perturbation_radius=0.01, virtual_augmentation_neighbors=4, mlm_weight=0.1, masked_views=True
    ),
    "tsdae": dict(objective="tsdae"),
    "guided": dict(objective="guided", guided_weight=1, replay_weight=1, replay_size=4),
    "micse": dict(objective="micse", queue_size=16, warmup_steps=0),
    "micse, code form": dict(objective="micse", queue_size=16, warmup_steps=0, attention_mi_form="code"),
    "two rates, maps and MLM": dict(view_dropout=[0.1, 0.3], attention_mi_weight=0.1, mlm_weight=0.1),
    "pairs": dict(view="pair", false_negative_fraction=0.2, mlm_weight=0.1),
    "cutoffs": dict(view="augment", augment_second="token_cutoff"),
    "cutoffs with a queue": dict(view="augment", augment_second="token_cutoff", queue_size=16),
    "cutoffs with replay": dict(
        view="augment", augment_first="token_cutoff", mlm_weight=0.1, objective="guided", replay_weight=1, replay_size=4
    ),
    "scd of two cutoffs": dict(
        objective="scd",
        projector_size=32,
        view_dropout=[0.1, 0.3],
        view="augment",
        augment_first="token_cutoff",
        augment_second="feature_cutoff",
    ),
    "micse of crops": dict(objective="micse", queue_size=16, warmup_steps=0, view="crop", crop_spans="nearby"),
}
PADDED = ("micse, code form",)
# Each has something that the others of its encoder lack: a kind of rows, of heads, of what the heads read, or of rates.
# RoBERTa differs from BERT in its positions and in its head for MLM, and DistilBERT is read as a SentenceTransformer.
CASES = [
    ("bert", "informin"),
    ("bert", "ct"),
    ("bert", "isbert"),
    ("bert", "diffcse"),
    ("bert", "vascl of masked views"),
    ("bert", "micse, code form"),
    ("bert", "two rates, maps and MLM"),
    ("bert", "pairs"),
    ("bert", "cutoffs with a queue"),
    ("bert", "cutoffs with replay"),
    ("bert", "scd of two cutoffs"),
    *(("roberta", name) for name in ("MLM", "tsdae", "micse of crops")),
    ("decoder", "cutoffs"),
    ("electra", "MLM"),
    *(("distilbert", name) for name in ("two rates, maps and MLM", "ct", "guided")),
]


@pytest.fixture(scope="session")
def distilbert(tmp_path_factory):
    """An encoder with a language-model head that is trained as a SentenceTransformer."""
    folder = save_bert(tmp_path_factory.mktemp("distilbert"))  # with its tokenizer
    sizes = dict(vocab_size=5 + len(WORDS), dim=32, n_layers=2, n_heads=4, hidden_dim=64, initializer_range=0.2)
    DistilBertForMaskedLM(DistilBertConfig(**sizes)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def electra(tmp_path_factory):
    """An encoder with narrower token embeddings, whose language-model head calls it in another way."""
    folder = save_bert(tmp_path_factory.mktemp("electra"))  # with its tokenizer
    ElectraForMaskedLM(ElectraConfig(vocab_size=5 + len(WORDS), embedding_size=16, **SIZES)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def mpnet(tmp_path_factory):
    """An encoder that cannot read packed rows."""
    folder = save_bert(tmp_path_factory.mktemp("mpnet"))  # with its tokenizer
    MPNetForMaskedLM(MPNetConfig(vocab_size=5 + len(WORDS), pad_token_id=0, **SIZES)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def decoder(tmp_path_factory, bert):
    """An encoder whose embedding layer is the table of word embeddings."""
    folder = tmp_path_factory.mktemp("decoder")
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8)
    config = Qwen3Config(vocab_size=5 + len(WORDS), intermediate_size=64, initializer_range=0.2, **sizes)
    AutoModel.from_config(config).save_pretrained(folder / "encoder")
    tokenizer_of(bert).save_pretrained(folder / "encoder")
    modules = [Transformer(str(folder / "encoder")), Pooling(32, pooling_mode="mean")]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(folder / "model"))
    return folder / "model"


def trainer_of(folder, output_dir, **options) -> InforMinTrainer:
    if options.get("objective") == "diffcse":
        options["generator"] = str(folder)
    how = FOUR_STEPS | dict(objective="simcse", eval_strategy="no", save_strategy="no", report_to=[]) | options
    sentences = make_sentences(96)
    data = list(zip(sentences, make_sentences(96, seed=1))) if how.get("view") == "pair" else sentences
    return InforMinTrainer(str(folder), train_dataset=data, **how_to_train(str(output_dir), **how))


def has_queue(run: InforMinTrainer) -> bool:
    return any(getattr(term, "queue_size", 0) for term in run.terms)


def second_step(run, dropout: bool = False) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return loss and gradients of the second batch. The first one fills a queue, if the run has one."""
    for module in run.model.modules() if not dropout else ():
        for name in {"p", "rates", "view_rates"} & vars(module).keys():
            setattr(module, name, 0.0 if name == "p" else (0.0, 0.0, 0.0))
    run.model.train()
    first, second = run.get_batch_samples(iter(run.get_train_dataloader()), 2, run.args.device)[0]
    torch.manual_seed(0)
    if has_queue(run):
        run.compute_loss(run.model, first)
    loss = run.compute_loss(run.model, second)
    loss.backward()
    return loss.detach(), {name: x.grad for name, x in run.model.named_parameters() if x.grad is not None}


def assert_equal(found, expected) -> None:
    (loss, own), (plain_loss, plain) = found, expected
    torch.testing.assert_close(loss, plain_loss, rtol=1e-5, atol=1e-5)
    assert own.keys() == plain.keys() and own
    scale = max(gradient.abs().max() for gradient in plain.values()).item()
    for name in own:
        torch.testing.assert_close(own[name], plain[name], atol=5e-5 * scale, rtol=1e-3, msg=name)


def take_path(run: InforMinTrainer, **options) -> None:
    """Let a trainer compute its rows on the path that a trainer with these options takes, from the same weights."""
    needs, length = run.objective.needs(run.args), run.trained.length
    plan = plan_of(run.trained.finished, needs, run.args.device, run.args.mixed_precision, length, **options)
    run.model.forward_pass = FastForward(run.trained.finished, plan)


@pytest.mark.parametrize("model, objective", CASES)
def test_every_fast_path_equals_the_plain_path(request, tmp_path, model, objective):
    folder, options = request.getfixturevalue(model), OBJECTIVES[objective]
    is_padded = objective in PADDED
    paths = [(1, {})] if is_padded else [(1, {}), (1, dict(padding_free=False)), (2, {})]
    if "micse" not in objective:
        paths.append((1, dict(chunk_size=10)))
    run = trainer_of(folder, tmp_path, **options)
    before = {name: x.clone() for name, x in run.model.state_dict().items()}
    run.model.forward_pass = None
    torch.manual_seed(run.args.seed)
    expected = second_step(run)
    for number, how in paths:
        with cores(number):
            run.model.load_state_dict(before)  # also the queue
            run.model.zero_grad()
            take_path(run, **how)
            plan = run.model.forward_pass.plan
            packs, parts = how.get("padding_free", not is_padded), 1 if is_padded else number
            assert (plan.packs, plan.threads) == (packs, parts), "another path would be compared"
            torch.manual_seed(run.args.seed)  # as after building a trainer: the order of the sentences
            assert_equal(second_step(run), expected)


@pytest.mark.parametrize("objective", ["isbert", "cutoffs with a queue", "cutoffs with replay"])
def test_rows_sorted_by_length_equal_the_plain_path(mpnet, tmp_path, monkeypatch, objective):
    monkeypatch.setattr(speed, "SORTED_TOKENS", 40)
    monkeypatch.setattr(speed, "FEWEST_TOKENS", 0)
    run = trainer_of(mpnet, tmp_path, **OBJECTIVES[objective])
    before = {name: x.clone() for name, x in run.model.state_dict().items()}
    torch.manual_seed(run.args.seed)
    rows = run.get_batch_samples(iter(run.get_train_dataloader()), 1, run.args.device)[0][0]
    assert len({part.features["input_ids"].shape[1] for part in rows["split_batch"].parts}) > 3
    torch.manual_seed(run.args.seed)
    found = second_step(run)
    run.model.load_state_dict(before)  # also the queue
    run.model.zero_grad()
    run.model.forward_pass = None
    torch.manual_seed(run.args.seed)
    assert_equal(found, second_step(run))


def test_rows_sorted_by_length_may_be_padded_on_the_left(mpnet, tmp_path, monkeypatch):
    monkeypatch.setattr(speed, "FEWEST_TOKENS", 0)
    run = trainer_of(mpnet, tmp_path)
    texts = ["dog", "the dog sees the old cat"]
    for side in ("left", "right"):
        batch = run.processing_class(texts, padding=True, padding_side=side, return_tensors="pt")
        found = run.model.eval().embed_with(None, batch["input_ids"], batch["attention_mask"])
        torch.testing.assert_close(found, torch.from_numpy(run.encode(texts)), atol=1e-5, rtol=0)


def test_options_choose_the_path(tmp_path, bert):
    plans = [
        trainer_of(bert, tmp_path, **options).model.forward_pass.plan
        for options in ({}, dict(padding_free=False), dict(gradient_cache_chunk_size=10))
    ]
    assert [plan.packs for plan in plans] == [True, False, True]
    assert [plan.chunk_size for plan in plans] == [None, None, 10]


@pytest.mark.parametrize(
    "model, objective",
    [("bert", "simcse"), ("bert", "two rates, maps and MLM"), ("distilbert", "two rates, maps and MLM")],
)
def test_padded_rows_have_the_dropout_of_the_plain_path(request, tmp_path, model, objective):
    run = trainer_of(request.getfixturevalue(model), tmp_path, **OBJECTIVES[objective], padding_free=False)
    before = {name: x.clone() for name, x in run.model.state_dict().items()}
    found = second_step(run, dropout=True)
    run.model.load_state_dict(before)  # also the queue
    run.model.zero_grad()
    run.model.forward_pass = None
    torch.manual_seed(run.args.seed)  # for the same sentences
    expected = second_step(run, dropout=True)
    assert_equal(found, expected)
    if objective == "simcse":
        torch.manual_seed(run.args.seed)
        without = second_step(run)
        assert (without[0] - expected[0]).abs() > 1e-4, "or there is no dropout"


class NoEmbeddings(View):
    """Leaves the second view nothing of its tokens but their number."""

    scales_embeddings = True
    keeps_tokens = True

    def change(self, tokens, generator):
        return tokens

    def factors(self, is_word, width, view, generator):
        return torch.zeros(1, width) if view == 1 else None


@pytest.mark.parametrize("model", ["bert", "distilbert", "decoder"])
def test_a_view_scales_the_output_of_the_embedding_layer(request, tmp_path, model):
    args = InforMinTrainingArguments(str(tmp_path), **FOUR_STEPS, eval_strategy="no", objective="simcse")
    how = dict(train_dataset=make_sentences(96), view=NoEmbeddings())
    run = InforMinTrainer(str(request.getfixturevalue(model)), args, **how)
    set_dropout(run.model.base_model, 0.0)
    run.model.train()
    for fast in (True, False):
        if not fast:
            run.model.forward_pass = None
        rows = run.get_batch_samples(iter(run.get_train_dataloader()), 1, run.args.device)[0][0]
        assert ("split_batch" in rows) == fast
        first, second = forward(run.model, rows).pooler_output.chunk(2)
        lengths = rows["attention_mask"].sum(1)[:16]
        for one in range(16):
            for other in range(one):
                assert torch.allclose(second[one], second[other], atol=1e-5) or lengths[one] != lengths[other]
                assert not torch.allclose(first[one], first[other], atol=1e-2)
    texts = make_sentences(2)
    assert not np.allclose(*run.encode(texts), atol=1e-2), "evaluation has no view"


def test_what_has_no_embedding_layer_to_scale_is_refused(tmp_path, bert):
    folder = str(tmp_path / "static")
    SentenceTransformer(modules=[StaticEmbedding(tokenizer_of(bert), embedding_dim=16)]).save(folder)
    with raises_usage("view"):
        trainer_of(folder, tmp_path, view="augment")
    with raises_usage("torch_compile"):
        trainer_of(bert, tmp_path, view="augment", torch_compile=True)


def test_a_table_of_token_vectors_has_the_plain_path(tmp_path, bert):
    folder = str(tmp_path / "static")
    SentenceTransformer(modules=[StaticEmbedding(tokenizer_of(bert), embedding_dim=16), Normalize()]).save(folder)
    assert_equal(*(second_step(trainer_of(folder, tmp_path, view="crop", fast=fast)) for fast in (True, False)))


def test_the_plain_path_leaves_out_the_prompt_as_the_model_does(tmp_path, bert):
    folder = save_sentence_transformer(tmp_path / "model", bert, pooling="mean")
    pooling = folder / "1_Pooling" / "config.json"
    pooling.write_text(pooling.read_text().replace('"include_prompt": true', '"include_prompt": false'))
    fast = second_step(trainer_of(folder, tmp_path, prompt="the old "))
    run = trainer_of(folder, tmp_path, prompt="the old ", fast=False)
    assert_equal(fast, second_step(run))
    assert run.model.prompt_tokens > 0


@pytest.mark.parametrize("objective", ["MLM", "micse"])
def test_a_step_of_the_trainer_is_the_step_of_the_file(bert, tmp_path, objective):
    """Bit for bit, with dropout."""
    options = OBJECTIVES[objective]
    run = trainer_of(bert, tmp_path, fast=False, **options)
    weights = {name: x.clone() for name, x in run.model.state_dict().items()}
    batch = PadRows(run.processing_class)([run.train_dataset[place] for place in range(16)])
    stack = StackedViews(SentenceTokens(run.processing_class), run.objective.masking, run.objective.view)
    run.model.train()
    torch.manual_seed(0)
    loss = plain_step(run.model, run.terms, batch, stack, seed=1)
    expected = {name: x.grad.clone() for name, x in run.model.named_parameters() if x.grad is not None}
    run.model.zero_grad()
    run.model.load_state_dict(weights)
    run.current_gradient_accumulation_steps = 1
    torch.manual_seed(0)
    assert run.training_step(run.model, stack(batch, 1)).equal(loss)
    found = {name: x.grad for name, x in run.model.named_parameters() if x.grad is not None}
    assert found.keys() == expected.keys() and all(x.equal(expected[name]) for name, x in found.items())


def test_a_plain_run_trains_resumes_and_says_so(bert, tmp_path):
    how = dict(save_strategy="steps", save_steps=2, fast=False)
    whole = trainer_of(bert, tmp_path / "run", **how)
    whole.train()
    assert whole.record().options["fast"] is False
    last = {name: x.clone() for name, x in whole.model.state_dict().items()}
    shutil.rmtree(tmp_path / "run" / "checkpoint-4")
    resumed = trainer_of(bert, tmp_path / "run", **how)
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    assert all(x.equal(last[name]) for name, x in resumed.model.state_dict().items())
    with raises_usage(option="resume_from_checkpoint", found="fast"):
        shutil.rmtree(tmp_path / "run" / "checkpoint-4")
        other = trainer_of(bert, tmp_path / "run", save_strategy="steps", save_steps=2)
        other.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))


@pytest.mark.parametrize(
    "name, value", [("padding_free", True), ("cuda_graphs", True), ("gradient_cache_chunk_size", 8)]
)
def test_the_plain_path_has_no_part_of_the_fast_one(tmp_path, bert, name, value):
    with raises_usage(option=name, found="fast"):
        trainer_of(bert, tmp_path, fast=False, **{name: value})
