"""Some damaged text files; `python -m tools.fuzz_files` tries thousands."""

import pytest

from informin.texts import read_texts
from tools.fuzz_files import TEXTS, fuzz, originals


def test_damaged_files_are_read_or_refused():
    assert list(fuzz(300, seed=1)) == []


@pytest.mark.parametrize("suffix", [".txt", ".csv", ".txt.gz", ".csv.gz"])
def test_intact_files_give_their_texts(tmp_path, suffix):
    path = tmp_path / f"texts{suffix}"
    path.write_bytes(originals()[suffix])
    assert list(read_texts(path)) == [text for text in TEXTS if text]
