"""Without the Hub, a name that is wrong is found at once and said once."""

import logging
import threading

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import get_session

from informin import hub as hub_access
from informin.errors import UsageError
from informin.evaluation.senteval import senteval_folder
from informin.hub import hub_is_reachable
from informin.model.open import load_model, source_of
from informin.training.arguments import InforMinTrainingArguments
from informin.training.data import load_sentences
from informin.training.inputs import DataArguments, check_downloads
from informin.training.model import load_to_train
from tests.conftest import raises_usage


@pytest.fixture
def no_hub(monkeypatch):
    """An address that nothing answers at, and the requests to it."""
    library = logging.getLogger("huggingface_hub")
    level = library.level
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    hub_is_reachable.cache_clear()
    asked = []
    session = get_session()
    send = session.send
    monkeypatch.setattr(session, "send", lambda request, **more: asked.append(request) or send(request, **more))
    yield asked
    hub_is_reachable.cache_clear()
    library.setLevel(level)


def test_a_mistyped_name_without_the_hub_is_not_found(no_hub, caplog):
    for name in ("no-such-owner/no-such-model", "another/one"):
        with raises_usage("model_name", found="not found"):
            load_model(name)
    assert len(no_hub) == 1, "nothing is tried again"
    assert [record.name for record in caplog.records] == ["informin.hub"]


def test_the_hub_library_does_not_warn_again(no_hub, caplog):
    assert not hub_is_reachable()
    logging.getLogger("huggingface_hub.hf_api").warning("Could not reach the Hub")
    assert [record.name for record in caplog.records] == ["informin.hub"]


def test_the_hub_library_does_not_warn_offline(no_hub, caplog, monkeypatch):
    """Whoever sets HF_HUB_OFFLINE knows that cached files are used."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert not hub_is_reachable()
    logging.getLogger("huggingface_hub.hf_api").warning("Could not reach the Hub")
    assert caplog.records == [] and no_hub == []


def test_a_question_that_hangs_is_not_waited_for(no_hub, monkeypatch):
    """As behind a firewall that drops packets, where each address of the Hub costs a timeout."""
    over = threading.Event()
    hung = []
    monkeypatch.setattr(hub_access, "SECONDS", 0.05)
    monkeypatch.setattr(get_session(), "send", lambda *_, **__: over.wait(60) or hung.append("waited"))
    assert not hub_is_reachable()
    over.set()
    assert hung == []


def test_a_folder_does_not_need_the_hub(no_hub, st_mean):
    load_model(st_mean)
    assert no_hub == []


READERS = {
    "senteval": lambda: senteval_folder(None),
    "dataset_name": lambda: load_sentences(DataArguments(dataset_name="some/data"), seed=0),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_data_without_the_hub_is_asked_for_once(no_hub, read):
    with pytest.raises((UsageError, OSError)):
        read()
    addresses = [request.url for request in no_hub]
    assert addresses[:1] == [constants.ENDPOINT], "the question comes first"
    assert len(addresses) == len(set(addresses)), "nothing is tried again"


def test_a_name_may_leave_out_its_owner(logged_in, st_mean, monkeypatch, tmp_path):
    """As in sentence-transformers: online, from the cache, and in training, with the pooling that the model stores."""
    files = {str(path.relative_to(st_mean)): path.read_bytes() for path in st_mean.rglob("*") if path.is_file()}
    logged_in.add_repo("sentence-transformers/tiny", files)
    hub_is_reachable.cache_clear()
    full = "sentence-transformers/tiny"
    assert source_of(load_model("tiny")).name == full
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub_is_reachable.cache_clear()
    check_downloads(DataArguments(train_file=["texts.txt"]), {"model_name": "tiny"}, None, scores=False)
    with raises_usage("model_name", found="not found"):
        load_model("no-such-model")
    args = InforMinTrainingArguments(str(tmp_path / "out"), use_cpu=True)
    trained = load_to_train("tiny", args)
    assert source_of(trained).name == full
    assert trained[1].pooling_mode == "mean"
    hub_is_reachable.cache_clear()
