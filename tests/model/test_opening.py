"""Finished models are opened as sentence-transformers opens them, and no code in their files runs."""

import json
import logging
import os
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dense, Pooling, Router, StaticEmbedding, Transformer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModel

import informin
from informin.errors import UsageError
from informin.fast.precision import weights_sha256
from informin.model import open as opening
from informin.model.checksums import model_sha256
from informin.model.open import (
    embeddings_of_tokens,
    limit_length,
    load_model,
    name_of,
    raise_if_code_in_adapter,
    source_of,
)
from informin.model.pooling import POOLERS
from tests.conftest import (
    FOUR_STEPS,
    how_to_train,
    make_sentences,
    raises_usage,
    save_bert,
    save_letters,
    save_roberta,
    save_sentence_transformer,
    tokenizer_of,
)
from trainer_informin import InforMinTrainer

TEXTS = ["dog", *make_sentences(20), "the old dog sleeps under the red house and not in the street today"]


def change(folder: Path, file: str, **values) -> None:
    """Change values of a JSON file, which may be missing."""
    path = folder / file
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(before | values))


@pytest.fixture
def model(tmp_path, bert) -> Path:
    return save_sentence_transformer(tmp_path / "model", bert)


@pytest.mark.parametrize("pooling", ["cls", "mean", "lasttoken", "max"])
def test_embeddings_are_those_of_sentence_transformers(tmp_path, encoder, pooling):
    folder = save_sentence_transformer(tmp_path / "model", encoder, Dense(32, 8), pooling=pooling)
    opened = load_model(folder)
    assert opened.dtype == torch.float32 and not opened.training
    expected = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(opened.encode(TEXTS), expected, atol=1e-5)
    assert load_model(opened) is opened
    assert (name_of(opened), source_of(opened).folder) == (str(folder), folder)


def test_half_precision_weights_are_opened_in_float32(tmp_path, model):
    save_file(
        {name: x.half() for name, x in load_file(model / "model.safetensors").items()}, model / "model.safetensors"
    )
    change(model, "config.json", dtype="float16")
    assert load_model(model).dtype == torch.float32


@pytest.mark.parametrize("pooler", ["first_last", "embeddings_last", "last2", "cls", "mean", "last"])
def test_poolers_by_name(bert, pooler):
    opened, plain = load_model(bert, pooler=pooler), AutoModel.from_pretrained(bert).eval()
    batch = tokenizer_of(bert)(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        layers = plain(**batch, output_hidden_states=True).hidden_states
    mask, last = batch["attention_mask"][..., None], layers[-1]

    def mean(x):
        return (x * mask).sum(1) / mask.sum(1)

    expected = {
        "first_last": mean((layers[1] + last) / 2),
        "embeddings_last": mean((layers[0] + last) / 2),
        "last2": mean((layers[-2] + last) / 2),
        "cls": last[:, 0],
        "mean": mean(last),
        "last": last[torch.arange(len(TEXTS)), batch["attention_mask"].sum(1) - 1],
    }[pooler]
    np.testing.assert_allclose(opened.encode(TEXTS), expected.numpy(), atol=5e-5)


def test_a_model_without_stored_pooling_needs_one(bert):
    with raises_usage(option="pooler"):
        load_model(bert)
    with raises_usage(option="pooler"):
        load_model(bert, pooler="mlp")
    with raises_usage(option="pooler"):
        load_model(bert, pooler="cls_before_pooler")


@pytest.mark.parametrize("device", ["gpu", "cuda:99"])
def test_devices_that_torch_cannot_use_are_errors(model, device):
    with raises_usage("device", found=device):
        load_model(model, device=device)


@pytest.mark.parametrize("name", ["./gone", "gone/deeper/model", "/gone"])
def test_paths_that_do_not_exist_are_named_as_such(name):
    with raises_usage("model_name", found="neither a folder nor a name on the Hub"):
        load_model(name)


def test_a_folder_without_a_model_is_named_as_such(tmp_path):
    """As the output folder of an interrupted run, whose models are in its checkpoints: no pooling would help."""
    (tmp_path / "checkpoint-1").mkdir()
    (tmp_path / "checkpoint-1" / "config.json").write_text("{}")
    for pooler in ("auto", "mean"):
        with raises_usage("model_name", found="a folder without"):
            load_model(str(tmp_path), pooler=pooler)


@pytest.mark.parametrize("side", ["left", "right"])
def test_an_embedding_does_not_depend_on_the_padding(model, side):
    change(model, "tokenizer_config.json", padding_side=side)
    opened = load_model(model)
    np.testing.assert_allclose(opened.encode(TEXTS, batch_size=64), opened.encode(TEXTS, batch_size=1), atol=1e-5)


def test_a_model_in_memory_is_padded_as_one_from_files(model, tmp_path):
    """In training, too, and the object stays as it was."""
    given = SentenceTransformer(str(model), device="cpu")
    expected = given.encode(TEXTS)
    given.tokenizer.padding_side = "left"
    for size in (1, 64):
        np.testing.assert_allclose(informin.embed(given, TEXTS, batch_size=size), expected, rtol=1e-5, atol=1e-6)
    options = how_to_train(str(tmp_path / "out"), objective="simcse", **FOUR_STEPS, report_to=[])
    run = InforMinTrainer(given, train_dataset=make_sentences(40), **options)
    assert run.trained.packing and run.trained.tokenizer.padding_side == "right"
    found = run.trained.finished.encode(TEXTS, output_value="token_embeddings")  # which is padded
    alone = run.trained.finished.encode(TEXTS[0], output_value="token_embeddings")
    torch.testing.assert_close(found[0], alone, rtol=1e-5, atol=1e-5)
    assert given.tokenizer.padding_side == "left"


def test_a_model_that_torch_quantized_is_embedded_and_indexed(model, tmp_path):
    given = SentenceTransformer(str(model), device="cpu")
    before = model_sha256(given)
    torch.ao.quantization.quantize_dynamic(given, {torch.nn.Linear}, torch.qint8, inplace=True)
    assert model_sha256(given) == model_sha256(given) != before
    expected = given.encode(TEXTS)
    found = informin.embed(given, TEXTS, output=tmp_path / "rows.npy")
    assert (np.asarray(found) * expected).sum(1).min() > 0.99
    index = informin.Index.build(given, TEXTS)
    assert index.search(TEXTS[0], k=1)[0].text == TEXTS[0]
    with raises_usage(option="model_name"):  # no folder can hold such weights
        informin.fit(given, TEXTS, task="search")


def test_long_texts_fit_the_positions(tmp_path, roberta):
    """RoBERTa's positions start after the padding index, so two fewer tokens fit than there are positions."""
    folder = save_sentence_transformer(tmp_path / "model", roberta)
    change(folder, "tokenizer_config.json", model_max_length=10**6)
    change(folder, "sentence_bert_config.json", max_seq_length=None)
    opened = load_model(folder)
    assert opened.max_seq_length == 64
    assert np.isfinite(opened.encode(["the dog " * 200])).all()
    assert load_model(folder, max_seq_length=10).max_seq_length == 10


def test_missing_weights_are_an_error(model):
    weights = load_file(model / "model.safetensors")
    weights.pop("encoder.layer.1.output.dense.weight")
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    with raises_usage(option="model_name"):
        load_model(model)


def test_threads_that_open_models_do_not_share_what_is_missing(model, bert, tmp_path):
    intact, log = save_sentence_transformer(tmp_path / "intact", bert), logging.getLogger("transformers.modeling_utils")
    weights = load_file(model / "model.safetensors")
    weights.pop("encoder.layer.1.output.dense.weight")
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    level, start = log.level, threading.Barrier(2)

    def opened(folder: Path) -> list[bool]:
        start.wait()
        return [is_opened(folder) for _ in range(8)]

    def is_opened(folder: Path) -> bool:
        try:
            return bool(load_model(folder, device="cpu"))
        except UsageError:
            return False

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(opened, [intact, model])) == [[True] * 8, [False] * 8]
    assert log.level == level and not log.filters


@pytest.mark.parametrize("kind", ["dense", "plain"])
def test_opening_a_model_draws_no_random_numbers(kind, bert, tmp_path):
    folder = save_sentence_transformer(tmp_path / "model", bert, Dense(32, 8)) if kind == "dense" else bert
    before = torch.get_rng_state()
    load_model(folder, pooler="auto" if kind == "dense" else "mean", device="cpu")
    assert torch.equal(torch.get_rng_state(), before)


def test_weights_of_another_shape_and_damaged_files_are_errors(model, tmp_path):
    change(model, "config.json", intermediate_size=32)
    with raises_usage(option="model_name"):
        load_model(model)
    (model / "model.safetensors").write_bytes(b"\0" * 100)
    with raises_usage(option="model_name"):
        load_model(model)
    with raises_usage(option="model_name"):
        load_model(tmp_path / "nowhere", pooler="cls")


# Code in a model's files. Each marker creates the folder `ran`.

CODE = "import os; os.makedirs({ran!r}, exist_ok=True)\n"


def pickled(folder: Path, ran: Path, **_) -> None:
    """Weights are a pickle that creates the folder when it is loaded."""

    class Marker:
        def __reduce__(self):
            return os.mkdir, (str(ran),)

    torch.save(load_file(folder / "model.safetensors") | {"marker": Marker()}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def pickled_and_allowed(folder: Path, ran: Path, key: str) -> None:
    pickled(folder, ran)
    change(folder, "sentence_bert_config.json", **{key: {"weights_only": False, "use_safetensors": False}})


def python_file(folder: Path, ran: Path) -> None:
    (folder / "code.py").write_text(CODE.format(ran=str(ran)) + "class M:\n    pass\n")


def module_of_its_own(folder: Path, ran: Path, **_) -> None:
    python_file(folder, ran)
    modules = json.loads((folder / "modules.json").read_text())
    modules[-1]["type"] = "code.M"
    (folder / "modules.json").write_text(json.dumps(modules))


def auto_map(folder: Path, ran: Path, file: str, key: str) -> None:
    python_file(folder, ran)
    change(folder, file, auto_map={key: "code.M"}, model_type="own" if file == "config.json" else "bert")


def trusting_arguments(folder: Path, ran: Path, key: str) -> None:
    python_file(folder, ran)
    change(folder, "config.json", auto_map={"AutoModel": "code.M", "AutoConfig": "code.M"}, model_type="own")
    change(folder, "sentence_bert_config.json", **{key: {"trust_remote_code": True}})


def peft_module(folder: Path, ran: Path, **_) -> None:
    python_file(folder, ran)
    mapping = {"base_model_class": "M", "parent_library": "code"}
    change(folder, "adapter_config.json", peft_type="LORA", base_model_name_or_path=str(folder), auto_mapping=mapping)


def activation(folder: Path, ran: Path, **_) -> None:
    python_file(folder, ran)
    (folder / "2_Dense").mkdir()
    values = dict(in_features=32, out_features=32, bias=True, activation_function="code.M")
    (folder / "2_Dense" / "config.json").write_text(json.dumps(values))
    save_file(
        {"linear.weight": torch.eye(32), "linear.bias": torch.zeros(32)}, folder / "2_Dense" / "model.safetensors"
    )
    modules = json.loads((folder / "modules.json").read_text())
    modules[-1] = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    (folder / "modules.json").write_text(json.dumps(modules))


HOSTILE = {
    "a pickle": (pickled, {}),
    "a pickle, model_args": (pickled_and_allowed, dict(key="model_args")),
    "a pickle, model_kwargs": (pickled_and_allowed, dict(key="model_kwargs")),
    "a module": (module_of_its_own, {}),
    "auto_map of the model": (auto_map, dict(file="config.json", key="AutoModel")),
    "auto_map of the configuration": (auto_map, dict(file="config.json", key="AutoConfig")),
    "auto_map of the tokenizer": (auto_map, dict(file="tokenizer_config.json", key="AutoTokenizer")),
    "trust in model_args": (trusting_arguments, dict(key="model_args")),
    "trust in config_args": (trusting_arguments, dict(key="config_args")),
    "trust in processor_kwargs": (trusting_arguments, dict(key="processor_kwargs")),
    "an adapter's library": (peft_module, {}),
    "an activation": (activation, {}),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_code_in_a_folder_does_not_run(model, tmp_path, monkeypatch, case):
    monkeypatch.chdir(model)  # peft and sentence-transformers import modules by name
    monkeypatch.syspath_prepend(str(model))
    build, options = HOSTILE[case]
    build(model, tmp_path / "ran", **options)
    try:
        load_model(model)
    except UsageError:
        pass
    assert not (tmp_path / "ran").exists()


IMPORTING = {
    "auto_mapping": {"auto_mapping": {"base_model_class": "M", "parent_library": "code"}},
    "Megatron": {"megatron_config": {"layers": 1}, "megatron_core": "code"},  # of which peft has a list since 0.20
    "Megatron by default": {"megatron_config": {"layers": 1}},
}


@pytest.mark.parametrize("names", IMPORTING)
@pytest.mark.parametrize("routes", [None, "router_config.json", "config.json"])
def test_modules_that_peft_would_import(model, names, routes):
    folder = model
    if routes:
        (model / "modules.json").write_text('[{"path": "0_Router", "type": "sentence_transformers.models.Router"}]')
        folder = model / "0_Router" / "query"
        folder.mkdir(parents=True)
        change(model / "0_Router", routes, types={"query": "x.Transformer", ".": "x.Router", "../0_Router": "x.Router"})
    change(folder, "adapter_config.json", peft_type="LORA", auto_mapping=None)
    raise_if_code_in_adapter(str(model))
    change(folder, "adapter_config.json", **IMPORTING[names])
    with raises_usage("model_name"):
        raise_if_code_in_adapter(str(model))


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
@pytest.mark.parametrize("file", ["config.json", "sentence_bert_config.json"])
def test_attention_from_the_hub_is_not_used(model, file, key):
    values = {key: "kernels-community/own-kernel"}
    change(model, file, **(values if file == "config.json" else {"model_args": values}))
    try:
        assert load_model(model)[0].config._attn_implementation in ("sdpa", "eager")
    except UsageError:  # an argument that transformers does not have
        assert (file, key) == ("sentence_bert_config.json", "_attn_implementation")


def test_safe_arguments_win_over_the_folder(model, monkeypatch):
    seen = {}
    loaded = Transformer._load_model

    def spy(self, *args, **how):
        seen.update(how)
        return loaded(self, *args, **how)

    monkeypatch.setattr(Transformer, "_load_model", spy)
    change(model, "sentence_bert_config.json", model_args=dict.fromkeys(opening.SAFE, True))
    load_model(model)
    assert {name: seen[name] for name in opening.SAFE} == opening.SAFE and seen["trust_remote_code"] is False


def test_a_model_in_memory_keeps_its_pooling_and_length(bert):
    model = load_model(bert, pooler="mean")
    for option, value in {"pooler": "cls", "max_seq_length": 8}.items():
        with raises_usage(option=option):
            load_model(model, **{option: value})
        with raises_usage(option=option):
            informin.embed(SentenceTransformer(modules=list(model)), TEXTS, **{option: value})


# Checksums


def test_checksums_change_with_what_an_embedding_depends_on(tmp_path, bert, roberta):
    def opened(name: str, source: Path = bert, **how):
        return load_model(save_sentence_transformer(tmp_path / name, source, **how))

    first, same = opened("first"), opened("same")
    assert model_sha256(first) == model_sha256(same) and weights_sha256(first) == weights_sha256(same)
    same.encode(TEXTS)  # a tokenizer keeps the truncation and padding of its last call
    assert model_sha256(first) == model_sha256(same)
    others = [opened("cls", pooling="cls"), opened("plain", normalize=False), opened("roberta", roberta)]
    others.append(opened("prompt", prompts={"query": "the "}, default_prompt_name="query"))
    short, wide = opened("short"), opened("wide")
    short.max_seq_length, wide.truncate_dim = 10, 8
    moved = opened("moved")
    next(moved.parameters()).data[3, 3] += 1e-3
    others.append(opened("split"))
    others[-1].tokenizer.split_special_tokens = True  # of a text that has [SEP]
    for weight in (1.0, 2.0):  # not BERT's pooler, which no embedding depends on
        head = Dense(32, 32)
        head.linear.weight.data.fill_(weight)
        others.append(SentenceTransformer(modules=OrderedDict(encoder=first[0], pooling=first[1], pooler=head)))
    sums = [model_sha256(one) for one in (first, *others, short, wide, moved)]
    assert len(set(sums)) == len(sums) and weights_sha256(moved) != weights_sha256(first)
    assert model_sha256(first, "a prompt") != model_sha256(first, "")


def test_checksums_change_with_the_tokenizer_and_the_length_of_each_route(bert):
    def routed() -> SentenceTransformer:
        routes = {side: [Transformer(str(bert)), Pooling(32)] for side in ("query", "document")}
        return SentenceTransformer(modules=[Router(routes, default_route="document")], device="cpu")

    one, other = routed(), routed()
    assert model_sha256(one) == model_sha256(other)
    for side in ("query", "document"):
        other[0].sub_modules[side][0].tokenizer.truncation_side = "left"
        assert model_sha256(one) != model_sha256(other)
        other[0].sub_modules[side][0].tokenizer.truncation_side = "right"
        length, other[0].sub_modules[side][0].max_seq_length = other.max_seq_length, 4
        assert model_sha256(one) != model_sha256(other)
        other[0].sub_modules[side][0].max_seq_length = length


class Power(torch.nn.Module):
    def __init__(self, exponent: Any):
        super().__init__()
        self.exponent = exponent


def test_checksums_change_with_a_module_that_has_no_settings_in_files(st_mean):
    first = load_model(st_mean)
    modules = [*map(Power, (2.0, 3.0, [1, 2], [2, 1], np.ones(2000), np.eye(2000)[0])), torch.nn.ReLU()]
    modules += [torch.nn.Sequential(Power(exponent)) for exponent in (2.0, 3.0)]
    models = [SentenceTransformer(modules=[*first, own]) for own in modules]
    sums = [model_sha256(one) for one in (first, *models)]
    assert len(set(sums)) == len(sums) and model_sha256(models[0].train()) == sums[1]


def test_checksums_change_with_how_low_rank_matrices_are_used(bert):
    def adapted(alpha: int) -> SentenceTransformer:
        model = load_model(bert, pooler="cls")
        model.add_adapter(LoraConfig(r=2, lora_alpha=alpha, target_modules=["query"], init_lora_weights=True))
        for name, weight in model.named_parameters():
            weight.data.fill_(0.1) if "lora_" in name else None
        return model

    one, same, other = adapted(2), adapted(2), adapted(4)
    assert model_sha256(one) == model_sha256(same) != model_sha256(other)
    same[0].auto_model.disable_adapters()
    assert model_sha256(one) != model_sha256(same)


@pytest.mark.parametrize("has_modules", [True, False])
def test_a_revision_selects_low_rank_matrices(logged_in, bert, tmp_path, has_modules):
    """sentence-transformers would load those of the default branch."""
    model = load_model(bert, pooler="cls", device="cpu")
    model.add_adapter(LoraConfig(r=2, target_modules=["query"], init_lora_weights=False))
    (model if has_modules else model[0].auto_model).save_pretrained(str(tmp_path))
    model.tokenizer.save_pretrained(tmp_path)
    files = {path.relative_to(tmp_path).as_posix(): path for path in tmp_path.rglob("*") if path.is_file()}
    first = logged_in.add_repo("alice/adapted", {name: path.read_bytes() for name, path in files.items()})
    weights = {name: 2 * weight for name, weight in load_file(tmp_path / "adapter_model.safetensors").items()}
    save_file(weights, files["adapter_model.safetensors"], {"format": "pt"})
    logged_in.commit("alice/adapted", {"adapter_model.safetensors": files["adapter_model.safetensors"].read_bytes()})
    read = [load_model("alice/adapted", pooler="cls", device="cpu", revision=one) for one in (first, None)]
    assert np.allclose(read[0].encode(TEXTS), model.encode(TEXTS), atol=1e-5)
    assert not np.allclose(read[1].encode(TEXTS), model.encode(TEXTS), atol=1e-2)


def test_own_pooling_can_be_replaced(tmp_path, bert):
    folder = save_sentence_transformer(tmp_path / "model", bert, prompts={"query": "the "}, default_prompt_name="query")
    opened = load_model(folder, pooler="cls")
    assert [type(module) for module in opened] == [Transformer, Pooling] and opened.default_prompt_name == "query"
    assert not np.allclose(np.linalg.norm(opened.encode(TEXTS), axis=1), 1)


def test_another_pooling_keeps_the_similarity_and_the_truncation(tmp_path, bert):
    folder = save_sentence_transformer(tmp_path / "model", bert, similarity_fn_name="dot", truncate_dim=8)
    for pooler in ("auto", "cls", "first_last"):
        opened = load_model(folder, pooler=pooler)
        assert opened.similarity_fn_name == "dot" and opened.encode(TEXTS).shape == (len(TEXTS), 8)


def test_another_pooling_leaves_out_the_prompt_as_the_model_does(tmp_path, bert):
    folder = save_sentence_transformer(tmp_path / "whole", bert, normalize=False)
    stored = SentenceTransformer(str(folder), device="cpu")
    stored.set_pooling_include_prompt(False)
    stored.save_pretrained(str(tmp_path / "without"))

    def vectors(name, pooler):
        return load_model(tmp_path / name, pooler=pooler, device="cpu").encode(TEXTS, prompt="the cat ")

    np.testing.assert_allclose(vectors("without", "mean"), stored.encode(TEXTS, prompt="the cat "), atol=1e-5)
    assert not np.allclose(vectors("without", "mean"), vectors("whole", "mean"), atol=1e-3)
    np.testing.assert_array_equal(vectors("without", "cls"), vectors("whole", "cls"))


@pytest.mark.parametrize("pooler", ["first_last", "embeddings_last", "last2"])
def test_a_pooling_of_two_layers_leaves_out_the_prompt_as_the_model_does(tmp_path, bert, pooler):
    stored = SentenceTransformer(str(save_sentence_transformer(tmp_path / "m", bert, normalize=False)), device="cpu")
    stored.set_pooling_include_prompt(False)
    stored.save_pretrained(str(tmp_path / "without"))
    model = load_model(tmp_path / "without", pooler=pooler, device="cpu")
    prompt = len(model.tokenizer("the cat ")["input_ids"]) - 1  # without [SEP]
    for text in TEXTS:
        layers = model[0].auto_model(**model.tokenizer("the cat " + text, return_tensors="pt")).hidden_states
        tokens = sum(layers[layer] for layer in POOLERS[pooler]) / 2
        expected = tokens[0, prompt:].mean(0).detach()
        np.testing.assert_allclose(model.encode(text, prompt="the cat "), expected, atol=1e-5)


def test_models_of_other_folders_have_their_own_names(tmp_path):
    for save in (save_bert, save_roberta):
        folder = save(tmp_path / save.__name__)
        assert source_of(load_model(folder, pooler="cls")).name == str(folder)


@pytest.mark.parametrize("save", [save_letters, save_bert])
@pytest.mark.parametrize("length", [2, 0, -3])
def test_texts_without_tokens_are_not_embedded(tmp_path, save, length):
    """A static model would return zeros, and another one the vector of its special tokens."""
    with raises_usage(option="max_seq_length"):
        load_model(save(tmp_path / "model"), pooler="mean", max_seq_length=length)


@pytest.mark.parametrize(("save", "positions"), [(save_bert, 66), (save_roberta, 64)])
def test_a_length_above_the_positions_of_the_model_is_an_error(tmp_path, save, positions):
    """RoBERTa, which has 66, starts to count after its padding token."""
    folder = save(tmp_path / "model", max_position_embeddings=66)
    assert load_model(folder, pooler="mean", max_seq_length=positions).encode("the cat " * 99).shape == (32,)
    with raises_usage(option="max_seq_length", needed=str(positions)):
        load_model(folder, pooler="mean", max_seq_length=positions + 1)


def with_token(folder: Path, token: str, special: bool) -> Path:
    """Add a token to the tokenizer of a folder, and no embedding to the model."""
    path = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    (tokenizer.add_special_tokens if special else tokenizer.add_tokens)([token])
    tokenizer.save(str(path))
    return folder


@pytest.mark.parametrize("save, pooler", [(save_letters, "auto"), (save_bert, "mean"), (save_roberta, "mean")])
def test_a_tokenizer_with_more_tokens_than_embeddings_is_an_error(tmp_path, save, pooler):
    """Torch has an error for the first text with such a token, and a GPU fails as a whole."""
    folder = with_token(save(tmp_path / "model"), "[IMAGE]", special=True)
    assert load_model(folder, pooler=pooler).encode("the dog").shape[0] > 1  # which no text has, as in EmbeddingGemma
    with_token(folder, "zebra", special=False)
    with raises_usage(option="model_name", found="tokens"):
        load_model(folder, pooler=pooler)


def test_an_encoder_without_a_table_of_tokens_is_not_compared(st_mean, monkeypatch):
    """Such as one that ONNX Runtime runs, or an encoder of images."""
    model = SentenceTransformer(str(st_mean), device="cpu")

    def missing() -> None:
        raise NotImplementedError

    monkeypatch.setattr(model[0].auto_model, "get_input_embeddings", missing)
    runs_elsewhere = SimpleNamespace(auto_model=torch.nn.Embedding(2, 2))
    assert [embeddings_of_tokens(part) for part in (*model, runs_elsewhere)] == [None] * (len(model) + 1)


def test_tokens_added_to_a_model_in_memory_need_embeddings(st_mean):
    model = SentenceTransformer(str(st_mean), device="cpu")
    model.tokenizer.add_tokens(["zebra"])
    with raises_usage(option="model_name", found="tokens"):
        load_model(model)
    model[0].auto_model.resize_token_embeddings(len(model.tokenizer))
    assert load_model(model).encode("zebra").shape == (32,)


def test_texts_of_static_embeddings_are_truncated(tmp_path):
    """Their class has no maximum length of its own."""
    folder = save_letters(tmp_path / "letters")
    model, whole = load_model(folder, max_seq_length=3, device="cpu"), load_model(folder, device="cpu")
    np.testing.assert_array_equal(model.encode(["abcdef", "ab"]), whole.encode(["abc", "ab"]))
    limit_length(model, whole.max_seq_length)
    np.testing.assert_array_equal(model.encode(["abcdef"]), whole.encode(["abcdef"]))


def test_each_route_of_a_router_is_truncated(tmp_path, bert, caplog):
    """By load_model, and by its own limit, which is that of the side that is embedded."""
    routes = {"query": list(load_model(save_letters(tmp_path / "letters"), device="cpu"))[:1]}
    width = routes["query"][0].get_embedding_dimension()
    routes["document"] = [Transformer(str(bert)), Pooling(32), Dense(32, width)]
    routed = SentenceTransformer(modules=[Router(routes, default_route="query")], device="cpu")
    routed.save_pretrained(str(tmp_path / "router"))
    long = ["the dog sees the cat"]
    whole, short = (load_model(tmp_path / "router", max_seq_length=length, device="cpu") for length in (None, 4))
    np.testing.assert_array_equal(short.encode_query(["abcdef"]), whole.encode_query(["abcd"]))
    np.testing.assert_allclose(short.encode_document(long), whole.encode_document(["the dog"]), atol=1e-6)
    with caplog.at_level("INFO"):
        for side, number in {"document": 1, "query": 0}.items():
            caplog.clear()
            informin.embed(whole, ["dog " * 100], side=side)
            assert sum("truncated to 66 tokens" in one.message for one in caplog.records) == number


def test_a_router_without_a_default_route_needs_a_side(bert):
    routes = {side: [Transformer(str(bert)), Pooling(32)] for side in ("query", "document")}
    model = SentenceTransformer(modules=[Router(routes, allow_empty_key=False)], device="cpu")
    assert informin.embed(model, ["dog"], side="query").shape == (1, 32)
    for call in (informin.embed, informin.duplicates):
        with raises_usage("side", needed="query, document"):
            call(model, ["dog", "cat"])


def test_a_configuration_that_asks_for_attention_maps_is_opened_and_saved(tmp_path, bert):
    folder = save_sentence_transformer(tmp_path / "model", bert)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"output_attentions": True}))
    load_model(folder).save_pretrained(str(tmp_path / "again"))
    expected = SentenceTransformer(str(save_sentence_transformer(tmp_path / "other", bert)), device="cpu").encode(
        ["dog"]
    )
    np.testing.assert_allclose(load_model(tmp_path / "again").encode(["dog"]), expected, atol=1e-5)


@pytest.mark.parametrize("pooler", ["mean", "first_last"])
def test_a_static_model_has_no_hidden_states_to_pool(pooler, tmp_path):
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0, "cat": 1}, unk_token="[UNK]"))
    SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=8)]).save_pretrained(str(tmp_path))
    assert load_model(tmp_path).encode("cat").shape == (8,)
    with raises_usage("pooler", found=pooler, needed="auto"):
        load_model(tmp_path, pooler=pooler)


@pytest.mark.parametrize("kind", [torch.int8, torch.uint8, torch.float16])
def test_a_table_of_model2vec_in_whole_numbers_is_named(tmp_path, kind):
    """sentence-transformers fails on it with an error about gradients."""
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0, "cat": 1}, unk_token="[UNK]"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    modules = [{"idx": 0, "name": "0", "path": ".", "type": "sentence_transformers.models.StaticEmbedding"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "config.json").write_text("{}")
    save_file({"embeddings": torch.ones(2, 8).to(kind)}, tmp_path / "model.safetensors")
    if kind == torch.float16:
        assert load_model(tmp_path).encode("cat").shape == (8,)
        return
    with raises_usage("model_name", found="is a model2vec model with vectors in"):  # not in the name of the folder
        load_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    with raises_usage("model_name"):
        load_model(tmp_path)
