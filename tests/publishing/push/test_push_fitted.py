"""Push what `informin fit` saves, of both backends."""

import numpy as np
import pytest
from huggingface_hub import snapshot_download

from informin.adapters.linear import LinearAdapter
from informin.cli import push as push_command
from informin.models.model import Model
from informin.models.open_model import load_model
from informin.publishing.adapted import save_adapted
from informin.publishing.card import is_untouched
from informin.publishing.export import export_checkpoint
from informin.publishing.hub import prepare, push_card, push_folder
from tests.conftest import make_sentences
from tests.models.any_encoder.helpers import sentence_transformer
from tests.publishing.push.push_helpers import REPO, read_files, remote

pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
pytestmark = pytest.mark.usefixtures("logged_in", "logging_as_before")
TEXTS = make_sentences(40)


def embedded(model: Model) -> np.ndarray:
    return next(iter(model(TEXTS).values()))


@pytest.fixture(params=["native", "st"])
def fitted(request, bert, tmp_path):
    source = load_model(str(sentence_transformer(bert, tmp_path / "base")), backend=request.param)
    folder = tmp_path / "fitted"
    save_adapted(source, LinearAdapter().fit(embedded(source)), folder, texts=len(TEXTS))
    (folder / "report.html").write_text("private sentences")
    return folder


def test_the_model_on_the_hub_is_the_folder_and_its_card_loads_it(hub, fitted):
    expected = embedded(load_model(str(fitted)))
    push_folder(fitted, prepare(REPO))
    found = remote(hub)
    assert "report.html" not in found and {"modules.json", "3_Dense/model.safetensors"} <= set(found)
    card, commit = found["README.md"].decode(), hub.commits(REPO)[1].sha
    assert f'SentenceTransformer("{REPO}", revision="{commit}")' in card and is_untouched(card)
    assert f'informin search "{REPO}"' in card and "\n# m\n" in card and "\n- linear-adapter\n" in card
    np.testing.assert_allclose(embedded(load_model(snapshot_download(REPO))), expected, atol=1e-6)
    push_card(fitted, prepare(REPO))
    assert remote(hub)["README.md"].decode().count("revision=") == 1


def test_a_second_repository_and_an_export(hub, fitted, tmp_path):
    push_folder(fitted, prepare(REPO))
    push_folder(fitted, prepare("alice/other"))
    card = remote(hub, "alice/other")["README.md"].decode()
    assert 'SentenceTransformer("alice/other", revision=' in card and REPO not in card and "\n# other\n" in card
    export_checkpoint(fitted, tmp_path / "export")
    assert read_files(tmp_path / "export")["README.md"] == read_files(fitted)["README.md"]


def test_an_edited_card_is_kept(hub, fitted):
    with open(fitted / "README.md", "a") as file:
        file.write("\nMine.\n")
    before = read_files(fitted)["README.md"]
    push_folder(fitted, prepare(REPO))
    assert remote(hub)["README.md"] == before


def test_results_are_refused(hub, fitted, capsys):
    assert push_command.main([str(fitted), REPO, "--results", str(fitted)]) == 2
    assert "has no table of scores" in capsys.readouterr().err
