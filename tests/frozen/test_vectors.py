"""Files of embeddings: what can be read is read right, and nulls, NaN and other texts are refused."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from informin.evaluation.rows import rows_of
from informin.frozen.adapter import LinearAdapter
from informin.frozen.vectors import check_vectors, given_vectors, load_vectors
from tests.conftest import raises_usage

X = np.random.default_rng(0).normal(size=(40, 8))
LISTS = {"list": pa.list_(pa.float64()), "large": pa.large_list(pa.float64()), "fixed": pa.list_(pa.float64(), 8)}


def changed(row: int, column: int, value: float) -> np.ndarray:
    x = X.copy()
    x[row, column] = value
    return x


def test_an_archive_of_arrays_is_refused(tmp_path):
    np.savez(tmp_path / "x.npz", X)
    (tmp_path / "x.npz").rename(tmp_path / "x.npy")
    with raises_usage("embeddings", found="x.npy"):
        load_vectors(tmp_path / "x.npy")


@pytest.mark.parametrize("array", [changed(7, 3, np.nan), changed(39, 0, -np.inf)])
def test_values_not_finite_are_refused(tmp_path, monkeypatch, array):
    monkeypatch.setattr("informin.frozen.vectors.CHUNK", 16)
    np.save(tmp_path / "x.npy", array)
    row = np.flatnonzero(~np.isfinite(array).all(-1))[0]
    for source in (tmp_path / "x.npy", array, torch.from_numpy(array)):
        with raises_usage(found=f"first in row {row}"):
            load_vectors(source)


@pytest.mark.parametrize(
    "array", [X[:0], X[:, :1], X[:, 0], X.reshape(5, 8, 8), X.astype(np.int8), X > 0, np.array([["a", "b"]])]
)
def test_an_array_without_embeddings_is_refused(tmp_path, array):
    np.save(tmp_path / "x.npy", array)
    with raises_usage(option="embeddings"):
        load_vectors(tmp_path / "x.npy")


@pytest.mark.parametrize("suffix", [".npy", ".parquet", ".safetensors"])
def test_a_file_that_does_not_exist(tmp_path, suffix):
    with raises_usage("embeddings", found="does not exist"):
        load_vectors(tmp_path / f"gone{suffix}")


def test_pickles_are_not_loaded(tmp_path):
    np.save(tmp_path / "x.npy", np.array([[1, None]], dtype=object), allow_pickle=True)
    with raises_usage(option="embeddings", found="objects"):
        load_vectors(tmp_path / "x.npy")
    with raises_usage(option="embeddings"):
        load_vectors(tmp_path / "x.pkl")


@pytest.mark.parametrize("kind", ["f4", "f8", "f2", "longdouble", ">f4", ">f8", ">f2"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_every_type_and_order_gives_the_same_rows(tmp_path, kind, order):
    np.save(tmp_path / "x.npy", np.asarray(X.astype(kind), order=order))
    vectors = load_vectors(tmp_path / "x.npy")
    expected = X.astype({"longdouble": "f8"}.get(kind, kind.removeprefix(">")))
    for some in (slice(None), slice(3, 9), slice(35, 99), np.array([5, 2, 39])):
        rows = rows_of(vectors, some)
        assert rows.dtype == expected.dtype and np.array_equal(rows, expected[some])
    adapted = LinearAdapter().fit(vectors).transform(vectors)
    assert adapted.dtype == expected.dtype
    given = X.astype(kind)  # not through a file
    assert LinearAdapter().fit(given).transform(given).dtype == expected.dtype
    rounding = 1e-3 if expected.dtype == np.float16 else 1e-5
    np.testing.assert_allclose(adapted, LinearAdapter().fit(expected).transform(expected), atol=rounding)


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float8_e4m3fn", "float32", "float64"])
def test_floating_point_tensors_are_read(tmp_path, kind):
    tensor = torch.from_numpy(X).to(getattr(torch, kind))
    save_file({"x": tensor, "scale": torch.ones(3)}, tmp_path / "x.safetensors")
    for source in (tmp_path / "x.safetensors", tensor):
        vectors = load_vectors(source)
        assert vectors.dtype == (kind if kind in ("float16", "float32", "float64") else "float32")
        np.testing.assert_array_equal(vectors, tensor.to(torch.float64).numpy().astype(vectors.dtype))


@pytest.mark.parametrize("tensors", [{"x": torch.ones(40)}, {"x": torch.ones(4, 4), "y": torch.ones(4, 5)}])
def test_other_tensors_are_refused(tmp_path, tensors):
    save_file(tensors, tmp_path / "x.safetensors")
    with raises_usage(option="embeddings"):
        load_vectors(tmp_path / "x.safetensors")


@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize("null", ["row", "second rows", "element", "all"])
def test_nulls_in_parquet_are_refused(tmp_path, kind, null):
    empty = {"row": [27], "second rows": range(0, 40, 2), "element": [], "all": range(40)}[null]
    lists = [None if row in empty else x.tolist() for row, x in enumerate(X)]
    if null == "element":
        lists[27][3] = None
    chunks = pa.chunked_array([pa.array(lists[:20], LISTS[kind]), pa.array(lists[20:], LISTS[kind])])
    try:
        pq.write_table(pa.table({"x": chunks}), tmp_path / "x.parquet", row_group_size=9)
    except pa.ArrowNotImplementedError:
        pytest.skip("this version of pyarrow cannot write such a file")
    with raises_usage(option="embeddings"):
        load_vectors(tmp_path / "x.parquet")


@pytest.mark.parametrize("name", ["x.parquet", "x.npy", "cut.npy", "empty.npy", "empty.parquet", "x.safetensors"])
def test_a_damaged_file_is_named(tmp_path, name):
    np.save(tmp_path / "cut.npy", X)
    content = (tmp_path / "cut.npy").read_bytes()[:-8] if name == "cut.npy" else b"PAR1" + bytes(40)
    content = b"" if name.startswith("empty") else content
    (tmp_path / name).write_bytes(content)
    with raises_usage(option="embeddings", found=name):
        load_vectors(tmp_path / name)


@pytest.mark.parametrize("kind", LISTS)
def test_chunks_and_slices_of_parquet_are_read(tmp_path, kind):
    whole = pa.array(X.tolist(), LISTS[kind])
    chunks = pa.chunked_array([whole[:7], whole[7:7], whole[12:30]])
    pq.write_table(pa.table({"words": [["a"]] * 25, "x": chunks}), tmp_path / "x.parquet", row_group_size=4)
    np.testing.assert_array_equal(load_vectors(tmp_path / "x.parquet"), np.concatenate([X[:7], X[12:30]]))


@pytest.mark.parametrize("lists", [[[1.0, 2.0], [1.0]], [[1, 2]], [1.0]], ids=str)
def test_other_parquet_files_are_refused(tmp_path, lists):
    pq.write_table(pa.table({"x": pa.array(lists)}), tmp_path / "x.parquet")
    with raises_usage(option="embeddings"):
        load_vectors(tmp_path / "x.parquet")


def test_five_texts_tell_other_embeddings_apart():
    texts = [str(row) for row in range(len(X))]

    def encode(some):
        return X[[int(text) for text in some]]

    for same in (X, X.astype(np.float16), 3 * X):
        check_vectors(same, texts, encode, "model")
    for other in (X[::-1], X + 0.5, X[:, :5]):  # another order, prompt, model
        with raises_usage(option="embeddings"):
            check_vectors(other, texts, encode, "model")
    with raises_usage(option="embeddings"):
        given_vectors(X[:20], texts)
