"""`informin.distill`: the static model, what it says, and the folder that it writes."""

import json
import logging
import time
from functools import partial

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from informin.cli import run_command
from informin.frozen.adapter import TASKS, LinearAdapter
from informin.frozen.distill import FAILS, distill
from informin.frozen.fit import fit
from informin.frozen.index import Index
from informin.frozen.static import adapted_parts, count_tokens, embed_tokens, fit_table, tokenizer_of
from informin.model.embedding import embed, encode
from informin.model.open import load_model
from informin.model.records import FitRecord
from informin.publishing.export import check_export, published_files
from tests.conftest import raises_usage, save_letters
from tests.frozen.conftest import TEXTS


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("kind", ["static", "st_mean", "prompted"])
def test_the_folder_is_the_table_of_the_adapted_and_smoothed_embeddings(request, kind, task, tmp_path):
    folder, side = request.getfixturevalue(kind), {"search": "document"}.get(task)
    result = distill(folder, iter(TEXTS), task=task, device="cpu")
    result.save(tmp_path / "fast")
    saved = SentenceTransformer(str(tmp_path / "fast"), device="cpu")
    assert [type(module).__name__ for module in saved] == ["StaticEmbedding", "Normalize"]
    np.testing.assert_allclose(saved.encode(TEXTS), result.static.encode(TEXTS), atol=1e-5)

    model = SentenceTransformer(str(folder), device="cpu")
    x = embed(folder, TEXTS, side=side, device="cpu")
    adapter, tokenizer = LinearAdapter(**TASKS[task]).fit(x), tokenizer_of(model)
    counts = count_tokens(tokenizer, TEXTS)
    alone = adapter.transform(embed_tokens(partial(encode, model, side=side), tokenizer, counts))
    rows = fit_table(counts, adapted_parts(adapter, x, task == "clustering"), alone, task)
    np.testing.assert_allclose(saved.encode(TEXTS), unit(counts @ rows), atol=1e-4)
    assert saved.similarity_fn_name == "cosine" and not any(saved.prompts.values())


def test_words_are_tokens_for_search_only(tmp_path):
    save_letters(tmp_path / "model")
    for task, words in (("search", {"dog", "small"}), ("clustering", set())):
        distill(tmp_path / "model", TEXTS, task=task, device="cpu").save(tmp_path / task)
        saved = SentenceTransformer(str(tmp_path / task), device="cpu")[0]
        known = saved.tokenizer.get_vocab()
        assert known.keys() & {"dog", "small"} == words and len(saved.embedding.weight) == len(known)


def test_the_record_and_the_card_have_the_options_and_the_precision(st_mean, tmp_path):
    given = dict(prompt="the dog ", max_seq_length=16)
    distill(st_mean, TEXTS, task="search", device="cpu", **given).save(tmp_path / "own")
    record = FitRecord.load(tmp_path / "own")
    assert record.options == given and record.precision == "fp32"
    card = (tmp_path / "own/README.md").read_text()
    assert "--prompt 'the dog '" in card and "--max_seq_length 16" in card
    vectors = embed(st_mean, TEXTS, device="cpu")
    distill(st_mean, TEXTS, embeddings=vectors, task="search", device="cpu").save(tmp_path / "given")
    record = FitRecord.load(tmp_path / "given")
    assert record.options == {} and record.precision is None


def test_a_table_is_not_warned_about_half_precision(static, caplog, monkeypatch):
    monkeypatch.setattr("informin.fast.precision.native_precision", lambda device: "bf16")
    load_model(static, precision="auto", device="cpu")
    assert not caplog.records


def test_models_made_from_a_table_with_words_say_so(tmp_path):
    """Whoever publishes one publishes words of the texts."""
    save_letters(tmp_path / "model")
    for task in TASKS:
        distill(tmp_path / "model", TEXTS, task=task, device="cpu").save(tmp_path / task)
        fit(tmp_path / task, TEXTS, task="clustering", device="cpu").save(tmp_path / f"fitted-{task}")
        distill(tmp_path / task, TEXTS, task="clustering", device="cpu").save(tmp_path / f"again-{task}")
        for name in (task, f"fitted-{task}", f"again-{task}"):
            assert ("anyone can read" in (tmp_path / name / "README.md").read_text()) == (task == "search"), name


def test_copies_of_held_out_texts_are_held_out_too(static):
    one, copied = (distill(static, texts, task="search", device="cpu").drift["new"] for texts in (TEXTS, 3 * TEXTS))
    for name in ("neighbors_kept", "rotated_cosine", "uniformity"):
        assert copied[name] == pytest.approx(one[name], rel=1e-3)


def test_it_reproduces_a_model_that_is_a_table(static):
    """Against vectors of random numbers, which have other neighbors by chance."""
    result = distill(static, TEXTS, task="clustering", device="cpu")
    assert result.drift["new"]["neighbors_kept"] > 60
    assert result.texts == len(TEXTS) and result.drift["sentences"] == len(TEXTS) // 10


def test_the_drift_is_that_of_a_table_without_the_held_out_texts(st_mean):
    held = np.random.default_rng(0).permutation(len(TEXTS))[: len(TEXTS) // 10]
    others = [text for row, text in enumerate(TEXTS) if row not in held]
    x = unit(embed(st_mean, [TEXTS[row] for row in held], device="cpu"))
    y = distill(st_mean, others, task="clustering", device="cpu").static.encode([TEXTS[row] for row in held])
    near, far = (np.argsort(2 * np.eye(len(held)) - z @ z.T, axis=1)[:, :10] for z in (x, y))
    kept = 10 * np.mean([len(set(a) & set(b)) for a, b in zip(near, far)])
    result = distill(st_mean, TEXTS, task="clustering", device="cpu")
    assert result.drift["new"]["neighbors_kept"] == pytest.approx(kept, abs=1)


def test_embeddings_of_the_model_save_time_and_others_are_refused(st_mean, tmp_path):
    np.save(tmp_path / "x.npy", embed(st_mean, TEXTS, device="cpu"))
    result = distill(st_mean, TEXTS, task="clustering", embeddings=tmp_path / "x.npy", device="cpu")
    expected = distill(st_mean, TEXTS, task="clustering", device="cpu")
    np.testing.assert_allclose(result.static.encode(TEXTS), expected.static.encode(TEXTS), atol=1e-5)
    with raises_usage(option="embeddings"):
        wrong = np.random.default_rng(0).normal(size=(len(TEXTS), 32)).astype(np.float32)
        distill(st_mean, TEXTS, task="clustering", embeddings=wrong, device="cpu")


def test_seconds_are_those_of_all_work(static):
    def slowly():
        time.sleep(0.2)
        yield from TEXTS

    assert distill(static, slowly(), task="clustering", device="cpu").seconds >= 0.2


def test_mistakes_have_options(st_mean, tmp_path):
    with raises_usage(option="task"):
        distill(st_mean, TEXTS, task="pairs")
    with raises_usage(option="train_file"):
        distill(st_mean, [], task="search", device="cpu")
    (tmp_path / "fast").mkdir()
    (tmp_path / "fast" / "other").touch()
    with raises_usage(option="output_dir"):
        distill(st_mean, TEXTS, task="search", device="cpu").save(tmp_path / "fast")


def test_few_texts_warn_and_very_few_have_no_drift(st_mean, caplog):
    with caplog.at_level(logging.WARNING, "informin"):
        result = distill(st_mean, TEXTS[:40], task="search", device="cpu")
    assert "1,000" in caplog.text and result.drift is None and "held-out" not in repr(result)
    caplog.clear()
    distill(st_mean, TEXTS * 4, task="search", device="cpu")  # 1,280 texts
    assert "1,000" not in caplog.text


def test_older_versions_of_sentence_transformers_know_the_names_in_its_folders(st_mean, tmp_path):
    result = distill(st_mean, TEXTS, task="clustering", device="cpu")
    result.save(tmp_path / "fast")
    fit(tmp_path / "fast", TEXTS, task="clustering").save(tmp_path / "fitted")
    for name, kinds in (("fast", "StaticEmbedding Normalize"), ("fitted", "StaticEmbedding Normalize Dense Normalize")):
        modules = json.loads((tmp_path / name / "modules.json").read_text())
        assert [module["type"] for module in modules] == [
            f"sentence_transformers.models.{kind}" for kind in kinds.split()
        ]
        assert not list((tmp_path / name).glob("*_Normalize"))
        for path in (tmp_path / name).glob("*_Dense/config.json"):
            assert json.loads(path.read_text()).keys() == {"in_features", "out_features", "bias", "activation_function"}
    np.testing.assert_allclose(
        SentenceTransformer(str(tmp_path / "fast")).encode(TEXTS[:3]), result.static.encode(TEXTS[:3]), atol=1e-6
    )


def test_the_card_begins_with_where_it_fails_and_the_folder_can_be_pushed(st_mean, tmp_path):
    result = distill(st_mean, TEXTS, task="search", device="cpu")
    result.save(tmp_path / "fast")
    check_export(tmp_path / "fast")
    names = {path.as_posix() for path in published_files(tmp_path / "fast")}
    assert {"README.md", "fit.json", "modules.json", "model.safetensors", "tokenizer.json"} <= names
    card = (tmp_path / "fast" / "README.md").read_text()
    text = card.split("---\n", 2)[2]
    assert text.index("Where this model fails") < text.index("## Usage")
    assert "static-embeddings" in card and "distill" in card and "linear-adapter" not in card
    assert json.loads((tmp_path / "fast" / "fit.json").read_text())["kind"] == "static"
    assert FAILS in repr(result) and f'SentenceTransformer("{tmp_path / "fast"}")' in repr(result)


def test_it_is_indexed_and_searched_like_any_model(st_mean, tmp_path):
    distill(st_mean, TEXTS, task="search", device="cpu").save(tmp_path / "fast")
    index = Index.build(tmp_path / "fast", TEXTS)
    index.save(tmp_path / "index")
    assert Index.load(tmp_path / "index").search([TEXTS[7]], k=1)[0][0].row == 7


def test_the_command_writes_the_folder(st_mean, tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    command = [f"--model_name={st_mean}", f"--train_file={tmp_path / 'texts.txt'}", "--device=cpu"]
    assert run_command("distill", *[*command, "--task=clustering", f"--output_dir={tmp_path / 'fast'}"]) == 0
    assert "texts per second" in capsys.readouterr().out
    saved = SentenceTransformer(str(tmp_path / "fast"), device="cpu").encode(TEXTS)
    expected = distill(st_mean, TEXTS, task="clustering", device="cpu").static.encode(TEXTS)
    np.testing.assert_allclose(saved, expected, atol=1e-5)
    assert run_command("distill", *[*command, "--task=clustering", f"--output_dir={tmp_path / 'fast'}"]) == 2
