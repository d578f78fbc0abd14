"""Sentences to embeddings by every pooler, against one unpadded sentence at a time; any checkpoint to an encoder."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer, BartConfig, GPT2Config, T5Config

import informin.encoders.encoder as encoders
from informin.encoders.encode import POOLERS, encode
from informin.encoders.encoder import load_encoder, starting_sha256
from informin.encoders.loading import load_config, load_model, load_saved
from informin.errors import UsageError
from informin.publishing.export import export_folder
from modeling_informin import HEAD_FILE
from tests.conftest import WORDS, make_sentences, raises_usage, save_bert, save_roberta, tokenizer_of

SENTENCES = ["the dog", *make_sentences(9), "a", "the dog", " ".join(WORDS), ""]
SETTINGS = {"projection_head": "mlp", "lm_head": False, "pooling": "cls"}


@pytest.fixture(autouse=True)
def quiet():
    """The verbosity of the commands. Otherwise each load reports unused heads."""
    before = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_error()
    yield
    transformers.utils.logging.set_verbosity(before)


@pytest.fixture(scope="module", params=["bert", "roberta"])
def ours(request, tmp_path_factory) -> Path:
    """An exported checkpoint of each architecture. With 3 layers, all poolers differ."""
    save = {"bert": save_bert, "roberta": save_roberta}[request.param]
    start = save(tmp_path_factory.mktemp("start"), num_hidden_layers=3)
    folder = tmp_path_factory.mktemp("ours")
    export_folder(load_model(load_config(str(start)), str(start), SETTINGS), tokenizer_of(start), folder)
    return folder


@pytest.fixture
def copied(bert, tmp_path):
    """Return a function that copies a model folder, for tests that change it."""

    def copy(source: Path = bert, name: str = "copy") -> Path:
        return shutil.copytree(source, tmp_path / name)

    return copy


def change_json(path: Path, **changes) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def one_by_one(model, tokenizer, pooler: str, sentences, **options) -> np.ndarray:
    """Return the embeddings of single sentences, without padding, with a separate implementation of each pooler."""
    embeddings = []
    for sentence in sentences:
        with torch.no_grad():
            batch = tokenizer([sentence], return_tensors="pt", **options)
            layers = [x[0].numpy() for x in model.eval()(**batch, output_hidden_states=True).hidden_states]
        first, last = layers[1], layers[-1]
        if pooler == "mlp":
            weight, bias = (getattr(model.mlp.dense, name).detach().numpy() for name in ("weight", "bias"))
            embeddings.append(np.tanh(weight @ last[0] + bias))
        elif pooler in ("cls", "last"):
            embeddings.append(last[0 if pooler == "cls" else -1])
        else:
            other = {"mean": last, "first_last": first, "embeddings_last": layers[0], "last2": layers[-2]}[pooler]
            embeddings.append(np.mean([token for layer in (other, last) for token in layer], axis=0))
    return np.stack(embeddings)


# Poolers


@pytest.mark.parametrize("pooler", POOLERS)
def test_poolers_equal_one_by_one(ours, pooler):
    """Batches of 5 contain padding, and the last one is smaller."""
    encoder = load_encoder(str(ours), (pooler,), batch_size=5)
    embeddings = encoder(SENTENCES)
    assert list(embeddings) == [pooler] and embeddings[pooler].dtype == np.float32
    expected = one_by_one(encoder.model, encoder.tokenizer, pooler, SENTENCES)
    np.testing.assert_allclose(embeddings[pooler], expected, atol=2e-6)
    assert np.abs(expected[0] - expected[1]).max() > 0.01, "different sentences have different vectors"


def test_several_poolers_in_one_call_equal_single_calls_and_differ(ours):
    encoder = load_encoder(str(ours), POOLERS)
    together = encoder(SENTENCES)
    assert tuple(together) == POOLERS
    for pooler in POOLERS:
        alone = encode(encoder.model, encoder.tokenizer, SENTENCES, poolers=(pooler,))
        np.testing.assert_allclose(together[pooler], alone[pooler], atol=1e-5)
        others = (np.abs(together[pooler] - together[other]).max() for other in POOLERS if other != pooler)
        assert min(others) > 0.01


def test_hidden_states_are_requested_only_if_needed(ours):
    encoder = load_encoder(str(ours))
    asked = []
    encoder.model.register_forward_hook(
        lambda *inputs: asked.append("output_hidden_states" in inputs[2]), with_kwargs=True
    )
    for poolers in (("cls", "mean", "mlp"), ("cls", "last2")):
        encode(encoder.model, encoder.tokenizer, ["the dog"], poolers=poolers)
    assert asked == [False, True]


@pytest.mark.parametrize("batch_size", [1, 4, 64])
def test_progress_adds_up_to_the_sentences(bert, batch_size):
    steps = []
    load_encoder(str(bert), ("cls",), batch_size=batch_size)(SENTENCES, steps.append)
    assert sum(steps) == len(SENTENCES) and (max(steps) <= batch_size or batch_size == 64)


def test_empty_list_of_sentences(bert):
    embeddings = load_encoder(str(bert), ("cls", "last2"))([])
    assert {pooler: x.shape for pooler, x in embeddings.items()} == {"cls": (0, 32), "last2": (0, 32)}


@pytest.mark.parametrize("pooler", ["cls", "mean"])
def test_length_cuts(ours, pooler):
    """7 tokens are 5 words and two special tokens."""
    encoder = load_encoder(str(ours), (pooler,), length=7)
    words = WORDS[:9]
    embeddings = encoder([" ".join(words), " ".join(words[:6]), " ".join(words[:5]), " ".join(words[:4])])[pooler]
    cut = [" ".join(words[:5])] * 3 + [" ".join(words[:4])]
    np.testing.assert_allclose(embeddings, one_by_one(encoder.model, encoder.tokenizer, pooler, cut), atol=2e-6)
    assert np.abs(embeddings[2] - embeddings[3]).max() > 1e-3


@pytest.mark.parametrize("training", [True, False])
def test_training_mode_is_restored(ours, training):
    encoder = load_encoder(str(ours), POOLERS)
    assert not encoder.model.training
    encoder.model.train(training)
    encoder(SENTENCES)
    assert {module.training for module in encoder.model.modules()} == {training}


def test_bf16_is_near_and_comes_back_in_float32(bert):
    plain, short = (load_encoder(str(bert), ("mean",), bf16=bf16)(SENTENCES)["mean"] for bf16 in (False, True))
    assert short.dtype == np.float32
    assert 1e-5 < np.abs(plain - short).max() < 0.1


def test_truncated_sentences_are_counted_exactly(bert):
    """8 tokens hold 6 words, or 6 characters of one, two or three bytes."""
    encoder = load_encoder(str(bert), ("cls",), length=8)
    units = ["dog ", ".", "é ", "中", "😀 "]
    encoder(["", *(unit * 6 for unit in units), "a" * 90])
    assert encoder.truncated == set()
    long = {unit * 7 for unit in units}
    encoder(["the dog", *sorted(long)[:2]])
    encoder(["the cat", *sorted(long)[2:], "." * 6])
    assert encoder.truncated == long


# Our own checkpoints


def test_our_checkpoint_says_how_it_is_read(ours):
    encoder = load_encoder(str(ours))
    assert (encoder.name, encoder.poolers, encoder.normalized, encoder.bf16) == (str(ours), ("cls",), False, False)
    assert encoder.length == {"bert": 66, "roberta": 64}[encoder.model.config.model_type]
    assert type(encoder.model).__name__.endswith("ForInforMinCL")
    assert load_encoder(str(ours), ("mean", "cls", "mlp", "mean")).poolers == ("mean", "cls", "mlp")
    with raises_usage(option="pooler", found="is auto mean", needed="auto alone"):
        load_encoder(str(ours), ("auto", "mean"))
    trained = load_file(ours / HEAD_FILE)["dense.weight"]
    assert torch.equal(encoder.model.mlp.dense.weight, trained)


def test_checkpoint_without_its_projection_head(ours, tmp_path):
    """Saving with a plain class loses the head but keeps its settings."""
    plain = saved_again(ours, tmp_path / "saved-again")
    assert json.loads((plain / "config.json").read_text())["informin"]["projection_head"] == "mlp"
    expected = load_encoder(str(ours))(SENTENCES)["cls"]
    first, second = load_encoder(str(plain)), load_encoder(str(plain))
    np.testing.assert_allclose(first(SENTENCES)["cls"], expected, atol=1e-6)
    assert first.poolers == ("cls",) and first.weights_sha256() == second.weights_sha256()
    with raises_usage(option="pooler", found=f"is mlp, but {plain} has no projection head"):
        load_encoder(str(plain), ("mlp",))


# Checkpoints of plain transformers


def test_plain_checkpoint_requires_a_pooler(bert):
    found = f"is auto, but the pooling of {bert} is unknown: it has no sentence-transformers files"
    needed = "one of: cls, mean, last, first_last, embeddings_last, last2, mlp"
    with raises_usage(option="pooler", found=found, needed=needed):
        load_encoder(str(bert))


@pytest.mark.parametrize("pooler", [pooler for pooler in POOLERS if pooler != "mlp"])
def test_plain_checkpoint_with_a_pooler(encoder, pooler):
    """Compared with a plain AutoModel."""
    embeddings = load_encoder(str(encoder), (pooler,))(SENTENCES)[pooler]
    model = AutoModel.from_pretrained(encoder)
    np.testing.assert_allclose(embeddings, one_by_one(model, tokenizer_of(encoder), pooler, SENTENCES), atol=2e-6)


@pytest.mark.parametrize(
    "pooler, found, needed",
    [
        ("mlp", "is mlp, but MODEL has no projection head", "a checkpoint that this project trained with"),
        ("max", "is max", "one of: auto, cls, mean, last, first_last, embeddings_last, last2, mlp"),
    ],
)
def test_pooling_that_a_plain_checkpoint_lacks_is_refused(bert, pooler, found, needed):
    with raises_usage(option="pooler", found=found.replace("MODEL", str(bert)), needed=needed):
        load_encoder(str(bert), ("cls", pooler))


@pytest.mark.parametrize(
    "options, option, found, needed",
    [
        (dict(length=67), "max_length", "is 67", "3 to 66 tokens for"),
        (dict(length=2), "max_length", "is 2", "3 to 66 tokens for"),
        (dict(length=0), "max_length", "is 0", "3 to 66 tokens for"),
        (dict(batch_size=0), "batch_size", "is 0", "1 or more"),
        (dict(batch_size=-8), "batch_size", "is -8", "1 or more"),
        (dict(device="gpu"), "device", "gpu cannot be used: Expected one of cpu, cuda", ""),
        (dict(device="cuda:99"), "device", "cuda:99 cannot be used: ", ""),
    ],
)
def test_invalid_options_are_refused(bert, options, option, found, needed):
    with raises_usage(option=option, found=found, needed=needed):
        load_encoder(str(bert), ("cls",), **options)


@pytest.mark.parametrize("length", [3, 66])
def test_lengths_at_the_edge(bert, length):
    encoder = load_encoder(str(bert), ("cls",), length)
    encoder([" ".join(WORDS * 3)])
    assert encoder.length == length


def test_roberta_accepts_two_tokens_fewer_than_positions(roberta):
    with raises_usage(option="max_length", found="is 65", needed="3 to 64 tokens"):
        load_encoder(str(roberta), ("cls",), 65)


def cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def pointer(folder: Path) -> None:
    """The pointer file that a clone without Git LFS contains instead of the weights."""
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")


def cut_pickle(folder: Path) -> None:
    path = folder / "pytorch_model.bin"
    torch.save(load_file(folder / "model.safetensors"), path)
    (folder / "model.safetensors").unlink()
    path.write_bytes(path.read_bytes()[:-100])


def no_tokenizer(folder: Path) -> None:
    for path in folder.glob("token*"):
        path.unlink()


@pytest.mark.parametrize(
    "damage, message",
    [
        (cut_weights, "`model_name` MODEL cannot be loaded: Error while deserializing header"),
        (pointer, "`model_name` MODEL cannot be loaded: "),
        (cut_pickle, "`model_name` MODEL cannot be loaded: "),
        (lambda folder: (folder / "model.safetensors").unlink(), "`model_name` MODEL cannot be loaded: Error no file"),
        (no_tokenizer, "`model_name` MODEL has no vocabulary next to its weights. Copy tokenizer.json"),
        (
            lambda folder: change_json(folder / "config.json", num_hidden_layers=3),
            "`model_name` MODEL lacks 16 weights of the encoder, such as encoder.layer.2.attention.output.LayerNorm.b",
        ),
        (
            lambda folder: change_json(folder / "config.json", hidden_size=64),
            "`model_name` MODEL cannot be loaded: embeddings.LayerNorm.bias has the shape (32,) in its weights",
        ),
        (lambda folder: (folder / "modules.json").write_text("["), "MODEL/modules.json is not JSON ("),
    ],
    ids=[
        "cut",
        "pointer",
        "cut-pickle",
        "no-weights",
        "no-tokenizer",
        "fewer-layers",
        "other-width",
        "modules",
    ],
)
def test_damaged_checkpoints(copied, damage, message):
    folder = copied()
    damage(folder)
    with pytest.raises(UsageError) as caught:
        load_encoder(str(folder), ("cls",))
    assert str(caught.value).startswith(message.replace("MODEL", str(folder)))


@pytest.mark.parametrize("config", [GPT2Config, T5Config, BartConfig], ids=["gpt2", "t5", "bart"])
def test_other_architectures_are_refused(copied, config):
    folder = copied()
    config().save_pretrained(folder)
    found = f"{folder} has the architecture '{config.model_type}'"
    with raises_usage(option="model_name", found=found, needed="an encoder like BERT"):
        load_encoder(str(folder), ("mean",))


def test_half_precision_weights_are_loaded_in_float32(copied, bert):
    folder = copied()
    AutoModel.from_pretrained(bert).half().save_pretrained(folder)
    assert {x.dtype for x in load_file(folder / "model.safetensors").values()} == {torch.float16}
    encoder = load_encoder(str(folder), ("mean",))
    assert {p.dtype for p in encoder.model.parameters()} == {torch.float32}
    rounded = AutoModel.from_pretrained(bert).half().float()
    expected = one_by_one(rounded, tokenizer_of(bert), "mean", SENTENCES)
    np.testing.assert_allclose(encoder(SENTENCES)["mean"], expected, atol=2e-6)


def test_weights_sha256_tells_weights_apart_and_not_folders(copied, bert):
    """The plain checkpoint has no BERT pooler, so each load initializes a random one."""
    first = load_encoder(str(bert), ("cls",)).weights_sha256()
    folder = copied()
    assert re.fullmatch(r"[0-9a-f]{64}", first)
    assert load_encoder(str(folder), ("mean",), length=9).weights_sha256() == first
    weights = load_file(folder / "model.safetensors")
    weights["bert.encoder.layer.1.output.dense.bias"][3] += 1e-3
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert load_encoder(str(folder), ("cls",)).weights_sha256() != first


def test_sha256_covers_everything_that_affects_embeddings(copied, bert):
    first = load_encoder(str(bert), ("cls",))
    assert re.fullmatch(r"[0-9a-f]{64}", first.sha256())
    first(SENTENCES)  # tokenizers keep the truncation and padding of the last call
    folder = copied()
    same = load_encoder(str(folder), ("cls",), batch_size=3)
    assert same.sha256() == first.sha256(), "not with the folder or the batch"
    options = [dict(poolers=("mean",)), dict(length=9), dict(prompt="query: "), dict(bf16=True)]
    found = {first.sha256(), *(load_encoder(str(bert), **(dict(poolers=("cls",)) | how)).sha256() for how in options)}
    assert len(found) == 1 + len(options)


def edited(folder: Path, name: str, **changes) -> str:
    """Return the checksum after changing values in a JSON file of the folder."""
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return load_encoder(str(folder), ("cls",)).sha256()


def test_sha256_changes_with_configuration_tokenizer_and_weights(copied, bert):
    first = load_encoder(str(bert), ("cls",)).sha256()
    words = json.loads((bert / "tokenizer.json").read_text())["model"]
    vocabulary = words["vocab"] | {"dog": words["vocab"]["cat"], "cat": words["vocab"]["dog"]}
    changes = [
        ("config.json", dict(layer_norm_eps=1e-5)),
        ("config.json", dict(hidden_act="relu")),
        ("tokenizer.json", dict(model=words | {"vocab": vocabulary})),
        ("tokenizer_config.json", dict(do_lower_case=False)),
        ("tokenizer_config.json", dict(truncation_side="left")),
        ("tokenizer_config.json", dict(padding_side="left")),
    ]
    found = [edited(copied(bert, f"{i}"), name, **change) for i, (name, change) in enumerate(changes)]
    folder = copied()
    weights = load_file(folder / "model.safetensors")
    weights["bert.encoder.layer.1.output.dense.bias"][3] += 1e-3
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    found.append(load_encoder(str(folder), ("cls",)).sha256())
    assert len({first, *found}) == 1 + len(found)
    assert edited(copied(bert, "version"), "config.json", transformers_version="5.0.0") == first


def export_without_head(start: Path, folder: Path) -> Path:
    settings = SETTINGS | {"projection_head": "none"}
    export_folder(load_model(load_config(str(start)), str(start), settings), tokenizer_of(start), folder)
    return folder


def saved_again(start: Path, folder: Path) -> Path:
    """Saved with the plain class, which loses the projection head but keeps its settings."""
    AutoModel.from_pretrained(start).save_pretrained(folder)
    AutoTokenizer.from_pretrained(start).save_pretrained(folder)
    return folder


def checkpoint(start: Path, folder: Path) -> Path:
    """A checkpoint of a training with all heads: names have our prefix and include the language-model head."""
    settings = SETTINGS | {"lm_head": True}
    load_model(load_config(str(start)), str(start), settings).save_pretrained(folder)
    tokenizer_of(start).save_pretrained(folder)
    return folder


STARTS = {
    "plain": lambda plain, ours, to: plain,
    "export": lambda plain, ours, to: ours,
    "export-without-head": lambda plain, ours, to: export_without_head(plain, to),
    "saved-again": lambda plain, ours, to: saved_again(ours, to),
    "checkpoint": lambda plain, ours, to: checkpoint(plain, to),
}


@pytest.mark.parametrize("projection_head", ["mlp", "none"])
@pytest.mark.parametrize("start", STARTS)
def test_starting_sha256_equals_that_of_the_encoder(ours, bert, roberta, tmp_path, monkeypatch, start, projection_head):
    """Computed from a model in training with other heads; the checkpoint is reloaded only for a missing head."""
    plain = bert if load_config(str(ours)).model_type == "bert" else roberta
    folder = str(STARTS[start](plain, ours, tmp_path / "start"))
    expected = load_encoder(folder, ("cls",)).weights_sha256()
    settings = SETTINGS | {"projection_head": projection_head, "lm_head": start in ("plain", "checkpoint")}
    model = load_model(load_config(folder), folder, settings)
    model.heads["own"] = torch.nn.Linear(2, 2)
    loaded = []
    monkeypatch.setattr(encoders, "load_saved", lambda *args: loaded.append(args) or load_saved(*args))
    assert starting_sha256(model, folder) == expected
    assert bool(loaded) == (start in ("export", "checkpoint") and projection_head == "none")
    with torch.no_grad():
        model.base_model.embeddings.word_embeddings.weight[3, 3] += 1e-3
    assert bool(loaded) or starting_sha256(model, folder) != expected


# Checkpoints of sentence-transformers


def compact(bert: Path, folder: Path, pooling, normalize: bool = False, length: int | None = None) -> Path:
    """Save a model with sentence-transformers."""
    from sentence_transformers import SentenceTransformer, models

    transformer = models.Transformer(str(bert))
    pool = models.Pooling(transformer.get_embedding_dimension(), pooling_mode=pooling)
    model = SentenceTransformer(modules=[transformer, pool, *([models.Normalize()] if normalize else [])], device="cpu")
    if length:
        model.max_seq_length = length
    model.save(str(folder))
    return folder


def verbose(bert: Path, folder: Path, pooling: dict, *more: str, length: int | None = None) -> Path:
    """Save the older format, which most models on the Hub have."""
    AutoModel.from_pretrained(bert).save_pretrained(folder)
    tokenizer_of(bert).save_pretrained(folder)
    kinds = ["Transformer", "Pooling", *more]
    paths = ["", *(f"{i}_{kind}" for i, kind in enumerate(kinds) if i)]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(zip(paths, kinds))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    names = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
    config = {"word_embedding_dimension": 32} | {f"pooling_mode_{name}": name in pooling for name in names}
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))
    settings = {"max_seq_length": length, "do_lower_case": False}
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
    return folder


def assert_as_sentence_transformers(folder: Path, pooler: str, normalized: bool, length: int) -> None:
    from sentence_transformers import SentenceTransformer

    encoder = load_encoder(str(folder))
    assert (encoder.poolers, encoder.normalized, encoder.length) == ((pooler,), normalized, length)
    embeddings = encoder(SENTENCES)[pooler]
    assert embeddings.dtype == np.float32
    np.testing.assert_allclose(embeddings, SentenceTransformer(str(folder), device="cpu").encode(SENTENCES), atol=1e-5)
    assert (np.abs(np.linalg.norm(embeddings, axis=1) - 1).max() < 1e-5) == normalized


@pytest.mark.parametrize("length", [None, 7])
@pytest.mark.parametrize("pooler, normalize", [("cls", True), ("mean", False), ("mean", True)])
def test_folders_of_current_sentence_transformers(bert, tmp_path, pooler, normalize, length):
    folder = compact(bert, tmp_path / "st", pooler, normalize, length)
    assert_as_sentence_transformers(folder, pooler, normalize, length or 66)


@pytest.mark.parametrize("length", [None, 7, 512])
@pytest.mark.parametrize("mode, normalize", [("cls_token", False), ("mean_tokens", True)])
def test_folders_of_older_sentence_transformers(bert, tmp_path, mode, normalize, length):
    folder = verbose(bert, tmp_path / "st", {mode}, *(["Normalize"] if normalize else []), length=length)
    if length == 512:  # more than the model reads: sentence-transformers would fail on long sentences
        assert load_encoder(str(folder)).length == 66
    else:
        assert_as_sentence_transformers(folder, mode.partition("_")[0], normalize, length or 66)


@pytest.mark.parametrize(
    "build, problem",
    [
        (lambda bert, to: compact(bert, to, "max", length=9), "its pooling is max, which is not supported"),
        (
            lambda bert, to: compact(bert, to, ("cls", "mean"), length=9),
            "its pooling is ['cls', 'mean'], which is not sup",
        ),
        (lambda bert, to: verbose(bert, to, {"max_tokens"}, length=9), "its pooling is pooling_mode_max_tokens, which"),
        (
            lambda bert, to: verbose(bert, to, {"cls_token", "mean_tokens"}, "Normalize", length=9),
            "its pooling is ['pooling_mode_cls_token', 'pooling_mode_mean_tokens'], which is not supported",
        ),
        (lambda bert, to: verbose(bert, to, set(), length=9), "its pooling is [], which is not supported"),
        (
            lambda bert, to: verbose(bert, to, {"mean_tokens"}, "Dense", "Normalize"),
            "modules.json lists Transformer, Pooling, Dense, Normalize, not all of which are supported",
        ),
    ],
    ids=["max", "cls-and-mean", "older-max", "older-cls-and-mean", "older-none", "dense"],
)
def test_unsupported_sentence_transformers_require_a_pooler(bert, tmp_path, build, problem):
    """Refused with the reason. With an explicit pooler, embeddings are not normalized."""
    folder = build(bert, tmp_path / "st")
    with raises_usage(option="pooler", found=f"is auto, but the pooling of {folder} is unknown: {problem}"):
        load_encoder(str(folder))
    encoder = load_encoder(str(folder), ("mean",))
    assert not encoder.normalized
    short = [s for s in SENTENCES if len(s.split()) <= 7]
    expected = one_by_one(AutoModel.from_pretrained(bert), tokenizer_of(bert), "mean", short)
    np.testing.assert_allclose(encoder(short)["mean"], expected, atol=2e-6)


def test_explicit_pooler_disables_normalization(bert, tmp_path):
    folder = compact(bert, tmp_path / "st", "mean", normalize=True, length=7)
    encoder = load_encoder(str(folder), ("mean",))
    assert not encoder.normalized and encoder.length == 7
    assert np.abs(np.linalg.norm(encoder(SENTENCES)["mean"], axis=1) - 1).max() > 0.1
