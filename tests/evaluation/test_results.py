"""Results files: their format, saving, resuming and validation."""

import hashlib
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from informin import __version__
from informin.errors import UsageError
from informin.evaluation.results import (
    CLASSIFIER,
    IDENTITY,
    SCHEMA,
    add_task,
    checksums,
    environment,
    load_results,
    new_results,
    results_files,
    resume_results,
    save_results,
)
from informin.evaluation.senteval import TRANSFER_TASKS
from informin.evaluation.table import checkpoint_label
from tests.conftest import ROOT, raises_usage
from tests.evaluation.results_helpers import MODEL, STS, entry, results, sample

TRANSFER = dict(zip(TRANSFER_TASKS, [81.0, 82.0, 83.0, 84.0, 85.0, 86.0, 87.5]))


def test_new_results():
    expected = {
        "schema": 1,
        "model": "org/model",
        **MODEL,
        "classifier": CLASSIFIER,
        "tasks": {},
        "average": {"sts": None, "transfer": None},
        "environment": {"torch": "2"},
        "seconds": 0.0,
    }
    assert new_results("org/model", MODEL, {"torch": "2"}) == expected and SCHEMA == 1 and set(IDENTITY) == set(MODEL)


def test_older_files_have_no_prompt(tmp_path):
    old = results(STS)
    del old["prompt"]
    save_results(tmp_path / "a.json", old)
    assert load_results(tmp_path / "a.json") == results(STS)
    assert resume_results(tmp_path / "a.json", results({}))["tasks"] == old["tasks"]
    with raises_usage(found="contains other results (prompt None, now 'query: ')"):
        resume_results(tmp_path / "a.json", results({}, prompt="query: "))
    assert checkpoint_label(results({}, prompt="query: ")) == "model, cls, prompt 'query: '"


def test_averages_require_all_seven_scores():
    found = results(dict(list(STS.items())[:-1]))
    assert found["average"] == {"sts": None, "transfer": None}
    add_task(found, "SICK-R", entry(STS["SICK-R"]))
    assert found["average"] == {"sts": pytest.approx(sum(STS.values()) / 7), "transfer": None}
    for name, score in TRANSFER.items():
        add_task(found, name, entry(score))
    assert found["average"]["transfer"] == pytest.approx(sum(TRANSFER.values()) / 7)
    add_task(found, "STS13", entry(None))
    assert found["average"] == {"sts": None, "transfer": pytest.approx(sum(TRANSFER.values()) / 7)}
    add_task(found, "STS13", entry(21.2))
    assert found["average"]["sts"] == pytest.approx((sum(STS.values()) + 0.7) / 7)


def test_score_of_zero_is_included_in_averages():
    assert results(STS | {"STS12": 0.0})["average"]["sts"] == pytest.approx(sum(STS.values()) / 7 - 10 / 7)


def test_seconds_of_all_tasks_are_counted_once():
    found = results(STS)
    add_task(found, "STS12", entry(1.0, seconds={"encode": 2.0, "score": 3.0}))
    assert found["seconds"] == pytest.approx(6 * 1.75 + 5)


def test_save_and_load(tmp_path):
    """Creates the folders, and writes indented JSON."""
    path = tmp_path / "a" / "b" / "model-cls.json"
    found = results(STS | {"MR": None}, model="org/modèle", whitening={"dimensions": None, "fitted_on": "é"})
    save_results(path, found)
    assert load_results(path) == found == load_results(str(path))
    assert "modèle" in path.read_text(encoding="utf-8") and path.read_text(encoding="utf-8").endswith("}\n")
    assert [p.name for p in path.parent.iterdir()] == ["model-cls.json"]
    save_results(path, results(TRANSFER))
    assert load_results(path) == results(TRANSFER)


def fail(*_, **__):
    raise OSError(28, "No space left on device")


def interrupt(*_, **__):
    raise KeyboardInterrupt


def written_in_part(path: Path, text: str, **_):
    with open(path, "w") as file:
        file.write(text[:20])
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    "target, name, broken, error, message",
    [
        (Path, "write_text", written_in_part, UsageError, "No space left on device. Choose another `output`."),
        (os, "replace", fail, UsageError, "No space left on device. Choose another `output`."),
        (os, "replace", interrupt, KeyboardInterrupt, None),
    ],
)
def test_failed_write_keeps_the_previous_file(tmp_path, monkeypatch, target, name, broken, error, message):
    path = tmp_path / "a.json"
    save_results(path, results(STS))
    before = path.read_bytes()
    with monkeypatch.context() as patch, pytest.raises(error, match=message):
        patch.setattr(target, name, broken)
        save_results(path, results(TRANSFER))
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_file_instead_of_folder_is_an_error(tmp_path):
    (tmp_path / "a").write_text("")
    with raises_usage(found=f"{tmp_path / 'a' / 'b.json'} cannot be written: ", fix="another `output`"):
        save_results(tmp_path / "a" / "b.json", results(STS))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_is_not_written(tmp_path, value):
    """JSON has no NaN; undefined scores are null."""
    path = tmp_path / "a.json"
    save_results(path, results(STS))
    before = path.read_bytes()
    with pytest.raises(ValueError, match="not JSON compliant"):
        save_results(path, results({"STS12": value}))
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "content, found, needed",
    [
        (None, "PATH cannot be read: ", "a results file of `informin eval`"),
        ('{"schema": 1, "tas', "PATH cannot be read: ", "a results file of `informin eval`"),
        (b"\xff\xfe", "PATH cannot be read: ", "a results file of `informin eval`"),
        ("[]", "PATH is not a results file: it is a list; expected a mapping", ""),
        ('{"schema": 2, "tasks": {}}', "PATH is not a results file: model is missing", ""),
        ('{"schema": 1}', "PATH is not a results file: model is missing", ""),
        ('{"schema": 1, "tasks": []}', "PATH is not a results file: model is missing", ""),
    ],
)
def test_other_files_are_rejected(tmp_path, content, found, needed):
    path = tmp_path / "a.json"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with raises_usage(found=found.replace("PATH", str(path)), needed=needed):
        load_results(path)


@pytest.mark.parametrize("key", ["kind", "measures", "classes"])
def test_incomplete_label_entries_are_rejected(tmp_path, key):
    values = new_results("here", MODEL, {})
    add_task(values, "tags", entry(50.0, kind="labels", classes=3, measures={"v_measure": 50.0}))
    del values["tasks"]["tags"][key]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(values))
    with raises_usage(found=f"{path} is not a results file: tasks.tags.{key} is missing"):
        load_results(path)


def test_resuming(tmp_path):
    """Tasks are kept; the model's name and the environment are updated."""
    fresh = new_results("here", MODEL, {"torch": "2"})
    assert resume_results(tmp_path / "none.json", fresh) is fresh
    before = new_results("there", MODEL, {"torch": "1"})
    for name, score in STS.items():
        add_task(before, name, entry(score))
    save_results(tmp_path / "a.json", before)
    assert resume_results(tmp_path / "a.json", fresh) == before | {"model": "here", "environment": {"torch": "2"}}


@pytest.mark.parametrize(
    "name, value",
    [
        ("weights_sha256", "f" * 64),
        ("pooler", "mean"),
        ("normalized", True),
        ("whitening", {"dimensions": 4, "fitted_on": "x"}),
        ("max_length", 32),
        ("precision", "bf16"),
        ("split", "dev"),
    ],
)
def test_results_of_other_settings_are_not_resumed(tmp_path, name, value):
    path = tmp_path / "a.json"
    save_results(path, results(STS, **{name: value}))
    found = f"{path} contains other results ({name} {value!r}, now {MODEL[name]!r})"
    with raises_usage(found=found, fix="Choose another `output`, or delete the file."):
        resume_results(path, results({}))


def test_error_lists_all_differences(tmp_path):
    save_results(tmp_path / "a.json", results(STS, pooler="mean", split="dev"))
    with raises_usage(found="(pooler 'mean', now 'cls'; split 'dev', now 'test')"):
        resume_results(tmp_path / "a.json", results({}))


def test_results_files(tmp_path):
    for name in ("b.json", "a.json", "c.txt", ".d.json.partial"):
        (tmp_path / name).write_text("{}")
    assert results_files(tmp_path) == [tmp_path / "a.json", tmp_path / "b.json"]
    assert results_files(str(tmp_path / "b.json")) == [tmp_path / "b.json"]
    (tmp_path / "summary.json").touch()  # of --output; it repeats the results
    assert results_files(tmp_path) == [tmp_path / "a.json", tmp_path / "b.json"]
    (tmp_path / "empty").mkdir()
    with raises_usage(found=f"{tmp_path / 'empty'} contains no .json file", needed="a folder with results"):
        results_files(tmp_path / "empty")


def test_checksums(tmp_path):
    (tmp_path / "a").mkdir()
    files = [tmp_path / "a" / "x.txt", tmp_path / "y.txt"]
    for path, content in zip(files, (b"1", b"2\n")):
        path.write_bytes(content)
    expected = {"a/x.txt": hashlib.sha256(b"1").hexdigest(), "y.txt": hashlib.sha256(b"2\n").hexdigest()}
    assert checksums(files, tmp_path) == checksums(files, str(tmp_path)) == expected


def test_environment():
    found = environment(torch.device("cpu"))
    assert (found["informin"], found["python"]) == (__version__, platform.python_version())
    assert torch.__version__.startswith(found["torch"]) and found["numpy"] == np.__version__  # torch may add +cu130
    assert found["device"] == f"cpu {platform.machine()}" and found["threads"] == torch.get_num_threads()
    assert found.keys() - {"informin", "python", "device", "threads"} == {
        *("torch", "transformers", "tokenizers", "numpy", "scipy", "scikit-learn")
    }


def test_results_and_tables_do_not_import_heavy_libraries():
    """The model card uses them."""
    heavy = "{'torch', 'transformers', 'datasets', 'sklearn', 'matplotlib'}"
    for name in ("results", "table", "senteval", "senteval_files"):
        code = f"import sys, informin.evaluation.{name}; print(*sys.modules.keys() & {heavy})"
        ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
        assert ran.stdout.strip() == "", name


def test_retrieval_scored_by_an_older_version_is_scored_again(tmp_path, caplog):
    """Its recall_10 is now called accuracy_10."""
    one = results({"STS-B": 80.0})
    add_task(one, "faq", entry(50.0, kind="retrieval", documents=1, measures={"mrr_10": 50.0, "recall_10": 90.0}))
    add_task(one, "titles", sample(60.0))
    save_results(tmp_path / "a.json", one)
    assert list(load_results(tmp_path / "a.json")["tasks"]) == ["STS-B", "titles"]
    assert "faq was scored by an older version, with other measures. Score it again." in caplog.text
