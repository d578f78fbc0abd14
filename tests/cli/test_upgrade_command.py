"""`informin upgrade`: the decision on the command line, and the bridge in a file."""

import numpy as np
import pytest

import informin
from informin.adapters.bridge import Bridge
from informin.cli import upgrade as command
from tests.adapters.test_bridge import topical
from tests.conftest import make_sentences
from tests.models.any_encoder.st_models import static

pytestmark = pytest.mark.usefixtures("logging_as_before")


@pytest.fixture
def given(tmp_path):
    """Texts, and files of embeddings of a bad old model and a good new one."""
    texts, new = topical()
    old = np.random.default_rng(1).normal(size=(400, 6))
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    for name, vectors in (("old", old), ("new", new)):
        np.save(tmp_path / f"{name}.npy", vectors)
    return texts, old, new


def run(folder, *options: str, old="old.npy", new="new.npy") -> int:
    return command.main([str(folder / old), str(folder / new), f"--train_file={folder / 'texts.txt'}", *options])


def test_prints_what_python_returns(given, tmp_path, capsys):
    texts, old, new = given
    assert run(tmp_path) == 0
    printed = capsys.readouterr().out
    result = informin.upgrade(old, new, texts)
    assert repr(result) in printed and "Decision: again" in printed
    assert ("Use --output to write the bridge." in printed) == result.bridge_is_best


def test_the_bridge_is_written_and_read_again(given, tmp_path, capsys):
    texts, old, new = given
    path = tmp_path / "bridge.safetensors"
    assert run(tmp_path, f"--output={path}") == 0 and f'Bridge.load("{path}")' in capsys.readouterr().out
    bridge, expected = Bridge.load(path), informin.upgrade(old, new, texts).bridge
    np.testing.assert_allclose(bridge.transform(new), expected.transform(new), atol=1e-5)
    np.testing.assert_allclose(bridge.index(old), expected.index(old), atol=1e-5)
    assert run(tmp_path, f"--output={path}") == 2 and "already exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "files", "problem"),
    [
        (["--output=b.npy"], {}, "--output is b.npy; expected a name ending in .safetensors"),
        (["--seed=-1"], {}, "--seed is -1"),
        ([], {"new": "missing.npy"}, "missing.npy"),
    ],
)
def test_unusable_options_are_refused(given, tmp_path, capsys, options, files, problem):
    assert run(tmp_path, *options, **files) == 2
    assert problem in capsys.readouterr().err


def test_models_embed_the_texts(tmp_path, capsys):
    texts = make_sentences(200)
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    folder = static(tmp_path / "words")
    np.save(tmp_path / "own.npy", informin.embed(str(folder), texts))
    shown = []
    for new in ("words", "own.npy"):
        assert run(tmp_path, "--device=cpu", old="words", new=new) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] and "40 held-out texts" in shown[0]
