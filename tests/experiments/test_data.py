"""The data of the benchmarks."""

from experiments.benchmarks.data import embedded
from tests.conftest import raises_usage


def test_vectors_of_other_texts_are_not_taken_from_the_cache(st_mean, tmp_path):
    first = embedded(f"bert={st_mean}", tmp_path, "toy", "query", ["the dog runs"])
    assert (embedded(f"bert={st_mean}", tmp_path, "toy", "query", ["the dog runs"]) == first).all()
    with raises_usage():
        embedded(f"bert={st_mean}", tmp_path, "toy", "query", ["the cat runs"])
