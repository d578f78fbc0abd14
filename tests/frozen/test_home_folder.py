"""Paths with `~` in Python."""

from pathlib import Path

import pytest

import informin
from informin.evaluation.pairs import load_pairs
from tests.conftest import make_sentences

TEXTS = make_sentences(60)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    """The home folder, apart from the current one, which stays empty."""
    (tmp_path / "home").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    yield tmp_path / "home"
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("kind", [str, Path])
def test_outputs_are_written_and_read(static, home, kind):
    (home / "m").symlink_to(static)
    model = kind("~/m")
    informin.Index.build(model, TEXTS).save(kind("~/index"))
    assert len(informin.Index.load(kind("~/index"))) == 60
    informin.embed(model, TEXTS, kind("~/v.npy"))
    result = informin.fit(model, TEXTS, task="search", embeddings=kind("~/v.npy"))
    result.save(kind("~/fitted"))
    result.adapter.save(kind("~/a.safetensors"))
    assert (home / "a.safetensors").is_file() and (home / "fitted" / "modules.json").is_file()


def test_files_of_evaluations_are_read(static, home):
    (home / "titles.tsv").write_text("text\tlabel\n" + "".join(f"{text}\t{n % 2}\n" for n, text in enumerate(TEXTS)))
    (home / "pairs.tsv").write_text("sentence1\tsentence2\tscore\na\tb\t1\nc\td\t2\n")
    informin.evaluate(str(static), labels=["~/titles.tsv"], output="~/scores.json").save("~/tables")
    assert (home / "scores.json").is_file() and (home / "tables" / "table.md").is_file()
    assert len(load_pairs("~/pairs.tsv").scores) == 2
