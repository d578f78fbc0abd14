"""Files of embeddings: every wrong or damaged file is one line, and what can be read is read right."""

import json
import os
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from informin.adapters import rows
from informin.adapters.linear import LinearAdapter
from informin.adapters.rows import read_rows
from informin.adapters.vectors import load_vectors
from tests.conftest import raises_usage

X = np.random.default_rng(0).normal(size=(40, 8))
SHAPES = ["(-40, 8)", "(40, -8)", "(-40, -8)", "(400, 8)", "(9999999999999999999999, 8)", "(40, 8.0)", "'x'", "(" * 99]
LISTS = {"list": pa.list_(pa.float64()), "large": pa.large_list(pa.float64()), "fixed": pa.list_(pa.float64(), 8)}


def changed(row: int, column: int, value: float) -> np.ndarray:
    x = X.copy()
    x[row, column] = value
    return x


def with_header(path, shape: str, descr: str = "'<f8'") -> None:
    """Write a .npy file whose header names another shape or type."""
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + X.tobytes())


@pytest.mark.parametrize(
    ("array", "found"),
    [
        (changed(7, 3, np.nan), "NaN or infinity (first in row 7)"),
        (changed(39, 0, -np.inf), "NaN or infinity (first in row 39)"),
        (X[:0], "shape (0, 8)"),
        (X[:, :0], "shape (40, 0)"),
        (X[:, :1], "shape (40, 1)"),
        (X[:, 0], "shape (40,)"),
        (X.reshape(5, 8, 8), "shape (5, 8, 8)"),
        (X.astype(np.int8), "type int8"),
        (X > 0, "type bool"),
        (X.astype(complex), "type complex128"),
        (np.array([["a", "b"]]), "type <U1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_array_without_embeddings_is_refused(tmp_path, monkeypatch, array, found):
    monkeypatch.setattr("informin.adapters.vectors.CHUNK", 16)
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(rows.UsageError) as info:
        load_vectors(tmp_path / "x.npy")
    assert found in info.value.found and "x.npy" in info.value.found


@pytest.mark.parametrize("shape", SHAPES)
def test_damaged_headers_are_one_line(tmp_path, shape):
    with_header(tmp_path / "x.npy", shape)
    with raises_usage(option="embeddings", found="cannot be read"):
        load_vectors(tmp_path / "x.npy")


@pytest.mark.parametrize("descr", ["()", "('<f8',)", "[]", "None", "'O'", "'x'", "[('a', '<f8')]", "{}"])
def test_damaged_types_are_one_line(tmp_path, descr):
    with_header(tmp_path / "x.npy", "(40, 8)", descr)
    with raises_usage(option="embeddings", found="x.npy"):
        load_vectors(tmp_path / "x.npy")


def test_objects_archives_and_truncated_files_are_one_line(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.array([[1, None]], dtype=object), allow_pickle=True)
    with raises_usage(option="embeddings", found="objects"):
        load_vectors(path)
    np.savez(tmp_path / "x.npz", X)
    os.replace(tmp_path / "x.npz", path)
    with raises_usage(option="embeddings", found="an .npz archive"):
        load_vectors(path)
    np.save(path, X)
    for size in (0, 50, path.stat().st_size - 8):
        os.truncate(path, size)
        with raises_usage(option="embeddings", found="cannot be read"):
            load_vectors(path)
        np.save(path, X)


@pytest.mark.parametrize("kind", ["<f4", ">f4", ">f8", "<f2", "longdouble"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_every_type_and_order_gives_the_same_rows(tmp_path, kind, order):
    np.save(tmp_path / "x.npy", np.asarray(X.astype(kind), order=order))
    vectors = load_vectors(tmp_path / "x.npy")
    expected = X.astype(np.float64 if kind == "longdouble" else np.dtype(kind).newbyteorder("="))
    for some in (slice(None), slice(3, 9), slice(35, 99), np.array([5, 2, 39])):
        found = read_rows(vectors, some)
        assert found.dtype == expected.dtype and np.array_equal(found, expected[some])
    adapted = LinearAdapter().fit(vectors).transform(vectors)
    assert adapted.dtype == expected.dtype
    np.testing.assert_allclose(adapted, LinearAdapter().fit(expected).transform(expected), atol=1e-6)


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float32", "float64"])
def test_floating_point_tensors_are_read(tmp_path, kind):
    tensor = torch.from_numpy(X).to(getattr(torch, kind))
    save_file({"x": tensor, "scale": torch.ones(3)}, tmp_path / "x.safetensors")
    vectors = load_vectors(tmp_path / "x.safetensors")
    assert vectors.dtype == (kind if kind in ("float16", "float32", "float64") else "float32")
    np.testing.assert_array_equal(vectors, tensor.to(torch.float64).numpy().astype(vectors.dtype))


@pytest.mark.parametrize("kind", ["F8_E8M0", "F4", "Q9", "I8", "F32"])
def test_other_tensors_are_one_line(tmp_path, kind):
    header = {"x": {"dtype": kind, "shape": [4, 32 if kind == "F4" else 16], "data_offsets": [0, 64]}}
    text = json.dumps(header).encode()
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * 64)
    unknown = f"its type '{kind}' is not supported" if kind in ("F8_E8M0", "F4") else ""
    with raises_usage(option="embeddings", found=unknown or "x.safetensors"):
        load_vectors(tmp_path / "x.safetensors")


@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize("null", ["row", "element", "all"])
def test_nulls_in_parquet_are_refused(tmp_path, monkeypatch, kind, null):
    monkeypatch.setattr("informin.adapters.vectors.CHUNK", 10)
    lists = [None if null == "all" or (null == "row" and i == 27) else x.tolist() for i, x in enumerate(X)]
    if null == "element":
        lists[27][3] = None
    chunks = pa.chunked_array([pa.array(lists[:20], LISTS[kind]), pa.array(lists[20:], LISTS[kind])])
    pq.write_table(pa.table({"x": chunks}), tmp_path / "x.parquet", row_group_size=9)
    with raises_usage(option="embeddings", found=f"row {0 if null == 'all' else 27} "):
        load_vectors(tmp_path / "x.parquet")


@pytest.mark.parametrize("kind", LISTS)
def test_chunks_and_slices_of_parquet_are_read(tmp_path, kind):
    whole = pa.array(X.tolist(), LISTS[kind])
    chunks = pa.chunked_array([whole[:7], whole[7:7], whole[12:30]])
    pq.write_table(pa.table({"words": [["a"]] * 25, "x": chunks}), tmp_path / "x.parquet", row_group_size=4)
    np.testing.assert_array_equal(load_vectors(tmp_path / "x.parquet"), np.concatenate([X[:7], X[12:30]]))


@pytest.mark.parametrize(
    ("lists", "found"),
    [
        ([[1.0, 2.0], [1.0]], "different lengths"),
        ([[], []], "shape (2, 0)"),
        ([[1, 2]], "0 columns of lists"),
        ([1.0], "0 columns of lists"),
        ([], "0 columns of lists"),
    ],
    ids=str,
)
def test_other_parquet_files_are_refused(tmp_path, lists, found):
    column = pa.array(lists, pa.list_(pa.float64())) if lists and lists[0] == [] else pa.array(lists)
    pq.write_table(pa.table({"x": column}), tmp_path / "x.parquet")
    with raises_usage(option="embeddings", found=found):
        load_vectors(tmp_path / "x.parquet")


@pytest.mark.parametrize("view", ["whole", "part"])
@pytest.mark.parametrize("some", [slice(0, 30), np.array([1, 29])], ids=["slice", "indices"])
@pytest.mark.parametrize("moment", ["before", "during"])
def test_a_truncated_memory_map_is_an_error_and_not_sigbus(tmp_path, monkeypatch, view, some, moment):
    path = tmp_path / "x.npy"
    np.save(path, np.repeat(X, 500, axis=0))  # several pages
    vectors = load_vectors(path)
    vectors = vectors[19_000:] if view == "part" else vectors[19_970:]
    if moment == "before":
        os.truncate(path, 4096)
    else:  # after the size was checked

        def opened(*words, **options):
            file = open(*words, **options)
            size = os.fstat(file.fileno())
            os.truncate(path, 4096)
            monkeypatch.setattr(rows.os, "fstat", lambda number: size)
            return file

        monkeypatch.setattr(rows, "open", opened, raising=False)
    with raises_usage(found="was truncated while it was read"):
        read_rows(vectors, some)


def test_columns_of_a_truncated_memory_map_are_an_error(tmp_path):
    np.save(tmp_path / "x.npy", np.repeat(X, 500, axis=0))
    vectors = load_vectors(tmp_path / "x.npy")
    os.truncate(tmp_path / "x.npy", 4096)
    with raises_usage(found="was truncated while it was read"):
        read_rows(vectors[:, 2:5], slice(None))


def test_the_fit_of_a_truncated_file_is_one_line(tmp_path):
    np.save(tmp_path / "x.npy", np.repeat(X, 500, axis=0))
    vectors = np.load(tmp_path / "x.npy", mmap_mode="r")
    adapter = LinearAdapter().fit(vectors)
    os.truncate(tmp_path / "x.npy", 4096)
    for work in (LinearAdapter().fit, adapter.transform, adapter.smooth):
        with raises_usage(found="was truncated while it was read"):
            work(vectors)


def test_a_memory_map_is_read_as_it_is_in_memory(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, X)
    own = np.load(path, mmap_mode="c")  # changes stay in memory
    own[3] = 7
    assert (read_rows(own, slice(0, 5))[3] == 7).all()
    vectors = load_vectors(path)
    for part in (vectors[5:], vectors[::2], vectors[:, 2:5], vectors[10:20, ::-1]):
        np.testing.assert_array_equal(read_rows(part, np.array([0, 4])), np.array(part)[[0, 4]])
        np.testing.assert_array_equal(read_rows(part, slice(1, 3)), np.array(part)[1:3])
    (tmp_path / "y").write_bytes(b"another file")
    os.replace(tmp_path / "y", path)
    np.testing.assert_array_equal(read_rows(vectors, slice(None)), X)
    path.unlink()
    np.testing.assert_array_equal(read_rows(vectors, np.array([4])), X[4:5])
