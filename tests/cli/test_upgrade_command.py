"""`informin upgrade`: the decision on the command line, and the bridge in a file."""

import numpy as np
import pytest

import informin
from informin.adapters.bridge import Bridge
from informin.cli import upgrade as command
from tests.conftest import make_sentences
from tests.models.any_encoder.st_models import static

TEXTS = make_sentences(300)
pytestmark = pytest.mark.usefixtures("logging_as_before")


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A static model, next to a file of texts."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    return static(folder / "words")


def run(words, *options: str, new="") -> int:
    return command.main([str(words), str(new or words), f"--train_file={words.parent / 'texts.txt'}", *options])


def test_prints_what_python_returns(words, capsys):
    assert run(words, "--device=cpu", "--seed=2", "--max_texts=290") == 0
    result = informin.upgrade(words, words, TEXTS, seed=2, max_texts=290, device="cpu")
    assert repr(result) in capsys.readouterr().out and not result.bridge_is_best


def test_the_bridge_is_written_and_read_again(words, tmp_path, capsys):
    path = tmp_path / "bridge.safetensors"
    assert run(words, "--device=cpu", f"--output={path}") == 0 and f'Bridge.load("{path}")' in capsys.readouterr().out
    vectors = informin.embed(str(words), TEXTS, device="cpu")
    bridge, expected = Bridge.load(path), informin.upgrade(words, words, TEXTS, device="cpu").bridge
    np.testing.assert_allclose(bridge.transform(vectors), expected.transform(vectors), atol=1e-5)
    np.testing.assert_allclose(bridge.index(vectors), expected.index(vectors), atol=1e-5)
    assert run(words, f"--output={path}") == 2 and "already exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "new", "problem"),
    [
        (["--output=b.npy"], "", "--output is b.npy; expected a name ending in .safetensors"),
        (["--seed=-1"], "", "--seed is -1"),
        ([], "missing.npy", "missing.npy"),
    ],
)
def test_unusable_options_are_refused(words, capsys, options, new, problem):
    assert run(words, *options, new=new) == 2
    assert problem in capsys.readouterr().err
