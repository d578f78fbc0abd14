"""What a run needs from the Hub is named together."""

import pytest

from informin import hub as hub_access
from informin.errors import UsageError
from informin.training import inputs as missing
from informin.training.inputs import DataArguments, check_downloads

BERT = {"model_name": "bert-base-uncased"}


@pytest.fixture(autouse=True)
def without_the_hub(monkeypatch):
    monkeypatch.setattr(missing, "hub_is_reachable", lambda: False)


def named(data: DataArguments, models: dict, scores: bool = True) -> list[str]:
    """Return the options that the message names."""
    with pytest.raises(UsageError) as caught:
        check_downloads(data, models, None, scores)
    assert caught.value.exit_code == 2
    options = ("model_name", "guide_model", "train_file", "eval_pairs", "senteval_dir", "eval_strategy")
    return [option for option in options if f"`{option}`" in str(caught.value)]


def test_everything_missing_is_named_at_once():
    assert named(DataArguments(), BERT) == ["model_name", "train_file", "eval_pairs", "senteval_dir", "eval_strategy"]


def test_only_what_is_missing_is_named(bert, tmp_path):
    here = {"model_name": str(bert)}
    texts = DataArguments(train_file=["texts.txt"])
    assert named(texts, BERT, scores=False) == ["model_name"]
    assert named(texts, here | {"guide_model": "guide"}, scores=False) == ["guide_model"]
    assert named(texts, here) == ["eval_pairs", "senteval_dir", "eval_strategy"]
    assert named(DataArguments(eval_pairs="pairs.tsv"), here) == ["train_file"]
    check_downloads(DataArguments(train_file=["texts.txt"], eval_labels="labels.tsv"), here, None, True)
    check_downloads(DataArguments(dataset_name="ann/data", senteval_dir="data"), here, None, True)


def test_data_of_the_environment_is_not_missing(bert, monkeypatch):
    monkeypatch.setenv("SENTEVAL_DATA", "data")
    check_downloads(DataArguments(train_file=["texts.txt"]), {"model_name": str(bert)}, None, True)


def test_cached_files_are_not_missing(monkeypatch):
    monkeypatch.setattr(hub_access, "try_to_load_from_cache", lambda repo, file, **_: f"/cache/{repo}/{file}")
    check_downloads(DataArguments(), BERT, None, True)


def test_run_may_download_if_the_hub_answers(monkeypatch):
    monkeypatch.setattr(missing, "hub_is_reachable", lambda: True)
    check_downloads(DataArguments(), BERT, None, True)


def test_path_that_does_not_exist_is_missing():
    assert named(DataArguments(train_file=["texts.txt"]), {"model_name": "./no/such/folder"}, False) == ["model_name"]


def test_one_file_of_a_recipe_is_one_source():
    assert DataArguments(train_file="texts.txt").train_file == ["texts.txt"]
