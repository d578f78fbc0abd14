"""Models shared by the tests in this folder."""

import shutil
from pathlib import Path

import pytest
import transformers

import run_unsup
from informin.cli import analyze as analyze_command
from informin.cli import eval as eval_command
from informin.cli import export as export_command
from informin.models.checkpoint import Checkpoint
from informin.models.native_loading import load_trainable
from informin.models.open_model import in_memory
from informin.publishing.export import export_folder
from tests.conftest import make_sentences, save_bert, save_roberta, tokenizer_of
from tests.models.encoder_helpers import SETTINGS
from tests.models.loading_helpers import SHARE
from tests.senteval_data import small_counts, write_senteval


@pytest.fixture
def quiet():
    """The verbosity of the commands. Otherwise each load reports unused heads."""
    before = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_error()
    yield
    transformers.utils.logging.set_verbosity(before)


@pytest.fixture(scope="session", params=["bert", "roberta"])
def ours(request, tmp_path_factory) -> Path:
    """An exported checkpoint of each architecture. With 3 layers, all poolers differ."""
    save = {"bert": save_bert, "roberta": save_roberta}[request.param]
    start = save(tmp_path_factory.mktemp("start"), num_hidden_layers=3)
    folder = tmp_path_factory.mktemp("ours")
    export_folder(in_memory(load_trainable(Checkpoint(start), dict(SETTINGS)), tokenizer_of(start)), folder)
    return folder


@pytest.fixture
def copied(bert, tmp_path):
    """Return a function that copies a model folder, for tests that change it."""

    def copy(source: Path = bert, name: str = "copy") -> Path:
        return shutil.copytree(source, tmp_path / name)

    return copy


@pytest.fixture
def small_senteval(monkeypatch, logging_as_before):
    """Small SentEval data and only errors of transformers."""
    small_counts(monkeypatch, SHARE)
    transformers.utils.logging.set_verbosity_error()


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> Path:
    return write_senteval(tmp_path_factory.mktemp("senteval"), SHARE)


@pytest.fixture(scope="session")
def exported(bert, roberta, tmp_path_factory) -> dict[str, Path]:
    """An exported model of each architecture, which every command accepts."""
    folders = {}
    for start in (bert, roberta):
        folder = folders[start.name] = tmp_path_factory.mktemp("exported") / start.name
        export_folder(in_memory(load_trainable(Checkpoint(start), dict(SETTINGS)), tokenizer_of(start)), folder)
    return folders


@pytest.fixture
def model(exported, tmp_path) -> Path:
    """A BERT for tests that change it."""
    return shutil.copytree(exported["tiny-bert"], tmp_path / "model")


@pytest.fixture
def commands(command, data, sentences_file, tmp_path):
    """The commands that load a model, as functions that return the exit code."""
    lines = tmp_path / "sentences.txt"
    lines.write_text("\n".join(make_sentences(40)))
    where = ["--device", "cpu", "--pooler", "cls"]
    tsne = ["--train_file", str(lines), "--clusters", "2", "--output", str(tmp_path / "figure")]
    tasks = ["--tasks", "STS-B", "--split", "dev", "--senteval_dir", str(data)]
    return {
        "unsup": lambda model: run_unsup.main(command(model_name=model, eval_strategy="no", eval_pairs=None)),
        "eval": lambda model: eval_command.main(["--model_name", str(model), *tasks, *where]),
        "analysis": lambda model: analyze_command.main(["tsne", "--model_name", str(model), *tsne, *where]),
        "export": lambda model: export_command.main([str(model), str(tmp_path / "export")]),
    }
