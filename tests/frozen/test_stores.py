"""The index in other stores: Qdrant, a count sketch of the words beside the vector, and docs/integrations.md."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding

from informin.frozen.index import Index
from tests.conftest import ROOT, raises_usage, tokenizer_of
from tests.frozen.test_index import QUERIES, rows_of
from tools.integrations import read_snippets


def test_dense_plus_sparse_ranks_as_search(built):
    dense = built.embed_queries(QUERIES) @ built.documents.astype(np.float32).T
    sparse = (built.sparse_queries(QUERIES) @ built.sparse_vectors().T).toarray()
    ranking = np.argsort(-(dense + sparse), axis=1)[:, :10]
    assert built.rows[ranking].tolist() == rows_of(built)


def test_texts_that_a_store_found_are_reordered_as_by_search(st_mean, texts, built):
    index = Index.build(st_mean, texts, rerank=True)
    index.remove([0, 7])
    dense = index.embed_queries(QUERIES) @ index.documents.astype(np.float32).T
    sums = dense + (index.sparse_queries(QUERIES) @ index.sparse_vectors().T).toarray()
    for query, scores, expected in zip(QUERIES, sums, rows_of(index)):
        places = np.argsort(-scores)[:50]
        rows = index.rows[places]
        order = np.argsort(-(scores[places] + index.rerank(query, rows.tolist())))
        assert rows[order[:10]].tolist() == expected
    with raises_usage("rerank"):
        built.rerank("dog", [0])


def page_blocks() -> list[str]:
    """Return the Python blocks of docs/databases.md that search in Qdrant, and that look again."""
    page = (ROOT / "docs/databases.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return [block for block in blocks if "QdrantClient" in block or "hits.points" in block]


def test_qdrant_with_the_code_of_the_page(st_mean, texts):
    pytest.importorskip("qdrant_client")
    search, rerank = page_blocks()
    index = Index.build(st_mean, texts, rerank=True)
    index.remove([0, 7])
    plain = Index(index.model, replace(index._state, tokens=None))
    for query, first, looked in zip(QUERIES, rows_of(plain), rows_of(index)):
        asked = search.replace("a delayed train", query)
        names = {"index": index, "np": np}
        exec(asked, names)
        assert [point.id for point in names["hits"].points] == first
        exec(asked.replace("limit=10", "limit=50"), names)
        exec(rerank.replace("a delayed train", query), names)
        assert names["best"] == looked


def sketch(matrix: csr_array, width: int = 2_048) -> np.ndarray:
    """Return a count sketch (n, width) of sparse rows (n, V), whose dot products are those of the rows on average."""
    draws = np.random.default_rng(0)
    words = matrix.shape[1]
    bins, signs = draws.integers(width, size=words), draws.choice([-1.0, 1.0], size=words)
    return (matrix @ csr_array((signs, (np.arange(words), bins)), shape=(words, width))).toarray()


def test_count_sketch(built: Index):
    stored = np.hstack([built.documents, sketch(built.sparse_vectors())])
    queries = np.hstack([built.embed_queries(QUERIES), sketch(built.sparse_queries(QUERIES))])
    found = np.argsort(-(queries @ stored.T), axis=1)[:, :10]
    shared = [len(set(rows) & set(expected)) for rows, expected in zip(built.rows[found].tolist(), rows_of(built))]
    assert min(shared) >= 9  # 30 words in 2,048 numbers rarely collide


@pytest.mark.parametrize(
    "store, package",
    [("faiss", "faiss"), ("duckdb", "duckdb"), ("qdrant", "qdrant_client"), ("chroma", "chromadb")],
)
def test_stores_get_unit_vectors_and_no_text_without_words(store, package, bert, tmp_path, monkeypatch, capsys):
    pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    tokens = StaticEmbedding(tokenizer_of(bert), embedding_dim=8)
    with torch.no_grad():
        tokens.embedding.weight[tokens.tokenizer.token_to_id("[UNK]")] = 0
    SentenceTransformer(modules=[tokens], device="cpu").save_pretrained("fitted-documents", create_model_card=False)
    sentences = ["the old dog runs", "zyzzyva", "a small house", "the cat sleeps"]
    (tmp_path / "documents.txt").write_text("\n".join(sentences), encoding="utf-8")
    names: dict = {}
    exec(read_snippets()[store].code, names)
    assert names["texts"] == [sentences[0], *sentences[2:]]
    np.testing.assert_allclose(np.linalg.norm(names["vectors"], axis=1), 1, atol=1e-5)
    found = names["texts"] + names.get("new", [])
    vectors = names["model"].encode([*found, names["query"]], normalize_embeddings=True)
    cosines = vectors[:-1] @ vectors[-1]
    best = np.argsort(-cosines)[:3]
    assert len({f"{cosines[row]:.3f}" for row in best}) == 3, "the order is tested"
    printed = [line.split("  ", 1) for line in capsys.readouterr().out.splitlines()]
    assert [text for _, text in printed] == [found[row] for row in best]
    np.testing.assert_allclose([float(cosine) for cosine, _ in printed], cosines[best], atol=6e-4)
