"""LinearAdapter against an independent NumPy implementation, and its behavior at the edges."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.numpy import load_file
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import check_estimator

from informin.errors import SaveError, UsageError
from informin.evaluation import encode as geometry
from informin.evaluation import neighbors as nearest
from informin.frozen import adapter as blocks
from informin.frozen import adapter as linear
from informin.frozen.adapter import TASKS, LinearAdapter, smooth_rows
from tests.conftest import raises_usage
from tests.support import forked

WIDTH = 12


def clustered(rows: int = 300, seed: int = 0, width: int = WIDTH) -> np.ndarray:
    """Return rows around 20 centers away from the origin."""
    draw = np.random.default_rng(seed)
    centers = draw.normal(size=(20, width)) + 1
    return centers[draw.integers(0, 20, rows)] + 0.3 * draw.normal(size=(rows, width)) * np.linspace(0.2, 2, width)


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def neighbors(x: np.ndarray, k: int) -> np.ndarray:
    cosines = unit(x) @ unit(x).T
    np.fill_diagonal(cosines, -2)
    return np.argsort(-cosines, axis=1)[:, :k]


def by_definition(X: np.ndarray, k=10, p=0.3, epsilon=0.1, s=0.8, gamma=1e-3) -> np.ndarray:
    """The matrix, one pair at a time as in the docstring."""
    x = unit(X)
    n, d = x.shape
    strength = 1 / (1 + (d / (1.5 * n)) ** 4)
    mean = x.mean(0)
    projection = np.eye(d) - np.outer(mean, mean) / (mean @ mean)
    scatter = sum(np.outer(x[i] - x[j], x[i] - x[j]) for i, few in enumerate(neighbors(x, k)) for j in few) / (n * k)
    values, vectors = np.linalg.eigh(scatter / (np.trace(scatter) / d) + epsilon * np.eye(d))
    whitening = vectors @ np.diag(values**-p) @ vectors.T @ projection
    z = x @ whitening.T
    targets = np.stack([s * z[i] + (1 - s) * weighted_mean(z, i, few) for i, few in enumerate(neighbors(z, k))])
    ridge = gamma * np.trace(z.T @ z) / d
    regression = np.linalg.solve(z.T @ z + ridge * np.eye(d), z.T @ targets).T if s < 1 else np.eye(d)
    fitted = regression @ whitening
    fitted = strength * fitted / (np.trace(fitted) / d) + (1 - strength) * np.eye(d)
    adapted = unit(x @ fitted.T)
    axes = np.linalg.eigh(adapted.T @ adapted)[1].T[::-1]  # in rows, largest first
    signs = np.sign([axis[np.abs(axis).argmax()] for axis in axes])
    return signs[:, None] * axes @ fitted


def weighted_mean(z: np.ndarray, i: int, few: np.ndarray) -> np.ndarray:
    """The mean of the neighbors of row i, weighted by their cosines cubed."""
    weights = np.array([max(unit(z[i]) @ unit(z[j]), 1e-6) ** 3 for j in few])
    return (weights / weights.sum()) @ z[few]


@pytest.mark.parametrize(
    "options", [{}, dict(k=3, p=0.5, epsilon=0.01, s=0.4, gamma=0.1), dict(s=1.0), dict(p=0.0, s=0.7)]
)
def test_fits_the_documented_map(options):
    X = clustered(seed=14)  # without ties: no two cosines at the border of a neighborhood are within 1e-5
    names = dict(k="n_neighbors", p="whitening", epsilon="regularization", s="self_weight", gamma="penalty")
    adapter = LinearAdapter(**{names[key]: value for key, value in options.items()}).fit(X)
    matrix = by_definition(X, **options)
    np.testing.assert_allclose(adapter.coef_, matrix, atol=1e-9)
    assert not adapter.intercept_.any()
    queries = clustered(7, seed=1)
    np.testing.assert_allclose(adapter.transform(queries), unit(unit(queries) @ matrix.T), atol=1e-9)


def test_smoothed_documents_are_means_of_adapted_neighbors():
    X = clustered()
    adapter = LinearAdapter(n_neighbors=4).fit(X)
    z = adapter.transform(X)
    expected = [0.5 * z[i] + 0.5 * weighted_mean(z, i, few) for i, few in enumerate(neighbors(z, 4))]
    np.testing.assert_allclose(adapter.transform(X, smooth=True), unit(np.array(expected)), atol=1e-9)
    np.testing.assert_array_equal(adapter.transform(X, smooth=True), smooth_rows(z, 4))


def test_tasks_are_documented_maps():
    X = clustered()
    np.testing.assert_allclose(LinearAdapter(**TASKS["search"]).fit(X).coef_, by_definition(X), atol=1e-9)
    clustering = LinearAdapter(**TASKS["clustering"]).fit(X)
    np.testing.assert_allclose(clustering.coef_, by_definition(X, p=0.0, s=0.7), atol=1e-9)


def test_the_mean_direction_is_removed_and_nothing_else():
    X = clustered(2_000)
    adapter = LinearAdapter(whitening=0, self_weight=1).fit(X)
    mean = unit(unit(X).mean(0))
    assert np.abs(adapter.transform(X)[:, -1]).max() < 1e-3 < np.abs(unit(X) @ mean).min()
    others = np.linalg.svd(mean[None])[2][1:]  # orthogonal to the mean
    np.testing.assert_allclose(adapter.transform(others) @ adapter.transform(others).T, np.eye(WIDTH - 1), atol=1e-3)


def test_rows_along_one_direction_keep_their_sign():
    column = np.array([[-2.0], [1.0], [3.0], [5.0]] * 100)
    for X in (column, column * unit(np.arange(1.0, 8.0))):
        adapted = LinearAdapter().fit(X).transform(X)
        np.testing.assert_allclose(adapted @ adapted.T, unit(X) @ unit(X).T, atol=1e-6)


def test_one_row_is_counted_as_one():
    with raises_usage(found="Found 1 row (n_samples=1)"):
        LinearAdapter().fit(np.ones((1, 4)))


def test_is_a_scikit_learn_transformer():
    check_estimator(LinearAdapter())


def test_scale_of_the_input_does_not_matter():
    X = clustered()
    scaled = X * np.random.default_rng(2).uniform(0.1, 10, size=(len(X), 1))
    np.testing.assert_allclose(LinearAdapter().fit(scaled).coef_, LinearAdapter().fit(X).coef_, atol=1e-9)


def test_few_rows_leave_embeddings_almost_unchanged():
    X = clustered(16, width=384)
    adapted = LinearAdapter().fit(X).transform(X)
    np.testing.assert_allclose(adapted @ adapted.T, unit(X) @ unit(X).T, atol=2e-3)
    many = clustered(2_000)
    assert LinearAdapter().fit(many).strength_ > 0.999 > 0.5 > LinearAdapter().fit(X).strength_


def test_blocks_and_memory_maps_do_not_change_the_map(monkeypatch, tmp_path):
    X = clustered().astype(np.float32)
    expected = LinearAdapter().fit(X)
    np.save(tmp_path / "x.npy", X)
    monkeypatch.setattr(linear, "MEMORY_MAPPED", 100)
    monkeypatch.setattr(linear, "CHUNK", 17)
    monkeypatch.setattr(blocks, "ROWS_AT_ONCE", 23)
    monkeypatch.setattr(nearest, "ROWS_AT_ONCE", 19)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    found = LinearAdapter().fit(mapped)
    np.testing.assert_allclose(found.coef_, expected.coef_, atol=1e-10)
    np.testing.assert_allclose(found.transform(mapped), expected.transform(X), atol=1e-5)


def test_neighbors_are_searched_in_a_sample_and_the_mean_uses_all_rows():
    X = clustered(3_000)
    sampled = LinearAdapter(max_samples=1_000).fit(X)
    full = LinearAdapter().fit(X)
    assert not np.array_equal(sampled.coef_, full.coef_) and sampled.n_samples_ == full.n_samples_ == 3_000
    x, y = sampled.transform(X), full.transform(X)
    assert (x @ np.linalg.lstsq(x, y, rcond=None)[0] * y).sum(-1).mean() > 0.98  # the axes differ a little
    again = LinearAdapter(max_samples=1_000).fit(X)
    np.testing.assert_array_equal(again.coef_, sampled.coef_)


def test_rows_of_zeros_are_ignored():
    X = clustered()
    with_zeros = np.insert(X, [5, 100], 0.0, axis=0)
    expected, found = LinearAdapter().fit(X), LinearAdapter().fit(with_zeros)
    np.testing.assert_allclose(found.coef_, expected.coef_, atol=1e-12)
    assert found.n_samples_ == 300


def test_duplicates_and_constant_columns_give_finite_maps():
    for X in (np.repeat(clustered(30), 20, axis=0), np.insert(clustered(), 3, 1.0, axis=1)):
        adapter = LinearAdapter().fit(X)
        assert np.isfinite(adapter.coef_).all() and np.isfinite(adapter.transform(X, smooth=True)).all()


@pytest.mark.parametrize("noise", [0.0, 2e-7])  # some copies are in other cells of a grid
@pytest.mark.parametrize("copies", [2, 8])
def test_copies_do_not_change_the_map(monkeypatch, copies, noise):
    monkeypatch.setattr(linear, "CHUNK", 100)
    X, source = clustered(60, width=40), np.random.default_rng(1)
    expected = LinearAdapter().fit(X)
    many = np.repeat(X, copies, axis=0) * source.uniform(0.5, 3, (60 * copies, 1))  # of any length
    many *= 1 + noise * source.normal(size=many.shape)
    for some in (many, many[source.permutation(len(many))], np.concatenate([many, many[:70]])):  # the last is uneven
        found = LinearAdapter().fit(some)
        assert found.n_samples_ == 60 and found.strength_ == expected.strength_
        np.testing.assert_allclose(found.coef_, expected.coef_, atol=1e-5)


def test_rows_that_are_no_copies_all_count():
    X = clustered(1_000, width=64)
    near = np.concatenate([X, X + 1e-3 * np.random.default_rng(1).normal(size=X.shape)])
    assert LinearAdapter().fit(near).n_samples_ == 2_000
    sparse = np.eye(300, 64) + np.eye(300, 64, k=-64) + np.eye(300, 64, k=-128)
    assert LinearAdapter().fit(sparse).n_samples_ == 64


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_type_of_the_input_is_kept(dtype):
    X = clustered().astype(dtype)
    adapter = LinearAdapter().fit(X)
    expected = LinearAdapter().fit(X.astype(np.float64))
    found, exact = adapter.transform(X), expected.transform(X.astype(np.float64))
    assert found.dtype == dtype and adapter.transform(X, smooth=True).dtype == dtype
    np.testing.assert_allclose(found, exact, atol=5e-3 if dtype == np.float16 else 1e-5)


@pytest.mark.parametrize("power", [-300, -160, 160, 300])
def test_rows_of_any_length_give_the_same_map(power):
    X, scaled = clustered(), clustered() * 10.0**power
    adapter = LinearAdapter().fit(X)
    np.testing.assert_allclose(LinearAdapter().fit(scaled).coef_, adapter.coef_, atol=1e-9)
    np.testing.assert_allclose(adapter.transform(scaled), adapter.transform(X), atol=1e-9)
    np.testing.assert_allclose(geometry.unit(scaled), geometry.unit(X), atol=1e-12)


def test_rows_of_zeros_stay_zero_and_are_no_neighbors():
    X = clustered()
    zeros = np.insert(X, [0, 100, 300], 0.0, axis=0)
    kept, adapter = zeros.any(-1), LinearAdapter(n_neighbors=4).fit(X)
    smoothed = adapter.transform(zeros, smooth=True)
    assert not smoothed[~kept].any() and not adapter.transform(zeros)[~kept].any()
    np.testing.assert_allclose(smoothed[kept], adapter.transform(X, smooth=True), atol=1e-12)
    few = adapter.transform(np.vstack([X[:2], np.zeros((9, WIDTH))]), smooth=True)
    np.testing.assert_allclose(few[:2], adapter.transform(X[:2], smooth=True), atol=1e-12)
    np.testing.assert_array_equal(adapter.transform(X[:1], smooth=True), adapter.transform(X[:1]))


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("large", [False, True])
def test_values_not_finite_are_refused(monkeypatch, value, large):
    if large:
        monkeypatch.setattr(linear, "MEMORY_MAPPED", 100)
    adapter, X = LinearAdapter().fit(clustered()), clustered()
    X[40, 2] = value
    for work in (LinearAdapter().fit, adapter.transform, lambda x: adapter.transform(x, smooth=True)):
        with pytest.raises(UsageError, match=r"NaN or infinity \(first in row 40\)"):
            work(X)


@pytest.mark.parametrize("X", [np.ones((50, 4)), np.zeros((50, 4))])
def test_equal_rows_are_refused(X):
    with raises_usage():
        LinearAdapter().fit(X)


@pytest.mark.parametrize(
    "options",
    [
        *(dict(n_neighbors=0), dict(whitening=-1), dict(regularization=0), dict(self_weight=2), dict(penalty=-1)),
        *(dict(max_samples=1), dict(rotation="itq"), dict(n_components=0), dict(n_components=WIDTH + 1)),
        *({name: np.nan} for name in ("whitening", "regularization", "self_weight", "penalty")),
    ],
    ids=str,
)
def test_options_out_of_range_are_refused(options):
    with raises_usage(option=next(iter(options))):
        LinearAdapter(**options).fit(clustered())


def test_smoothing_counts_copies_once():
    X, draw = clustered(100), np.random.default_rng(2)
    adapter = LinearAdapter().fit(X)
    expected = adapter.transform(X, smooth=True)
    order = draw.permutation(np.concatenate([np.arange(100), np.repeat(np.arange(20), 15)]))
    copies = X[order] * draw.uniform(0.5, 2, (400, 1)) * (1 + 1e-9 * draw.normal(size=(400, WIDTH)))
    np.testing.assert_allclose(adapter.transform(copies, smooth=True), expected[order], atol=1e-6)


def test_every_prefix_is_the_best_of_its_length():
    X = clustered(400)
    full = LinearAdapter().fit(X)
    z = full.transform(X)
    energy = (z**2).sum(0)
    assert (np.diff(energy) <= 1e-9).all(), "the axes are not in order"
    best = np.linalg.svd(z)[1] ** 2
    np.testing.assert_allclose(energy, best, rtol=1e-9)  # no rotation has more in its first dimensions
    np.testing.assert_allclose(z.T @ z - np.diag(energy), 0, atol=1e-8)
    plain = unit(z @ np.linalg.qr(np.random.default_rng(5).normal(size=(WIDTH, WIDTH)))[0])
    np.testing.assert_allclose(plain @ plain.T, z @ z.T, atol=1e-12)


def test_an_adapter_with_fewer_dimensions_is_the_beginning_of_the_whole_one(tmp_path):
    X = clustered(400)
    full, short = LinearAdapter().fit(X), LinearAdapter(n_components=5).fit(X)
    np.testing.assert_allclose(short.transform(X), unit(full.transform(X)[:, :5]), atol=1e-9)
    np.testing.assert_array_equal(full.coef_[:5], short.coef_)
    assert short.transform(X, smooth=True).shape == (400, 5) and short.get_feature_names_out().size == 5
    short.save(tmp_path / "adapter.safetensors")
    assert load_file(tmp_path / "adapter.safetensors")["coef"].shape == (5, WIDTH)


def test_rotation_for_bits_keeps_cosines_and_brings_vectors_close_to_their_signs():
    X = clustered(400)
    principal, bits = (LinearAdapter(n_components=8, rotation=rotation).fit(X) for rotation in ("principal", "bits"))
    plain, rotated = principal.transform(X), bits.transform(X)
    np.testing.assert_allclose(rotated @ rotated.T, plain @ plain.T, atol=1e-12)
    signs = np.sign(rotated)
    left, _, right = np.linalg.svd(rotated.T @ signs)  # the rotation that fits these signs best
    assert np.trace(left @ right) > 7.9, "another rotation is closer to the signs"
    assert (rotated * signs).sum() > 1.15 * np.abs(plain).sum()

    np.testing.assert_array_equal(bits.coef_, LinearAdapter(n_components=8, rotation="bits").fit(X).coef_)


def test_smoothing_pulls_documents_together_and_differs_from_the_linear_map():
    X = clustered()
    adapter = LinearAdapter().fit(X)
    linear_map, smoothed = adapter.transform(X), adapter.transform(X, smooth=True)
    agreement = (linear_map * smoothed).sum(-1)
    assert 0.9 < agreement.mean() < 0.9999


@pytest.mark.parametrize("width", [5, WIDTH])
def test_names_of_columns_are_those_of_the_output(width):
    pd = pytest.importorskip("pandas")
    x = clustered(60)
    adapter = LinearAdapter(n_components=width).fit(pd.DataFrame(x, columns=list("abcdefghijkl")))
    names = [f"linearadapter{i}" for i in range(width)]
    assert adapter.get_feature_names_out().tolist() == names
    assert adapter.n_features_in_ == WIDTH and adapter.feature_names_in_.tolist() == list("abcdefghijkl")
    adapter = LinearAdapter(n_components=width).fit(x)
    plain = adapter.transform(x)
    adapter.set_output(transform="pandas")
    table = adapter.transform(pd.DataFrame(x, index=range(100, 160)))
    assert table.columns.tolist() == names and table.index[0] == 100
    np.testing.assert_allclose(table.to_numpy(), plain, atol=1e-12)


def test_saved_adapter_is_three_lines_of_numpy(tmp_path):
    X = clustered().astype(np.float32)
    adapter = LinearAdapter().fit(X)
    adapter.save(tmp_path / "adapter.safetensors")
    saved = load_file(tmp_path / "adapter.safetensors")
    (tmp_path / "other").touch()
    assert (tmp_path / "adapter.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode
    by_hand = X @ saved["coef"].T  # of any length: there is no intercept
    np.testing.assert_allclose(unit(by_hand), adapter.transform(X), atol=1e-5)


def test_a_matrix_in_another_order_of_memory_is_saved_as_it_is(tmp_path):
    """safetensors writes the numbers of an array as they lie in memory."""
    adapter = LinearAdapter().fit(clustered())
    adapter.coef_ = np.asfortranarray(adapter.coef_)
    adapter.save(tmp_path / "adapter.safetensors")
    saved = load_file(tmp_path / "adapter.safetensors")["coef"]
    np.testing.assert_array_equal(saved, adapter.coef_.astype(np.float32))


def test_a_full_disk_leaves_an_earlier_adapter_as_it_was(tmp_path, monkeypatch):
    path, adapter = tmp_path / "adapter.safetensors", LinearAdapter().fit(clustered())
    adapter.save(path)
    before, write = path.read_bytes(), Path.write_bytes

    def fail(path, data):
        write(path, data[:9])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(SaveError):
        adapter.save(path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == [path.name]


def fit_as(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)
    torch.set_num_threads(1)
    blocks.ROWS_AT_ONCE = 64  # several blocks for each process
    nearest.ROWS_AT_ONCE = 50
    linear.CHUNK = 64
    X = clustered()
    adapter = LinearAdapter().fit(np.concatenate([X, X[::-1]]))  # the copy of a row is in the other process
    np.save(f"{folder}/{rank}.npy", np.vstack([adapter.coef_, adapter.intercept_]))
    X[290, 0] = np.nan  # in a chunk of the first process
    try:
        LinearAdapter().fit(X)
    except UsageError as error:
        Path(folder, f"{rank}.txt").write_text(str(error))
    dist.barrier()
    os._exit(0)  # without teardown, which can deadlock: see tests/training/test_distributed.py


def test_no_threshold_before_fit():
    with pytest.raises(NotFittedError):
        LinearAdapter().threshold()


def test_two_processes_fit_the_map_of_one(tmp_path):
    forked.ranks(fit_as, (str(tmp_path),), 2)
    adapter = LinearAdapter().fit(clustered())
    expected = np.vstack([adapter.coef_, adapter.intercept_])
    for rank in range(2):
        np.testing.assert_allclose(np.load(tmp_path / f"{rank}.npy"), expected, atol=1e-10)
    assert "row 290" in (tmp_path / "0.txt").read_text()
    assert "Another process" in (tmp_path / "1.txt").read_text()
