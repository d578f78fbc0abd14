"""The index: scores, and the model it belongs to."""

import json
import shlex
import shutil
from dataclasses import asdict

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

import informin
from informin.cli import run_command
from informin.errors import UsageError
from informin.evaluation.rows import top
from informin.frozen import index_search as vectors_module
from informin.frozen.adapter import smooth_rows
from informin.frozen.index import Index
from informin.model.open import load_model
from tests.conftest import make_sentences, raises_usage, save_bert

QUERIES = ["the old dog runs", "a small house", "not"]


def rows_of(index: Index, queries=QUERIES, k: int = 10) -> list[list[int]]:
    return [[hit.row for hit in hits] for hits in index.search(queries, k)]


def test_score_is_the_sum_of_z_scores(built, st_mean, texts):
    model = SentenceTransformer(str(st_mean), device="cpu")
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (model.encode(QUERIES), model.encode(texts))]
    words = built.bm25.scores(QUERIES)
    for query, hits in enumerate(built.search(QUERIES, k=len(texts))):
        cosines = unit[1] @ unit[0][query]
        scores = (cosines - cosines.mean()) / cosines.std()
        if words[query].std():
            scores += 0.25 * (words[query] - words[query].mean()) / words[query].std()
        rows = [hit.row for hit in hits]
        assert sorted(rows) == list(range(len(texts)))
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        np.testing.assert_allclose([hit.score for hit in hits], scores[rows], atol=0.05)  # vectors are float16
        np.testing.assert_allclose([hit.vector_score for hit in hits], cosines[rows], atol=1e-3)
        np.testing.assert_allclose([hit.word_score for hit in hits], words[query, rows], atol=1e-5)
        assert [hit.text for hit in hits] == [texts[row] for row in rows]


def test_words_find_a_rare_word(st_mean, texts):
    texts = [*texts, "the zyzzyva eats today"]
    with_words, without = (Index.build(st_mean, texts, word_weight=weight) for weight in (0.25, 0))
    assert rows_of(with_words, ["zyzzyva"], 1) == [[150]]
    cosines = [hit.vector_score for hit in without.search(["zyzzyva"], 151)[0]]
    assert cosines == sorted(cosines, reverse=True)


def test_batches_of_queries(built):
    queries = make_sentences(70, seed=3)
    one_by_one = [built.search([query])[0] for query in queries]
    for hits, others in zip(built.search(queries), one_by_one, strict=True):
        np.testing.assert_allclose([hit.score for hit in hits], [hit.score for hit in others], atol=1e-3)


def test_k_above_the_number_of_texts(built):
    assert len(built.search(["dog"], k=1_000)[0]) == 150


def test_one_query_gives_one_list(built):
    assert built.search("the dog", 3) == built.search(["the dog"], 3)[0]


def test_k_is_at_least_one(built):
    with raises_usage("k"):
        built.search("the dog", 0)


def test_shown(built):
    assert repr(built) == "Index(150 texts, st-mean, english)"


def test_long_texts_and_control_characters_in_the_terminal(st_mean, tmp_path, capsys):
    """The terminal gets the beginning of a text, in one line that cannot change its colors; programs get all of it."""
    texts = ["a dog\x1b[31m and\na cat \u200d", "a dog " * 20_000]
    fields = [{"note": "one\ntwo\x07"}, {"\x1bnote": "x" * 9_000}]
    index = Index.build(st_mean, texts, ids=["\x1b[2J1", 2], fields=fields)
    index.save(tmp_path / "index")
    assert run_command("search", *["dog", "--index", str(tmp_path / "index")]) == 0
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) == 6 and max(map(len, printed.splitlines())) < 700
    assert "\x1b" not in printed and "id \ufffd[2J1]" in printed
    assert (
        "a dog\ufffd[31m and a cat \u200d" in printed and "120,000 characters" in printed and "one two\ufffd" in printed
    )
    assert run_command("search", *["dog", "--index", str(tmp_path / "index"), "--format", "json"]) == 0
    assert sorted(hit["text"] for hit in json.loads(capsys.readouterr().out)) == texts


def test_relevant_is_above_the_threshold(built):
    assert 0 < built.threshold < 1
    (hits,) = built.search(built.texts[:1], k=150)  # finds itself
    assert all(hit.relevant == (hit.vector_score > built.threshold) for hit in hits)
    assert {hit.relevant for hit in hits} == {True, False}


def test_few_texts_have_no_threshold(st_mean):
    index = Index.build(st_mean, make_sentences(20))
    assert index.threshold is None and index.search(["dog"])[0][0].relevant is None
    index.add(make_sentences(130, seed=8))
    assert index.threshold is not None


def test_no_texts(st_mean):
    with raises_usage("texts"):
        Index.build(st_mean, [])


@pytest.mark.parametrize("by", ["leading directions", "faiss", "leading directions without faiss"])
@pytest.mark.parametrize("k", [1, 20, 150])
def test_large_indexes_give_the_same_hits(built, monkeypatch, by, k):
    expected = built.search(QUERIES, k)
    monkeypatch.setattr(vectors_module, "COMPARED", 0)
    monkeypatch.setattr(vectors_module, "MOST_CANDIDATES", 60)
    monkeypatch.setattr(vectors_module, "LEADING_DIRECTIONS", 12)
    monkeypatch.setattr(vectors_module, "BLOCK", 64)
    if by != "leading directions":
        monkeypatch.setattr(vectors_module, "IN_MEMORY", 0)
    if by == "leading directions without faiss":
        monkeypatch.setattr(vectors_module, "is_installed", lambda name: False)
    compared = vectors_module.Vectors(built.documents, np.arange(len(built)))
    assert compared.whole is None and (compared.faiss is not None) == (by == "faiss")
    monkeypatch.setitem(vars(built._state), "compared", compared)
    hits = built.search(QUERIES, k)
    assert [[hit.row for hit in found] for found in hits] == [[hit.row for hit in found] for found in expected]
    for found, others in zip(hits, expected):
        np.testing.assert_allclose([hit.score for hit in found], [hit.score for hit in others], atol=1e-4)


def test_leading_directions_choose_few_candidates(built, monkeypatch):
    for name, value in {"COMPARED": 0, "MOST_CANDIDATES": 30, "LEADING_DIRECTIONS": 12, "MARGIN": 0}.items():
        monkeypatch.setattr(vectors_module, name, value)
    compared = vectors_module.Vectors(built.documents, np.arange(len(built)))
    assert compared.leading.shape == (150, 12)
    queries = built.embed_queries(QUERIES)
    for query, (rows, similarities) in zip(queries, compared.candidates(queries, np.zeros((3, 150)), 1)):
        assert len(rows) == 30
        np.testing.assert_allclose(similarities, built.documents[rows].astype(np.float32) @ query, atol=1e-5)


@pytest.mark.parametrize("power, candidates", [(0, 500), (1, 20)], ids=["flat", "steep"])
def test_candidates_depend_on_what_the_leading_directions_leave(monkeypatch, power, candidates):
    """In vectors whose directions are all alike, the leading ones say little about the others."""
    for name, value in {"COMPARED": 0, "MOST_CANDIDATES": 20, "LEADING_DIRECTIONS": 16}.items():
        monkeypatch.setattr(vectors_module, name, value)
    source = np.random.default_rng(0)
    scales = (1 + np.arange(128)) ** -(2.0 * power)
    documents = (source.normal(size=(600, 128)) * scales + scales).astype(np.float16)  # with a mean
    queries = (source.normal(size=(20, 128)) * scales).astype(np.float32)
    compared = vectors_module.Vectors(documents, np.arange(len(documents)))
    found = list(compared.candidates(queries, np.zeros((20, 600), np.float32), 2))
    for (places, similarities), expected in zip(found, queries @ documents.astype(np.float32).T):
        assert set(places[top(similarities, 2)]) == set(top(expected, 2))
    mean = np.mean([len(places) for places, _ in found])
    assert mean >= candidates if power == 0 else mean <= 2 * candidates


def test_near_duplicates_do_not_fill_the_candidates(monkeypatch):
    """The last text is the best one. By the leading directions alone, hundreds of nearly equal texts are better."""
    for name, value in {"COMPARED": 0, "MOST_CANDIDATES": 20, "LEADING_DIRECTIONS": 2}.items():
        monkeypatch.setattr(vectors_module, name, value)
    source = np.random.default_rng(0)
    others = source.normal(size=(300, 8)) * [1.5, 2, *[0.3] * 6]
    near_duplicates = np.eye(8)[0] * 5 + source.normal(size=(200, 8)) * 1e-3
    best = [4.9, 0, 0, 0, 0, 0, 0, 1]
    documents = np.vstack([others, near_duplicates, [best]]).astype(np.float16)
    query = np.array([[1, 0, 0, 0, 0, 0, 0, 1]], np.float32)
    compared = vectors_module.Vectors(documents, np.arange(len(documents)))
    ((places, similarities),) = compared.candidates(query, np.zeros((1, len(documents)), np.float32), 5)
    expected = documents.astype(np.float32) @ query[0]
    assert sorted(places[top(similarities, 5)]) == sorted(top(expected, 5))
    assert top(expected, 1) == len(documents) - 1


def test_mean_and_deviation_of_similarities(built):
    compared = vectors_module.Vectors(built.documents, np.arange(len(built)))
    queries = built.embed_queries(QUERIES)
    similarities = queries @ built.documents.astype(np.float32).T
    mean, deviation = compared.moments(queries)
    np.testing.assert_allclose(mean[:, 0], similarities.mean(1), atol=1e-6)
    np.testing.assert_allclose(deviation[:, 0], similarities.std(1), rtol=1e-4)


def test_equal_documents_have_no_deviation(built):
    compared = vectors_module.Vectors(np.repeat(built.documents[:1], 50, axis=0), np.arange(50))
    _, deviation = compared.moments(built.embed_queries(QUERIES))
    assert (deviation == 1).all()


def test_all_finite_halves_become_float32():
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    finite = halves[np.isfinite(halves)]
    np.testing.assert_array_equal(vectors_module.as_float32(finite), finite.astype(np.float32))


def test_another_model(built, tmp_path):
    built.save(tmp_path / "index")
    save_bert(tmp_path / "other", num_hidden_layers=1, initializer_range=0.1)
    other = informin.load_model(tmp_path / "other", pooler="mean")
    with pytest.raises(UsageError) as info:
        Index.load(tmp_path / "index", other)
    assert built.record.model in str(info.value) and str(tmp_path / "other") in str(info.value)


@pytest.mark.parametrize("before, after", [("cosine", "dot"), ("dot", "cosine")])
def test_the_model_with_another_similarity(st_mean, texts, tmp_path, before, after):
    """Weights and checksums are equal, but scores would not be: some vectors have unit length, and others not."""
    plain = SentenceTransformer(modules=list(SentenceTransformer(str(st_mean), device="cpu"))[:2], device="cpu")
    plain.similarity_fn_name = before
    Index.build(plain, texts).save(tmp_path)
    plain.similarity_fn_name = "manhattan" if before == "cosine" else before  # compared by cosine, too
    Index.load(tmp_path, plain)
    plain.similarity_fn_name = after
    with raises_usage():
        Index.load(tmp_path, plain)


def test_model_in_memory(st_mean, texts, tmp_path):
    model = SentenceTransformer(str(st_mean), device="cpu")
    Index.build(model, texts).save(tmp_path)
    assert rows_of(Index.load(tmp_path, model)) == rows_of(Index.load(tmp_path, st_mean))
    with raises_usage("model_name", fix="`Index.load`"):
        Index.load(tmp_path)


def test_options_of_loading_are_kept(bert, texts, tmp_path):
    Index.build(bert, texts, pooler="last", max_seq_length=8, device="cpu").save(tmp_path)
    index = Index.load(tmp_path)
    assert index.model.max_seq_length == 8 and index.record.loading == {"pooler": "last", "max_seq_length": 8}


def test_a_model_that_was_opened_in_another_working_directory(st_mean, texts, tmp_path, monkeypatch):
    monkeypatch.chdir(st_mean.parent)
    model = load_model(st_mean.name, device="cpu")
    monkeypatch.chdir(tmp_path)
    Index.build(model, texts[:9]).save("index")
    assert Index.load("index").record.model == str(st_mean.resolve())


LOADING = [{"pooler": "last"}, {"pooler": "mean", "max_seq_length": 5}]


@pytest.mark.parametrize("options", LOADING, ids=repr)
def test_a_moved_model_is_opened_with_the_options_of_the_index(bert, texts, tmp_path, capsys, options):
    shutil.copytree(bert, tmp_path / "old")
    before = Index.build(tmp_path / "old", texts, **options)
    before.save(tmp_path / "index")
    (tmp_path / "old").rename(tmp_path / "new")
    after = Index.load(tmp_path / "index", tmp_path / "new")
    assert after.search(QUERIES) == before.search(QUERIES)
    moved = ["--index", str(tmp_path / "index"), "--model_name", str(tmp_path / "new")]
    assert run_command("search", *["the dog", *moved]) == 0


FLIP = """
from torch import nn


class Flip(nn.Module):
    def forward(self, features, **kwargs):
        features["sentence_embedding"] = -features["sentence_embedding"]
        return features

    def save(self, path, *args, **kwargs):
        pass

    @classmethod
    def load(cls, *args, **kwargs):
        return cls()
"""


def test_search_trusts_code_that_the_index_trusted(st_mean, texts, tmp_path, capsys):
    model = tmp_path / "model"
    shutil.copytree(st_mean, model)
    (model / "flip.py").write_text(FLIP)
    modules = json.loads((model / "modules.json").read_text())
    (model / "9_Flip").mkdir()
    added = {"idx": len(modules), "name": str(len(modules)), "path": "9_Flip", "type": "flip.Flip"}
    (model / "modules.json").write_text(json.dumps([*modules, added]))
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    folder = str(tmp_path / "index")
    options = ["--model_name", str(model), "--train_file", str(tmp_path / "texts.txt"), "--output_dir", folder]
    assert run_command("index", *[*options, "--trust_remote_code"]) == 0
    assert "--trust_remote_code" in capsys.readouterr().out  # of the command that it prints
    assert run_command("search", *["the dog", "--index", folder]) == 2
    assert "trust_remote_code" in capsys.readouterr().err
    assert run_command("search", *["the dog", "--index", folder, "--trust_remote_code"]) == 0


def test_smoothed(built, st_mean, texts, tmp_path):
    index = Index.build(st_mean, texts, smooth=True)
    expected = smooth_rows(built.vectors.astype(np.float32))
    np.testing.assert_allclose(index.documents, expected, atol=1e-3)
    np.testing.assert_array_equal(index.vectors, built.vectors)
    index.save(tmp_path)
    assert Index.load(tmp_path).search(QUERIES) == index.search(QUERIES)


@pytest.mark.parametrize("options", [{}, {"rerank": True}, {"queries": "static"}], ids=str)
def test_no_queries(st_mean, texts, options):
    index = Index.build(st_mean, texts[:30], **options)
    assert index.search([]) == []
    assert index.embed_queries([]).shape == (0, index.documents.shape[1])


@pytest.mark.parametrize("weight", [float("nan"), float("inf")])
def test_word_weight_that_is_not_finite(st_mean, texts, weight):
    with raises_usage(option="word_weight"):
        Index.build(st_mean, texts, word_weight=weight)


@pytest.mark.parametrize("number", [1e5, 1e-5])
def test_vectors_too_large_or_too_small_for_float16(st_mean, texts, monkeypatch, number):
    monkeypatch.setattr(
        "informin.frozen.index_model.embed_unit", lambda model, texts, *_, **__: np.full((len(texts), 32), number)
    )
    with raises_usage(option="model_name"):
        Index.build(st_mean, texts)


def test_dot_product(st_mean, texts):
    model = SentenceTransformer(str(st_mean), device="cpu", similarity_fn_name="dot")
    model = SentenceTransformer(modules=list(model)[:2], device="cpu", similarity_fn_name="dot")  # not normalized
    index = Index.build(model, texts, word_weight=0)
    products = model.encode(["the old dog"]) @ model.encode(texts).T
    assert rows_of(index, ["the old dog"], 1) == [[int(products.argmax())]]
    assert index.threshold is None
    with raises_usage("smooth"):
        Index.build(model, texts, smooth=True)


def test_prompts(st_mean, texts):
    index = Index.build(st_mean, texts, document_prompt="a cat ", query_prompt="the dog ")
    model = SentenceTransformer(str(st_mean), device="cpu")
    expected = [model.encode(text, normalize_embeddings=True) for text in (f"a cat {texts[0]}", "the dog house")]
    np.testing.assert_allclose(index.vectors[0], expected[0], atol=1e-3)
    np.testing.assert_allclose(index.embed_queries(["house"])[0], expected[1], atol=1e-5)


def test_indexes_are_not_published(built, st_mean, tmp_path):
    from informin.publishing.export import published_files

    SentenceTransformer(str(st_mean), device="cpu").save(str(tmp_path))
    before = published_files(tmp_path)
    built.save(tmp_path / "index")
    for path in [path for path in (tmp_path / "index").rglob("*") if path.is_file()]:
        (tmp_path / f"{path.name}").write_bytes(path.read_bytes())  # nor if their files are beside the model
    assert before and published_files(tmp_path) == before


def test_commands(st_mean, texts, tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    folder = str(tmp_path / "my index")
    options = ["--train_file", str(tmp_path / "texts.txt"), "--output_dir", folder, "--batch_size", "32"]
    assert run_command("index", *["--model_name", str(st_mean), *options]) == 0
    printed = capsys.readouterr().out
    assert shlex.split(printed.splitlines()[-1].removeprefix("Search it: "))[3] == folder
    again = ["--model_name", str(st_mean), *options, "--smooth", "--language", "de"]
    assert run_command("index", *again) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert run_command("index", *[*again, "--overwrite"]) == 0
    index = Index.load(folder)
    assert index.record.smooth and index.record.language == "german"
    capsys.readouterr()
    assert run_command("search", *["the old dog", "--index", folder, "--k", "3", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [asdict(hit) for hit in index.search(["the old dog"], 3)[0]]
    assert run_command("search", *["the old dog", "--index", folder, "--k", "3"]) == 0
    printed = capsys.readouterr().out
    assert all(hit.text in printed for hit in index.search(["the old dog"], 3)[0])
    assert run_command("search", *["dog", "--index", str(tmp_path)]) == 2
    assert "--index" in capsys.readouterr().err
